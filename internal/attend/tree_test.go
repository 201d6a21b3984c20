package attend

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

const treeRows, treeCols, treeGroup = 3, 5, 4

func newSums() compute.Sums {
	ld := compute.Stride(treeCols)
	s := compute.Sums{M: make([]float32, treeRows), L: make([]float32, treeRows), O: make([]float32, treeRows*ld), LD: ld}
	s.Empty(treeRows)
	return s
}

func randomSums(r *rand.Rand) compute.Sums {
	s := newSums()
	for j := range treeRows {
		if r.IntN(5) == 0 {
			continue // this row saw nothing
		}
		s.M[j], s.L[j] = float32(r.NormFloat64()), 1+r.Float32()
		for c := range treeCols {
			s.O[j*s.LD+c] = float32(r.NormFloat64())
		}
	}
	return s
}

// node is the definition of docs/arithmetic.md: node (0, g) is the partitions of group g from the
// left, node (k, i) merges (k-1, 2i) and (k-1, 2i+1).
func node(k, i int, parts map[int]compute.Sums) compute.Sums {
	to := newSums()
	merge := func(s compute.Sums) {
		ref.FoldRows(to.O, to.LD, to.M, to.L, s.O, s.LD, s.M, s.L, treeRows, treeCols)
	}
	if k == 0 {
		for p := i * treeGroup; p < (i+1)*treeGroup; p++ {
			if s, ok := parts[p]; ok {
				merge(s)
			}
		}
		return to
	}
	merge(node(k-1, 2*i, parts))
	merge(node(k-1, 2*i+1, parts))
	return to
}

// TestTree compares the tree as it comes with its definition, over every range of partitions, with
// rows and whole partitions that saw nothing, and with a stack of no more nodes than it is given.
func TestTree(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	most := 9 * treeGroup
	if testing.Short() {
		most = 5 * treeGroup
	}
	for from := range most {
		for to := from + 1; to <= most; to++ {
			parts := map[int]compute.Sums{}
			for p := from; p < to; p++ {
				parts[p] = randomSums(r)
			}
			want := node(5, 0, parts)
			groups := (to-1)/treeGroup - from/treeGroup + 1
			got := newSums()
			var tree Tree
			depth := levels(compute.Shape{Partition: 1, Group: 1}, groups)
			stack := Stack{new(nodes).sized(depth), make([]compute.Sums, depth)}
			for i := range stack.nodes.all {
				stack.nodes.all[i] = newSums()
			}
			stack.nodes.reset()
			tree.start(treeGroup, treeRows, treeCols, got, stack)
			for p := from; p < to; p++ {
				tree.merge(parts[p], tree.enter(p))
			}
			tree.root()
			for j := range treeRows {
				require.Equal(t, want.M[j], got.M[j], fmt.Sprint(from, to))
				if want.M[j] == compute.NegInf {
					continue
				}
				require.Equal(t, want.L[j], got.L[j], fmt.Sprint(from, to))
				require.Equal(t, want.O[j*want.LD:][:treeCols], got.O[j*got.LD:][:treeCols], fmt.Sprint(from, to))
			}
		}
	}
}

// TestTwoLists compares two lists of every number of partitions with their definition: each has a
// tree of its own, and the second's result is merged into the first's.
func TestTwoLists(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	most := 4*treeGroup + 2
	if testing.Short() {
		most = 2*treeGroup + 1
	}
	for n := range most {
		for m := range most {
			var parts [2]map[int]compute.Sums
			var units []compute.Sums
			for list, count := range []int{n, m} {
				parts[list] = map[int]compute.Sums{}
				for p := range count {
					s := randomSums(r)
					parts[list][p] = s
					units = append(units, s)
				}
			}
			want := node(3, 0, parts[0])
			second := node(3, 0, parts[1])
			ref.FoldRows(want.O, want.LD, want.M, want.L, second.O, second.LD, second.M, second.L, treeRows, treeCols)

			depth := levels(compute.Shape{Partition: 1, Group: treeGroup}, most)
			stack := Stack{new(nodes).sized(depth + 1), make([]compute.Sums, depth)}
			for i := range stack.nodes.all {
				stack.nodes.all[i] = newSums()
			}
			stack.nodes.reset()
			got := newSums()
			b := waveBlock{second: n, unitEnd: n + m}
			var tree Tree
			tree.start(treeGroup, treeRows, treeCols, got, stack)
			for u, s := range units {
				if u == 0 {
					got.Set(s, treeRows, treeCols) // as the first unit is computed in place
				}
				b.take(&tree, u, s)
			}
			tree.root()
			require.Len(t, stack.nodes.free, depth+1, "all nodes are given back")
			for j := range treeRows {
				require.Equal(t, want.M[j], got.M[j], fmt.Sprint(n, m))
				if want.M[j] == compute.NegInf {
					continue
				}
				require.Equal(t, want.L[j], got.L[j], fmt.Sprint(n, m))
				require.Equal(t, want.O[j*want.LD:][:treeCols], got.O[j*got.LD:][:treeCols], fmt.Sprint(n, m))
			}
		}
	}
}
