package bench

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/klauspost/cpuid/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// fakeMeter measures what rates say of a limit, in G/s on one thread and on more, one after the
// other; the last ones stay.
func fakeMeter(cores int, rates map[string][][2]float64) (m *meter, asked map[knownLimit]int) {
	asked = map[knownLimit]int{}
	m = &meter{
		cores: cores, known: map[knownLimit]float64{}, first: map[knownLimit]float64{}, doubts: map[knownLimit]int{},
	}
	m.probe = func(name string, threads int) float64 {
		key := knownLimit{name, threads}
		all := rates[name]
		if len(all) == 0 {
			return 0
		}
		pair := all[min(asked[key], len(all)-1)]
		asked[key]++
		return 1e9 * pair[min(threads, 2)-1]
	}
	return m, asked
}

// quiet is a machine that does the same whenever it is asked.
func quiet() map[string][][2]float64 {
	return map[string][][2]float64{
		limitFMA: {{100, 200}}, limitPair: {{190, 380}}, limitDRAM: {{20, 35}}, limitL3: {{50, 90}}, limitL2: {{100, 200}}, limitL1: {{200, 0}},
	}
}

// What cannot be is not a limit: a cache slower than the memory behind it, two threads slower than one.
func TestLimitsInOrder(t *testing.T) {
	rates := quiet()
	rates[limitL3], rates[limitFMA] = [][2]float64{{15, 30}}, [][2]float64{{100, 80}}
	rates[limitL1] = [][2]float64{{90, 0}}
	m, _ := fakeMeter(2, rates)
	got := m.machine(2)
	assert.Equal(t, []float64{20, 35, 20, 35, 100, 200, 100}, []float64{got.DRAM1, got.DRAMN, got.L3, got.L3N, got.L2, got.L2N, got.L1})
	assert.Equal(t, []float64{100, 100}, []float64{got.Peak1, got.PeakN})
	l := m.ended(got, nil)
	require.Len(t, l.Warnings, 5)
	assert.Equal(t, []string{
		"fma on 2 threads measured 80 GFLOP/s, less than on 1 thread: 100 is taken",
		"l3 on 1 thread measured 15 GB/s, less than dram's: 20 is taken",
		"l3 on 2 threads measured 30 GB/s, less than dram's: 35 is taken",
		"l1 on 1 thread measured 90 GB/s, less than l2's: 100 is taken",
	}, l.Warnings[:4])

	delete(rates, limitL3) // no cache of this machine, and so no limit
	m, _ = fakeMeter(2, rates)
	got = m.machine(2)
	assert.Zero(t, got.L3+got.L3N)
	assert.NotContains(t, m.ended(got, nil).Best, "l3_gbps_1")
}

// Threads that wait for a core add nothing to a limit.
func TestLimitsOfManyThreads(t *testing.T) {
	m, asked := fakeMeter(2, quiet())
	got := m.machine(9)
	assert.Equal(t, 9, got.Threads)
	assert.Equal(t, []float64{100, 200, 35}, []float64{got.Peak1, got.PeakN, got.DRAMN})
	for key := range asked {
		assert.LessOrEqual(t, key.threads, 2)
	}
	assert.LessOrEqual(t, Cores(), 1<<16)
	assert.Positive(t, Cores())
}

func TestLimitsOfAQuietMachine(t *testing.T) {
	m, _ := fakeMeter(2, quiet())
	first := m.machine(2)
	l := m.ended(first, []Row{{MS: 10, MSMedian: 11, Share: 0.9, Limit: limitFMA, Threads: 1, GFlops: 90}, {MS: 10, MSMedian: 13}})
	assert.Empty(t, l.Warnings)
	assert.Equal(t, "limits", l.Op)
	assert.Equal(t, l.First, l.Last)
	assert.Equal(t, l.First, l.Best)
	assert.Len(t, l.Best, 11)
	assert.Equal(t, []float64{100, 20, 35}, []float64{l.Best["peak_gflops_1"], l.Best["dram_gbps_1"], l.Best["dram_gbps_n"]})
	assert.InDelta(t, 0.1, l.Spread, 1e-9)
	assert.InDelta(t, 0.3, l.SpreadMost, 1e-9)
	assert.Equal(t, first.Limits(), l.String())
	text, err := json.Marshal(first)
	require.NoError(t, err)
	for name := range l.Best {
		assert.Contains(t, string(text), `"`+name+`":`, "names of Machine's fields")
	}
}

// A machine that was busy while its limits were measured first, or last.
func TestLimitsOfABusyMachine(t *testing.T) {
	rates := quiet()
	rates[limitFMA] = [][2]float64{{70, 150}, {100, 190}}
	rates[limitDRAM] = [][2]float64{{20, 35}, {20, 30}}
	m, _ := fakeMeter(2, rates)
	first := m.machine(2)
	before, after := 1.5, 2.25
	first.Load, first.Cores = &before, 2
	rows := []Row{
		{Op: Decode, Threads: 1, MS: 10, MSMedian: 12, GFlops: 84, Share: 1.2, Limit: limitFMA, Doubtful: true},
		{Op: Gemm, Threads: 2, MS: 10, MSMedian: 10, GBps: 20, Share: 0.571, Limit: limitDRAM},
	}
	l := m.ended(first, rows)
	l.LoadAfter, l.Warnings = &after, nil
	l.warn(m, rows)
	assert.Equal(t, 1, l.Doubtful)
	assert.Equal(t, []string{
		"fma on 1 thread: 70 GFLOP/s first, 100 last",
		"fma on 2 threads: 150 GFLOP/s first, 190 last",
		"dram on 2 threads: 35 GB/s first, 30 last",
		"shares above are too high by up to 43%: by the best limits 120.0% of fma of decode on 1 thread is 84.0%",
		"1 row above 105% of the limit: marked with ?",
		"load average 1.50 before and 2.25 after, on 2 cores; the median of a row's repetitions is 0% above the best, at most 20%",
	}, l.Warnings)
	assert.Equal(t, 70.0, l.First["peak_gflops_1"])
	assert.Equal(t, 100.0, l.Last["peak_gflops_1"])
	assert.Equal(t, 100.0, l.Best["peak_gflops_1"])
	assert.Equal(t, 35.0, l.Best["dram_gbps_n"], "the best of both, whichever it was")
	l.LoadBefore, l.Warnings = nil, nil
	l.warn(m, rows)
	assert.Equal(t, "the median of a row's repetitions is 0% above the best, at most 20%", l.Warnings[5])

	m, _ = fakeMeter(1, rates) // one core: on one thread and on all is the same, and said once
	one := m.ended(m.machine(2), nil)
	require.Len(t, one.Warnings, 2)
	assert.Equal(t, "fma on 1 thread: 70 GFLOP/s first, 100 last", one.Warnings[0])
	assert.Equal(t, one.Last["peak_gflops_1"], one.Last["peak_gflops_n"])
}

// A row above its limit has the limit measured again, a few times; one that stays above it is marked.
func TestShareAboveTheLimit(t *testing.T) {
	rates := quiet()
	rates[limitFMA] = [][2]float64{{35, 70}, {100, 200}}
	m, asked := fakeMeter(2, rates)
	s := gemmOf(64, 1000, 1000)
	s.Threads = 1
	at := func(gflops float64) float64 { return s.Flops() / gflops / 1e9 } // seconds
	share, name, doubtful := m.share(s, 1e6, 1<<40, at(95))
	assert.InDelta(t, 0.95, share, 1e-9)
	assert.Equal(t, limitFMA, name)
	assert.False(t, doubtful)
	assert.Equal(t, 2, asked[knownLimit{limitFMA, 1}])

	share, _, doubtful = m.share(s, 1e6, 1<<40, at(104))
	assert.InDelta(t, 1.04, share, 1e-9)
	assert.False(t, doubtful)
	for range 5 {
		share, _, doubtful = m.share(s, 1e6, 1<<40, at(106))
		assert.InDelta(t, 1.06, share, 1e-9)
		assert.True(t, doubtful)
	}
	assert.Equal(t, 4, asked[knownLimit{limitFMA, 1}], "three times for the sake of rows, and no more")

	// Pairs do twice as much as the limit of their rows, and no more than pairs can.
	m, asked = fakeMeter(2, quiet())
	s.Arithmetic = mla.ComputeBF16
	share, _, doubtful = m.share(s, 1e6, 1<<40, at(185))
	assert.InDelta(t, 1.85, share, 1e-9)
	assert.False(t, doubtful)
	_, _, doubtful = m.share(s, 1e6, 1<<40, at(201))
	assert.True(t, doubtful)
	assert.Equal(t, 2, asked[knownLimit{limitPair, 1}])

	// Rows from memory have no such room.
	_, name, doubtful = m.share(s, 1e9, 1<<40, 1e9/22e9)
	assert.Equal(t, limitDRAM, name)
	assert.True(t, doubtful)
}

// A run on a machine that is busy at its beginning: the rows and the last line say so.
func TestRunOnABusyMachine(t *testing.T) {
	o := tiny()
	o.Ctx, o.Batch, o.M, o.Threads, o.KV, o.Ops = []int{70}, []int{1}, []int{7}, []int{1, 2}, []kvpaged.Format{kvpaged.BF16}, []Op{Decode}
	slow, asked := fakeMeter(0, map[string][][2]float64{
		limitFMA: {{1e-3, 1e-3}, {1e-3, 1e-3}, {1e9, 1e9}}, limitPair: {{1, 2}}, limitDRAM: {{1e9, 1e9}}, limitL3: {{1e9, 1e9}}, limitL2: {{1e9, 1e9}}, limitL1: {{1e9, 0}},
	})
	o.probe = slow.probe
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	require.Len(t, c.rows, 2)
	require.Len(t, c.limits, 1)
	assert.True(t, c.rows[0].Doubtful)
	assert.Greater(t, c.rows[0].Share, 1.05)
	l := c.limits[0]
	assert.Positive(t, l.Doubtful)
	assert.NotEmpty(t, l.Warnings)
	assert.Greater(t, l.Best["peak_gflops_1"], l.First["peak_gflops_1"])
	assert.GreaterOrEqual(t, asked[knownLimit{limitFMA, 1}], 3)
	text, err := json.Marshal(l)
	require.NoError(t, err)
	var row map[string]any
	require.NoError(t, json.Unmarshal(text, &row))
	assert.Equal(t, "limits", row["op"])
	for _, k := range []string{"threads", "best", "first", "last", "spread", "spread_most", "doubtful", "warnings"} {
		assert.Contains(t, row, k)
	}
}

// Where a cache has a size, what stays in it is measured by it.
func TestLimitOfCaches(t *testing.T) {
	m, _ := fakeMeter(2, quiet())
	one := gemmOf(1, 1000, 1000)
	one.Threads = 2
	if cache := cpuid.CPU.Cache; cache.L2 > 1000 {
		seconds, name := m.limit(one, 2e6, 1000)
		assert.Equal(t, limitL2, name)
		assert.InDelta(t, 1e-5, seconds, 1e-12)
	}
	seconds, name := m.limit(one, 3.5e6, math.MaxInt64)
	assert.Equal(t, limitDRAM, name)
	assert.InDelta(t, 1e-4, seconds, 1e-12)
}

func TestParseLoad(t *testing.T) {
	for text, want := range map[string]float64{"0.00 0.10 0.09 1/94 11233\n": 0, "12.50 1 1 1/1 1": 12.5} {
		got := parseLoad(text)
		require.NotNil(t, got, text)
		assert.Equal(t, want, *got)
	}
	for _, text := range []string{"", "\n", "load 1", "NaN 1 1", "-1 1 1"} {
		assert.Nil(t, parseLoad(text), text)
	}
}
