package kerneltest

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/simd"
)

// RequireEnv is the environment variable that lists the instruction sets a test machine is promised to have, separated
// by spaces. A run on which one is missing fails: a skip is not a pass.
const RequireEnv = "LAMINA_SIMD_REQUIRE"

// higher are the units of benchmarks of which more is better; benchstat takes all that it does not know for times.
var higher = []string{"GFLOP/s", "GB/s", "tok/s", "%peak", "Gvalue/s", "Gexp/s", "Glog/s", "Gfma/s"}

// Main is the TestMain of every package that computes. It prints the instruction set that the tests run on, and fails
// the run if LAMINA_SIMD names one that cannot be had or LAMINA_SIMD_REQUIRE one that is missing. Before benchmarks it
// prints what benchstat must know about their units.
func Main(m *testing.M) {
	flag.Parse()
	fmt.Println("simd:", simd.Level())
	if flag.Lookup("test.bench").Value.String() != "" {
		for _, unit := range higher {
			fmt.Printf("Unit %s better=higher\n", unit)
		}
	}
	if err := Check(os.Getenv(RequireEnv), simd.Levels(), simd.Err()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// Level is the test in every package with Main that reads the variables again: go test keeps the result of a run for those
// that tests read, and of what it is told before them it knows nothing. Without it a run for another instruction set
// would be answered from the cache.
func Level(t *testing.T) {
	forced, required := os.Getenv(simd.Env), os.Getenv(RequireEnv)
	if forced != "" && forced != simd.Level() {
		t.Errorf("%s is %q, and the tests run on %s", simd.Env, forced, simd.Level())
	}
	if err := Check(required, simd.Levels(), simd.Err()); err != nil {
		t.Error(err)
	}
}

// Check is the error of a run on a machine with these levels, of which all that required lists must be there, after
// the choice of the level gave err.
func Check(required string, levels []string, err error) error {
	if err != nil {
		return err
	}
	for _, level := range strings.Fields(required) {
		if !slices.Contains(levels, level) {
			return fmt.Errorf("kerneltest: %s promises %q, this machine and build have %s", RequireEnv, level, strings.Join(levels, ", "))
		}
	}
	return nil
}
