package mla

import (
	"bytes"

	"github.com/lamina-ml/lamina/internal/forms"
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
func Norm(x, gamma []float32, epsilon float32) { forms.RoundNone.Norm(x, gamma, epsilon) }

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

// Poison makes the whole workspace NaN, with all bits of each: a call may read nothing there but what
// it has written.
func (w *Workspace) Poison() { poison(w.mem) }

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
