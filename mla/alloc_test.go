package mla_test

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// steadyCall is a call that is made again and again.
type steadyCall struct {
	name string
	run  func() error
}

// steadyCalls are all that allocate nothing: a layer, a block and a core of small sizes.
func steadyCalls(t *testing.T, a mla.Compute, pool *mla.Pool) []steadyCall {
	ctx := context.Background()
	w := light([]int{70, 3}, []int{1, 2})
	w.cfg.Compute = a
	m := w.make(t)
	p := m.plan(t, m.limits(), pool)
	rows := m.tokens * m.cfg.Heads
	b := m.batch()
	b.LSE, b.MaxLogit, b.Sink = make([]float32, rows), make([]float32, rows), make([]float32, m.cfg.Heads)
	q, kv, out := rowsOf(m.kv, m.q), rowsOf(m.kv, m.kvs), rowsOf(m.kv, make([]float32, rows*m.cfg.V))
	forms := func(f mla.Form) mla.Batch {
		b := b
		b.Forms = []mla.Form{f, f}
		return b
	}
	absorbed, expanded := forms(mla.FormAbsorbed), forms(mla.FormExpanded)

	bw := lightBlock([]int{70, 3}, []int{1, 2})
	bw.cfg.Compute = a
	mb := bw.make(t)
	bp := mb.plan(t, pool)
	bb := mb.batch()
	states, hidden := rowsOf("f32", mb.states), rowsOf("f32", make([]float32, mb.tokens*mb.hidden))

	const h, width, v, n = 2, 24, 16, 70
	cache, _ := filled(t, slicesOf(n*width), width, 9, kvpaged.F32)
	core, err := newCore(mla.CoreConfig{Heads: h, Width: width, V: v, Scale: 0.2, Compute: a}, mla.Limits{Tokens: 4, Seqs: 2, Context: n}, pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, core.Close()) })
	seq := cacheSeq(t, cache, n)
	cq, co := mla.RowsF32(slicesOf(2*h*width)), mla.RowsF32(make([]float32, 2*h*v))
	dense := mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, 2}, LSE: make([]float32, 2*h)}
	ready := &mla.PrefillArgs{LSE: make([]float32, 2*h)}
	keys, vals := mla.RowsF32(slicesOf(n*h*width)), mla.RowsF32(slicesOf(n*h*v))
	lists := []int32{0, 5, -1, 69, 7, 3, 3, 12}
	sparse := &mla.SparseDecodeArgs{Seqs: 2, Tokens: 1, Cache: cache, Indices: lists, Stride: 4, LSE: make([]float32, 2*h)}
	plain := &mla.SparsePrefillArgs{Indices: lists, Stride: 4, LSE: make([]float32, 2*h)}
	flat := mla.RowsF32(slicesOf(n * width))

	return []steadyCall{
		{"Forward, absorbed", func() error { return p.Forward(ctx, out, q, kv, absorbed) }},
		{"Forward, expanded", func() error { return p.Forward(ctx, out, q, kv, expanded) }},
		{"Block.Forward", func() error { return bp.Forward(ctx, hidden, states, bb) }},
		{"Core.Decode", func() error { return core.Decode(ctx, co, cq, dense) }},
		{"Core.Prefill", func() error { return core.Prefill(ctx, co, cq, keys, vals, ready) }},
		{"Core.SparseDecode", func() error { return core.SparseDecode(ctx, co, cq, sparse) }},
		{"Core.SparsePrefill", func() error { return core.SparsePrefill(ctx, co, cq, flat, plain) }},
	}
}

// slicesOf is n values of no importance.
func slicesOf(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%7) - 3
	}
	return x
}

// TestManyCallsAllocateNothing makes every call a thousand times, on as many workers as never leave the runtime without a
// record of a goroutine that waits, where AllocsPerRun must be 0; and on more, where all that is allocated must be such
// records: so says the profile of every single allocation.
func TestManyCallsAllocateNothing(t *testing.T) {
	runs, counts := 1000, []int{1, 2, 3, 7}
	if testing.Short() {
		runs, counts = 10, []int{1, 3}
	}
	for _, workers := range counts {
		pool := mla.NewPool(workers)
		for _, a := range computes {
			calls := steadyCalls(t, a, pool)
			for _, c := range calls {
				call := func() {
					if err := c.run(); err != nil {
						t.Error(err)
					}
				}
				if call(); workers <= 2 {
					require.Zero(t, testing.AllocsPerRun(runs, call), "%s, %v, %d workers", c.name, a, workers)
				}
			}
			for _, stack := range ourAllocations(func() {
				for range min(runs, 200) {
					for _, c := range calls {
						if err := c.run(); err != nil {
							t.Error(err)
						}
					}
				}
			}) {
				require.Regexp(t, "runtime.acquireSudog|runtime.timeSleep|time.Sleep", stack, "%v, %d workers", a, workers)
			}
		}
		require.NoError(t, pool.Close())
	}
}

// ourAllocations are the stacks of everything that f allocates below the library's own functions.
func ourAllocations(f func()) (stacks []string) {
	old := runtime.MemProfileRate
	defer func() { runtime.MemProfileRate = old }()
	before := allocated()
	runtime.MemProfileRate = 1
	f()
	runtime.MemProfileRate = old
	for stack, n := range allocated() {
		library := false
		for _, name := range strings.Fields(stack) {
			library = library || strings.HasPrefix(name, "github.com/lamina-ml/lamina/") && !strings.Contains(name, "mla_test.")
		}
		if library && n > before[stack] {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// allocated is how many objects have been allocated at each stack, as functions from the innermost on, while they were counted.
func allocated() map[string]int64 {
	for range 3 { // an allocation is in the profile after the second collection
		runtime.GC()
	}
	records := make([]runtime.MemProfileRecord, 1000)
	n, ok := runtime.MemProfile(records, true)
	for !ok {
		records = make([]runtime.MemProfileRecord, 2*n)
		n, ok = runtime.MemProfile(records, true)
	}
	all := map[string]int64{}
	for _, r := range records[:n] {
		var names []string
		frames := runtime.CallersFrames(r.Stack())
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			names = append(names, frame.Function)
		}
		all[strings.Join(names, " ")] += r.AllocObjects
	}
	return all
}
