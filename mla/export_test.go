package mla

import (
	"bytes"

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
