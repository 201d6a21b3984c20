package attend

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/workpool"
)

// numbered is a compute whose sums are the number of their segment, in partitions of one place.
type numbered struct {
	compute.Compute
	group int
	began func(segment, partition int)
}

func (n *numbered) Shape() compute.Shape {
	return compute.Shape{Partition: 1, Group: n.group, Tile: 1, MaskUnit: 1}
}
func (*numbered) PanelFloats(int) int         { return 16 }
func (n *numbered) NewWorker() compute.Worker { return &numberedWorker{of: n} }

type numberedWorker struct {
	compute.Worker
	of *numbered
}

func (*numberedWorker) Carve(*mem.Carver, compute.Geometry) {}

func (w *numberedWorker) Attend(u *compute.Unit) {
	segment := u.Keys.Dense.Base
	w.of.began(segment, u.From)
	for j := range u.Rows {
		u.Sums.M[j], u.Sums.L[j] = 0, 1
		for c := range u.Cols {
			u.Sums.O[j*u.Sums.LD+c] = float32(segment)
		}
	}
}

// TestSlowUnit holds one unit of the first block while workers go on with as many others as they
// can, in blocks of one group and a bit, of several, and of a window that crosses a border: no
// block's finished nodes may be another's, and there must be enough of them.
func TestSlowUnit(t *testing.T) {
	const segments, heads = 120, 32
	for _, c := range []struct{ places, group, slow int }{{4, 2, 3}, {4, 2, 2}, {4, 3, 3}, {6, 4, 5}, {17, 16, 16}, {40, 2, 39}, {40, 3, 20}} {
		for _, workers := range []int{1, 2, 5, 12, 32} {
			kind := &numbered{group: c.group, began: func(segment, partition int) {
				if segment == 0 && partition == c.slow {
					time.Sleep(5 * time.Millisecond)
				}
			}}
			var w Workers
			var v Wave
			layout := func(to *mem.Carver) {
				w.Carve(to, kind, Geometry{Geometry: compute.Geometry{K: 1, Cols: 1, Rows: BlockRows}, Places: c.places}, workers)
				v.Carve(to, &w, WaveGeometry{
					K: 1, Cols: 1, Rows: segments * heads, Panels: 2 * segments, Segments: segments, Places: c.places,
				})
			}
			var count mem.Carver
			layout(&count)
			b, err := mem.Alloc(count.Bytes())
			require.NoError(t, err)
			layout(mem.NewCarver(b.Bytes()))
			dense := make([]compute.Dense, segments)
			v.Segments = v.Segments[:0]
			for i := range segments {
				dense[i].Base = i
				s := Segment{Tokens: 1, Heads: heads, Places: c.places, Row: i * heads, Panel: 2 * i}
				s.Keys[0].Dense = &dense[i]
				v.Segments = append(v.Segments, s)
			}
			pool := workpool.New(workers)
			require.NoError(t, v.Run(context.Background(), pool, Call{K: 1, Cols: 1, Scale: 1, Mask: Mask{Kind: Null}}))
			for row := range segments * heads {
				require.Equal(t, float32(row/heads), v.Sums.O[row*v.Sums.LD], "%+v, %d workers, row %d", c, workers, row)
			}
			require.NoError(t, pool.Close())
			require.NoError(t, b.Free())
		}
	}
}
