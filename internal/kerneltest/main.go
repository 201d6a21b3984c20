package kerneltest

import (
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

// Main is the TestMain of every package that computes. It prints the instruction set that the tests run on, and fails
// the run if LAMINA_SIMD names one that cannot be had or LAMINA_SIMD_REQUIRE one that is missing.
func Main(m *testing.M) {
	fmt.Println("simd:", simd.Level())
	if err := Check(os.Getenv(RequireEnv), simd.Levels(), simd.Err()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
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
