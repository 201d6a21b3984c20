package mla

import (
	"bytes"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Replace is what Save writes files with.
var Replace = replace

// LoadBytes is LoadPacked of a file that lies in memory.
func LoadBytes(cfg Config, b []byte, source Fingerprint) (*Layer, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	return readLayer(cfg, bytes.NewReader(b), int64(len(b)), source)
}

// SaveBytes is what Save writes.
func SaveBytes(l *Layer, source Fingerprint) ([]byte, error) {
	var b bytes.Buffer
	err := l.write(&b, source)
	return b.Bytes(), err
}

// Norm is RMSNorm of x in place, with nothing rounded but each operation.
func Norm(x, gamma []float32, epsilon float32) { roundNone.norm(x, gamma, epsilon) }

// Log is the logarithm that a query's factor is made of.
func Log(x float32) float32 { return simd.Log(x) }

// PositionScale is the factor of a query at a position.
func PositionScale(c BlockConfig, pos int) float32 { return c.positionScale(pos) }

// LoadBlockBytes is LoadPackedBlock of a file that lies in memory.
func LoadBlockBytes(cfg BlockConfig, b []byte, source Fingerprint) (*Block, error) {
	core := cfg.Core
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	return readBlock(cfg, core, bytes.NewReader(b), int64(len(b)), source)
}

// SaveBlockBytes is what Block.Save writes.
func SaveBlockBytes(l *Block, source Fingerprint) ([]byte, error) {
	var b bytes.Buffer
	err := l.write(&b, source)
	return b.Bytes(), err
}

// ScoreCall and ValueCall cut the work of a tile into calls.
var ScoreCall, ValueCall = scoreCall, valueCall

// AskedRows is what a block of Prefill asks for ahead, rows of a head each by the first and their number, and the block
// after it: its head and what it sees.
type AskedRows struct {
	Head, Tok, Rows, Lo, Hi int
	Keys, Values, Queries   [2]int
}

// AskedAhead is what the blocks of a call in the second arithmetic ask for, each for the one after it. k and v hold
// heads outside and rows inside, in bf16.
func AskedAhead(c *Core, out, q, k, v Rows, a PrefillArgs) ([]AskedRows, error) {
	p := c.plan
	e := &p.pre
	e.out, e.q, e.k, e.v, e.PrefillArgs = out, q, k, v, a
	defer e.forget()
	if err := e.check(p); err != nil {
		return nil, err
	}
	var all []AskedRows
	for item := range e.blocks*p.cfg.Heads - 1 {
		b, n := e.block(item), e.block(item+1)
		_, hi := p.cfg.Mask.visible(b.pos+b.rows-1, b.keys)
		asked := e.aheadOfMany(p, item, hi)
		place := func(s strip, of Rows, from, ld int) [2]int {
			if s.rows == 0 {
				return [2]int{}
			}
			return [2]int{(2*(of.Len()-from) - len(s.x)) / (2 * ld), s.rows}
		}
		lo, _ := p.cfg.Mask.visible(n.pos, n.keys)
		_, end := p.cfg.Mask.visible(n.pos+n.rows-1, n.keys)
		all = append(all, AskedRows{
			Head: n.head, Tok: n.tok, Rows: n.rows, Lo: n.key0 + lo, Hi: n.key0 + end,
			Keys:    place(asked.rows[0], k, n.head*e.StrideK, e.LdK),
			Values:  place(asked.rows[1], v, n.head*e.StrideV, e.LdV),
			Queries: place(asked.rows[2], q, n.head*p.cfg.Width(), p.cfg.Heads*p.cfg.Width()),
		})
	}
	return all, nil
}

// Pieces are those that so many calls take of n bytes, which lie in rows of length bytes, and whether rows are left for
// others to ask.
func Pieces(n, length, calls int) (pieces []int, rows bool) {
	var a ahead
	a.rows[0] = strip{make([]byte, n), length, length, n / length}
	a.begin(1, calls)
	for range calls {
		pieces = append(pieces, len(a.take()))
	}
	return pieces, a.rows[0].rows > 0
}

// Parts are the rows of the parts of n rows.
func Parts(n, parts int) (rows []int) {
	s := strip{make([]byte, 64*n), 64, 64, n}
	for i := range parts {
		rows = append(rows, s.part(i, parts).rows)
	}
	return rows
}

// Poison makes the whole workspace NaN, with all bits of each: a call may read nothing there but what it has written.
func (p *Plan) Poison() { poison(p.mem) }

// Poison is Plan.Poison of the workspace of a block, the core's included.
func (p *BlockPlan) Poison() {
	p.plan.Poison()
	poison(p.mem)
}

// Poison is Plan.Poison of the core's plan.
func (c *Core) Poison() { c.plan.Poison() }

// CheckReach tests whether physical indices name every one of so many rows.
func CheckReach(rows int) error { return (&list{name: "Indices"}).checkReach(rows) }

func poison(b *mem.Block) {
	words := mem.Cast[uint32](b.Bytes())
	if len(words) == 0 {
		return
	}
	words[0] = 0x7FFFFFFF
	for n := 1; n < len(words); n *= 2 {
		copy(words[n:], words[:n])
	}
}
