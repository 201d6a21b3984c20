package kerneltest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Mapped reports whether an address lies in a mapping of this process.
func Mapped(t testing.TB, addr uintptr) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		var lo, hi uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &lo, &hi); err == nil && lo <= addr && addr < hi {
			return true
		}
	}
	return false
}

// Unmapped waits until the garbage collector has had the memory at addr unmapped, which nobody holds any more.
func Unmapped(t testing.TB, addr uintptr) {
	t.Helper()
	require.Eventually(t, func() bool { runtime.GC(); return !Mapped(t, addr) }, 10*time.Second, time.Millisecond)
}
