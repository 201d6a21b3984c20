package workshop

// work is what an instruction keeps busy.
type work int

const (
	integer work = iota
	load
	store
	prefetch
	branch
	fused  // a fused multiply-add of vectors
	vector // any other instruction of the vector unit
)

// Count is how many instructions of each kind there are.
type Count struct{ FMA, Vector, Load, Store, Prefetch, Integer, Branch int }

func (c Count) total() int {
	return c.FMA + c.Vector + c.Load + c.Store + c.Prefetch + c.Integer + c.Branch
}

// Loop is a loop of a body: what lies between a label and the last branch back to it. Inner ones have none in them.
type Loop struct {
	Label string
	Inner bool
	Count
}

// Loops counts the loops of a body in the order of their labels.
func (a *A) Loops() (loops []Loop) {
	end := -1 // of the loop before
	for i, l := range a.code {
		back := a.lastBranch(l.label, i)
		if l.label == "" || back < 0 {
			continue
		}
		if len(loops) > 0 && back < end {
			loops[len(loops)-1].Inner = false
		}
		loops = append(loops, Loop{l.label, true, count(a.code[i : back+1])})
		end = back
	}
	return loops
}

// lastBranch is the last line from i on that branches to a label, -1 if none does.
func (a *A) lastBranch(label string, i int) int {
	for j := len(a.code) - 1; j >= i; j-- {
		if a.code[j].target == label {
			return j
		}
	}
	return -1
}

func count(code []line) (c Count) {
	of := map[work]*int{integer: &c.Integer, load: &c.Load, store: &c.Store, prefetch: &c.Prefetch, branch: &c.Branch, fused: &c.FMA, vector: &c.Vector}
	for _, l := range code {
		if l.label == "" {
			*of[l.does]++
		}
	}
	return c
}
