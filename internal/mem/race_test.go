//go:build race && lamina_heap

package mem_test

import (
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/mem"
)

// TestRaceDetectorWatchesBlocks runs itself once more, to race, and wants the detector's report.
func TestRaceDetectorWatchesBlocks(t *testing.T) {
	const racing = "LAMINA_TEST_RACE"
	if os.Getenv(racing) != "" {
		b, err := mem.Alloc(1 << 20)
		require.NoError(t, err)
		p := b.Bytes()
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() { p[1000] = byte(i) })
		}
		wg.Wait()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), racing+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s", out)
	require.Contains(t, string(out), "WARNING: DATA RACE")
}
