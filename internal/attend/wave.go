package attend

import (
	"context"
	"errors"
	"runtime"
	"sort"
	"sync/atomic"
	"time"

	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// errAborted ends the units that wait for one that failed; the pool returns the error of the one
// that failed.
var errAborted = errors.New("attend: another unit of the call failed")

// Wave is segments whose units run in parallel: (block, partition) in order, each ending in sums
// that are merged in the order of the Tree, whoever computed them.
type Wave struct {
	*Workers
	call Call
	ctx  context.Context

	Segments []Segment
	Queries  []float32    // panels [.][Compute.PanelFloats(K)]; a segment starts a new panel
	Sums     compute.Sums // [rows]: while the wave runs, then divided rows
	// Invalid counts entries of index lists that were neither -1 nor a row.
	Invalid atomic.Int64

	blocks []waveBlock
	units  int
	used   int // segments that have been given something
	slots  []slot
	nodes  *nodes // of all trees

	aborted atomic.Bool
	busy    []float64 // of each worker, to plan
	ends    int       // items of the ending
	late    bool      // all merges are left to the ending
}

// waveBlock is a block and its units.
type waveBlock struct {
	block
	unit0     int // its first unit, whose sums are computed in place
	second    int // its first unit of the second list
	unitEnd   int
	itemsEnd  int          // the end of its items of the ending
	next      atomic.Int64 // the unit to merge next
	merging   atomic.Bool
	partition int // of unit0
	waiting   []compute.Sums
}

// slot holds the sums of one unit until they are merged. Unit u uses slot u modulo their number,
// and may begin when the unit that had it is merged.
type slot struct {
	free atomic.Int64 // the unit that may use it
	done atomic.Int64 // 1 + the unit whose sums it holds
	compute.Sums
}

// WaveGeometry sizes a Wave.
type WaveGeometry struct {
	K, Cols  int
	Rows     int // of all its segments
	Panels   int // of their queries
	Segments int
	Places   int // the most places of a sequence
}

// Carve lays out the wave; w are carved already.
func (v *Wave) Carve(c *mem.Carver, w *Workers, g WaveGeometry) {
	v.Workers = w
	v.Queries = mem.Carve[float32](c, g.Panels*w.compute.PanelFloats(g.K))
	v.Sums = compute.CarveSums(c, g.Rows, g.Cols)
	if n := g.Rows/minBlockRows + g.Segments; cap(v.blocks) < n && c.Real() {
		v.blocks = make([]waveBlock, n)
	}
	if cap(v.Segments) < g.Segments && c.Real() {
		v.Segments = make([]Segment, 0, g.Segments)
	}
	workers := w.Len()
	if len(v.busy) < workers && c.Real() {
		v.busy = make([]float64, workers)
	}
	slots := max(2*workers, minSlots)
	if workers == 1 {
		slots = 1 // sums are merged at once, and their memory stays in the caches
	}
	if len(v.slots) != slots {
		v.slots = make([]slot, slots)
	}
	for i := range v.slots {
		v.slots[i].Sums = compute.CarveSums(c, BlockRows, g.Cols)
	}
	// A block that has finished nodes and is not through has a unit that some worker computes or
	// waits for, or it is the one that the next unit belongs to.
	depth := levels(w.shape, g.Places)
	v.nodes = v.nodes.sized((workers + 1) * (depth + 1))
	for i := range v.nodes.all {
		v.nodes.all[i] = compute.CarveSums(c, BlockRows, g.Cols)
	}
	v.blocks = v.blocks[:cap(v.blocks)]
	for i := range v.blocks {
		if b := &v.blocks[i]; len(b.waiting) != depth {
			b.waiting = make([]compute.Sums, depth)
		}
	}
}

// Panels is how many panels of queries the segments take.
func (v *Wave) Panels() int {
	last := &v.Segments[len(v.Segments)-1]
	return last.Panel + compute.Panels(last.rows())
}

// SegmentOf is the number of the segment that a panel belongs to.
func (v *Wave) SegmentOf(panel int) int {
	return sort.Search(len(v.Segments), func(i int) bool { return v.Segments[i].Panel > panel }) - 1
}

// Panel is the memory of a panel.
func (v *Wave) Panel(k, panel int) []float32 { return v.Queries[panel*v.compute.PanelFloats(k):] }

// Run computes the segments, whose queries are packed.
func (v *Wave) Run(ctx context.Context, pool *workpool.Pool, c Call) error {
	v.call, v.ctx = c, ctx
	v.used = max(v.used, len(v.Segments))
	defer func() { v.call, v.ctx = Call{}, nil }()
	v.cut()
	v.aborted.Store(false)
	if err := pool.Run(ctx, v.units, (*unitStage)(v)); err != nil {
		return err
	}
	return pool.Run(ctx, v.ends, (*endStage)(v))
}

// Forget lets go of what the segments of all waves of a call were given.
func (v *Wave) Forget() {
	clear(v.Segments[:v.used])
	v.Segments, v.used = v.Segments[:0], 0
}

// cut cuts the segments into blocks and counts the units. Blocks are as large as their tiles are
// shared, and smaller when workers would idle.
func (v *Wave) cut() {
	most := min(simd.Blocks().BlockRows, BlockRows)
	best, rows := 0.0, most
	for r := most; r >= minBlockRows && v.Len() > 1; r /= 2 {
		v.cutAt(r)
		if t := v.makespan(); r == most || t < best {
			best, rows = t, r
		}
	}
	v.cutAt(rows)
	// Few enough sums to keep: every worker may then merge rows of its own.
	v.late = v.units <= len(v.slots)
	for i := range v.slots {
		v.slots[i].free.Store(int64(i))
		v.slots[i].done.Store(0)
	}
	v.ends = 0
	v.nodes.reset()
	for i := range v.blocks {
		b := &v.blocks[i]
		b.next.Store(int64(b.unit0))
		b.merging.Store(false)
		sums := v.Sums.From(b.seg.Row + b.row0)
		sums.Empty(b.rows)
		b.tree.start(v.shape.Group, b.rows, v.call.Cols, sums, Stack{v.nodes, b.waiting})
		v.ends += (b.rows + endingRows - 1) / endingRows
		b.itemsEnd = v.ends
	}
}

// makespan estimates how long the workers take for the units as the blocks are cut now, in rows
// times places: units start in order, each on the worker that is free first.
func (v *Wave) makespan() float64 {
	const enough = 32 // units a worker, after which the last one matters little
	workers := v.Len()
	var total, worst float64
	busy := v.busy[:workers]
	clear(busy)
	for i := range v.blocks {
		b := &v.blocks[i]
		for u := b.unit0; u < b.unitEnd; u++ {
			places := v.shape.Partition
			if b.seg.Lists == 0 {
				p := b.partition + u - b.unit0
				places = min((p+1)*v.shape.Partition, b.hi) - max(p*v.shape.Partition, b.lo)
			}
			cost := float64(places * (b.rows + tileCost))
			total += cost
			if v.units > enough*workers {
				continue
			}
			first := 0
			for w := range busy {
				if busy[w] < busy[first] {
					first = w
				}
			}
			busy[first] += cost
			worst = max(worst, busy[first])
		}
	}
	return max(worst, total/float64(workers))
}

func (v *Wave) cutAt(maxRows int) {
	v.blocks, v.units = v.blocks[:0], 0
	panel := v.compute.PanelFloats(v.call.K)
	for i := range v.Segments {
		s := &v.Segments[i]
		for r := 0; r < s.rows(); r += maxRows {
			v.blocks = v.blocks[:len(v.blocks)+1]
			b := &v.blocks[len(v.blocks)-1]
			b.seg, b.row0, b.rows = s, r, min(maxRows, s.rows()-r)
			b.queries = v.Queries[(s.Panel+r/simd.Lanes)*panel:]
			b.unit0 = v.units
			b.cutPlaces(v)
			v.units = b.unitEnd
		}
	}
}

// cutPlaces cuts the places of a block into units.
func (b *waveBlock) cutPlaces(v *Wave) {
	s, h := b.seg, b.seg.Heads
	b.lo, b.hi, b.partition = 0, 0, 0
	if s.Lists > 0 {
		n := func(list int) int {
			if list >= s.Lists {
				return 0
			}
			return (len(s.Keys[list].List.Entries) + v.shape.Partition - 1) / v.shape.Partition
		}
		b.second = b.unit0 + n(0)
		b.unitEnd = b.second + n(1)
		return
	}
	b.lo, _ = v.call.Mask.Visible(s.Pos+b.row0/h, s.Places)
	_, b.hi = v.call.Mask.Visible(s.Pos+(b.row0+b.rows-1)/h, s.Places)
	b.unitEnd = b.unit0
	if b.lo < b.hi {
		b.partition = b.lo / v.shape.Partition
		b.unitEnd += (b.hi-1)/v.shape.Partition - b.partition + 1
	}
	b.second = b.unitEnd
}

// of is the list and the partition of a unit.
func (b *waveBlock) of(unit int) (list, partition int) {
	if unit >= b.second {
		return 1, unit - b.second
	}
	return 0, b.partition + unit - b.unit0
}

// take has the tree take the sums of a unit, which the block's first has computed in place.
func (b *waveBlock) take(t *Tree, unit int, s compute.Sums) {
	list, p := b.of(unit)
	if list == 1 && unit == b.second && unit > b.unit0 {
		t.second(b.unitEnd - b.second)
	}
	first := t.enter(p)
	if unit > b.unit0 {
		t.merge(s, first)
	}
}

// unitStage computes units.
type unitStage Wave

func (q *unitStage) Do(worker, unit int) error {
	v := (*Wave)(q)
	merged := false
	defer func() {
		if !merged { // nobody may wait for this unit any longer
			v.aborted.Store(true)
		}
	}()
	b := &v.blocks[sort.Search(len(v.blocks), func(i int) bool { return v.blocks[i].unitEnd > unit })]
	sl := &v.slots[unit%len(v.slots)]
	if err := v.await(sl, unit); err != nil {
		return err
	}
	sums := sl.Sums
	if unit == b.unit0 {
		sums = b.tree.home
	}
	s := &v.all[worker]
	list, p := b.of(unit)
	s.unit.Prefetch, s.unit.Ahead = nil, nil
	if b.seg.Lists == 0 {
		s.ranges(&v.call, &b.block)
	}
	invalid := v.Workers.partition(s, &v.call, &b.block, list, p, sums)
	if b.row0 == 0 { // once for each token, however many blocks its heads make
		v.Invalid.Add(invalid * int64(b.seg.Tokens))
	}
	sl.done.Store(int64(unit) + 1)
	if !v.late {
		v.mergeReady(b)
	}
	merged = true
	return nil
}

// await waits until sl may hold unit's sums: until the unit that had it last, which an earlier
// claim is computing, is merged.
func (v *Wave) await(sl *slot, unit int) error {
	for spin := 0; sl.free.Load() != int64(unit); spin++ {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		if v.aborted.Load() {
			return errAborted
		}
		if spin < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(20 * time.Microsecond)
		}
	}
	return nil
}

// mergeReady merges the units of b that are done, in order. One worker merges at a time; the others
// leave theirs to it, and it looks again after letting go, so that none is left lying.
func (v *Wave) mergeReady(b *waveBlock) {
	ready := func() (*slot, bool) {
		u := b.next.Load()
		sl := &v.slots[int(u)%len(v.slots)]
		return sl, u < int64(b.unitEnd) && sl.done.Load() == u+1
	}
	for {
		if _, ok := ready(); !ok || !b.merging.CompareAndSwap(false, true) {
			return
		}
		for sl, ok := ready(); ok; sl, ok = ready() {
			u := b.next.Load()
			b.take(&b.tree, int(u), sl.Sums)
			if int(u) == b.unitEnd-1 {
				b.tree.root() // its stack is another block's afterwards
			}
			sl.free.Store(u + int64(len(v.slots)))
			b.next.Store(u + 1)
		}
		b.merging.Store(false)
	}
}

// endStage merges what is left and divides: item = endingRows rows of a block.
type endStage Wave

func (q *endStage) Do(worker, item int) error {
	v := (*Wave)(q)
	s := &v.all[worker]
	at := sort.Search(len(v.blocks), func(i int) bool { return v.blocks[i].itemsEnd > item })
	b, item0 := &v.blocks[at], 0
	if at > 0 {
		item0 = v.blocks[at-1].itemsEnd
	}
	from := (item - item0) * endingRows
	to := min(from+endingRows, b.rows)
	sums := b.tree.home.From(from)
	if v.late && b.unit0 < b.unitEnd {
		t := &s.tree
		s.late.nodes.reset()
		t.start(v.shape.Group, to-from, v.call.Cols, sums, s.late)
		for u := b.unit0; u < b.unitEnd; u++ {
			b.take(t, u, v.slots[u%len(v.slots)].From(from))
		}
		t.root()
	}
	s.end(&v.call, &b.block, from, to, sums)
	return nil
}
