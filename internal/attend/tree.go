package attend

import (
	"math/bits"
	"sync"

	"github.com/lamina-ml/lamina/internal/compute"
)

// Tree merges the sums of the partitions of some rows, which come in order (docs/arithmetic.md):
//
//	partitions   0 1 ... 15 | 16 ... 31 | 32 ... 47 | 48 ...      from the left within a group
//	                 g0     |     g1    |     g2    |  g3
//	                   \     /             \       /
//	                   (1, 0)               (1, 1)                groups up a binary tree
//	                          \            /
//	                            (2, 0) ...                        a missing one is empty
//
// Groups are at absolute places, so any aligned run of 2^k groups has one result, wherever it is
// computed. The open group is in cur; finished nodes wait on a stack, one for each bit of the
// number of finished groups at most. Nothing is copied: memory that a merge frees holds the next
// group, and the leftmost node, in which the result ends, is in the memory that the tree began
// with.
type Tree struct {
	rows, cols int
	group      int // partitions of a group
	home, cur  compute.Sums
	open       int // the group that cur holds, -1: none
	stack      Stack
	live       uint64 // levels on the stack, the lowest on top
	lists      bool   // home holds the result of the first of two lists
}

// Stack is the memory of a Tree for finished nodes.
type Stack struct {
	nodes   *nodes
	waiting []compute.Sums // of levels of the tree: those that wait, the highest level first
}

// nodes are memory of finished nodes, which trees take and give back.
type nodes struct {
	mu   sync.Mutex
	all  []compute.Sums
	free []compute.Sums
}

// sized is n with room for so many nodes.
func (n *nodes) sized(size int) *nodes {
	if n != nil && len(n.all) == size {
		return n
	}
	return &nodes{all: make([]compute.Sums, size), free: make([]compute.Sums, 0, size)}
}

// reset makes all nodes free, whatever a call that was cut short has left.
func (n *nodes) reset() { n.free = append(n.free[:0], n.all...) }

func (n *nodes) take() compute.Sums {
	n.mu.Lock()
	defer n.mu.Unlock()
	last := len(n.free) - 1
	s := n.free[last]
	n.free = n.free[:last]
	return s
}

func (n *nodes) give(s compute.Sums) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.free = append(n.free, s)
}

// levels is how many finished nodes wait at most beside the open group, for so many places.
func levels(shape compute.Shape, places int) int {
	groups := (places + shape.Partition*shape.Group - 1) / (shape.Partition * shape.Group)
	return bits.Len(uint(max(groups, 1) - 1))
}

// start makes t empty, for rows rows of cols values whose result is to be in home.
func (t *Tree) start(group, rows, cols int, home compute.Sums, stack Stack) {
	*t = Tree{rows: rows, cols: cols, group: group, home: home, cur: home, open: -1, stack: stack}
}

// enter goes on to partition p and tells whether it is the first of its group: its sums may then be
// computed in cur. Otherwise, or if they are elsewhere, merge takes them.
func (t *Tree) enter(p int) bool {
	g := p / t.group
	if g == t.open {
		return false
	}
	if t.open >= 0 {
		t.push()
	}
	t.open = g
	return true
}

// merge takes the sums of the partition that was entered, unless they are in cur.
func (t *Tree) merge(s compute.Sums, first bool) {
	if first {
		t.cur.Set(s, t.rows, t.cols)
	} else {
		t.cur.Merge(s, t.rows, t.cols)
	}
}

// pop takes the finished node of the lowest level off the stack.
func (t *Tree) pop() compute.Sums {
	t.live &= t.live - 1
	return t.stack.waiting[bits.OnesCount64(t.live)]
}

// push makes cur a finished node, which completes those of the levels above it, and gives cur other
// memory.
func (t *Tree) push() {
	node, level := t.cur, 0
	for ; t.open>>level&1 == 1; level++ {
		if t.live>>level&1 == 0 {
			continue // its left neighbour is empty
		}
		left := t.pop()
		left.Merge(node, t.rows, t.cols)
		t.stack.nodes.give(node)
		node = left
	}
	t.stack.waiting[bits.OnesCount64(t.live)] = node
	t.live |= 1 << level
	t.cur = t.stack.nodes.take()
}

// root makes cur the result, in home.
func (t *Tree) root() {
	if t.open < 0 {
		t.cur.Empty(t.rows)
	}
	node := t.cur
	for t.live != 0 {
		left := t.pop()
		left.Merge(node, t.rows, t.cols)
		t.stack.nodes.give(node)
		node = left
	}
	if t.lists {
		t.home.Merge(node, t.rows, t.cols)
		t.stack.nodes.give(node)
		t.lists = false
	}
	t.cur = t.home
}

// second ends the first of two lists, whose tree is its own; the second one has so many partitions.
func (t *Tree) second(partitions int) {
	if t.open < 0 {
		return // the first was empty
	}
	t.root()
	if partitions == 1 {
		t.open = 0 // its only one is merged into the result of the first
		return
	}
	t.cur, t.lists, t.open = t.stack.nodes.take(), true, -1
}
