package mla

import (
	"errors"
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
)

// Weights are the projections of a layer and its latent norm. Give either KVB,
// as checkpoints hold it, or K, UK and UV, as MAX's operator takes them. Any
// element type and any block scales that fp8.Matrix takes will do. New packs
// copies: nothing of the caller's is retained.
type Weights struct {
	// KVB is kv_b_proj, [H*(N+V), R]: per head N rows of W_UK, then V rows of W_UV.
	KVB fp8.Matrix

	// K is w_k, [H*N, R]: the rows W_UK of every head.
	K fp8.Matrix
	// UK is w_uk, H matrices [R, N]: the transpose of w_k per head. If nil it
	// is made from K; if K is empty, K is made from it.
	UK []fp8.Matrix
	// UV is w_uv, H matrices [V, R].
	UV []fp8.Matrix

	// Gamma is kv_norm_gamma, [R], bf16, f16 or f32.
	Gamma Rows

	progress func(codes int) // of packing, as in fp8.PackOptions; nil for none
}

// packed holds the three products of a layer, one matrix a head.
type packed struct {
	uk *fp8.Packed // [R, N]: absorbed query
	k  *fp8.Packed // [N, R]: expanded key
	uv *fp8.Packed // [V, R]: value, both forms

	scaled         bool
	nBlock, kBlock int // of the scales
}

func (p *packed) all() [3]*fp8.Packed { return [3]*fp8.Packed{p.uk, p.k, p.uv} }

// acquire leases all three for one Forward; release gives them back.
func (p *packed) acquire() error {
	ws := p.all()
	for i, w := range ws {
		if err := w.Acquire(); err != nil {
			for _, held := range ws[:i] {
				held.Release()
			}
			return err
		}
	}
	return nil
}

// release goes backwards, so that whoever finds uk free finds all of them free.
func (p *packed) release() {
	p.uv.Release()
	p.k.Release()
	p.uk.Release()
}

func (p *packed) close() error {
	var errs []error
	for _, w := range p.all() {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *packed) bytes() int64 {
	var n int64
	for _, w := range p.all() {
		n += w.Bytes()
	}
	return n
}

// heads cuts the weights into one [N,R], [R,N] and [V,R] matrix per head.
func (w Weights) heads(c Config) (k, uk, uv []fp8.Matrix, err error) {
	if w.KVB.Rows() != 0 {
		if w.K.Rows() != 0 || w.UK != nil || w.UV != nil {
			return nil, nil, nil, fmt.Errorf("%w: KVB is given, and K, UK or UV as well", ErrWeights)
		}
		return splitKVB(c, w.KVB)
	}
	switch {
	case w.UV == nil:
		return nil, nil, nil, fmt.Errorf("%w: UV is missing (and KVB is not given)", ErrWeights)
	case w.K.Rows() == 0 && w.UK == nil:
		return nil, nil, nil, fmt.Errorf("%w: K and UK are both missing (and KVB is not given)", ErrWeights)
	}
	if w.K.Rows() != 0 {
		if err := wantShape("K", w.K, c.Heads*c.Nope, c.Latent); err != nil {
			return nil, nil, nil, err
		}
		for h := range c.Heads {
			m, err := w.K.Slice(h*c.Nope, (h+1)*c.Nope)
			if err != nil {
				return nil, nil, nil, fmt.Errorf("%w: K: %w", ErrWeights, err)
			}
			k = append(k, m)
		}
	}
	if uk = w.UK; uk == nil {
		uk = transposed(k)
	} else if err = wantHeads("UK", uk, c.Heads, c.Latent, c.Nope); err == nil && k == nil {
		k = transposed(uk)
	}
	if err == nil {
		err = wantHeads("UV", w.UV, c.Heads, c.V, c.Latent)
	}
	return k, uk, w.UV, err
}

// splitKVB cuts kv_b_proj by heads. A scale block may straddle the border
// between two heads, or between the K and V rows of one (GLM: 448 rows a head,
// blocks of 128): fp8.Matrix.Slice keeps the place inside the block.
func splitKVB(c Config, m fp8.Matrix) (k, uk, uv []fp8.Matrix, err error) {
	if err := wantShape("KVB", m, c.Heads*(c.Nope+c.V), c.Latent); err != nil {
		return nil, nil, nil, err
	}
	for h := range c.Heads {
		r0 := h * (c.Nope + c.V)
		kh, err := m.Slice(r0, r0+c.Nope)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%w: KVB: %w", ErrWeights, err)
		}
		vh, err := m.Slice(r0+c.Nope, r0+c.Nope+c.V)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("%w: KVB: %w", ErrWeights, err)
		}
		k, uv = append(k, kh), append(uv, vh)
	}
	return k, transposed(k), uv, nil
}

func transposed(ms []fp8.Matrix) []fp8.Matrix {
	out := make([]fp8.Matrix, len(ms))
	for h, m := range ms {
		out[h] = m.Transpose()
	}
	return out
}

func wantHeads(name string, ms []fp8.Matrix, heads, rows, cols int) error {
	if len(ms) != heads {
		return fmt.Errorf("%w: %s has %d matrices, want one per head = %d", ErrWeights, name, len(ms), heads)
	}
	for h, m := range ms {
		if err := wantShape(fmt.Sprintf("%s[%d]", name, h), m, rows, cols); err != nil {
			return err
		}
	}
	return nil
}

func wantShape(name string, m fp8.Matrix, rows, cols int) error {
	if m.Rows() != rows || m.Cols() != cols {
		return fmt.Errorf("%w: %s is [%d, %d], want [%d, %d]", ErrWeights, name, m.Rows(), m.Cols(), rows, cols)
	}
	return nil
}

// pack packs the products of every head. Along N the scales are cut at
// gcd(n_block, N, V) from the head's first row, whatever the entry point and
// even where neighbouring scales are equal (arithmetic.md): so KVB and K, UK,
// UV of the same values give the same bits. Along R they are cut at k_block.
func (w Weights) pack(c Config) (*packed, error) {
	k, uk, uv, err := w.heads(c)
	if err != nil {
		return nil, err
	}
	step := 0
	if uk[0].Scaled() {
		step = gcd(uk[0].BlockCols(), gcd(c.Nope, c.V))
	}
	p := &packed{scaled: uk[0].Scaled() && k[0].Scaled() && uv[0].Scaled()}
	if p.scaled {
		p.nBlock, p.kBlock = uk[0].BlockCols(), k[0].BlockCols()
	}
	for _, one := range []struct {
		to   **fp8.Packed
		name string
		ms   []fp8.Matrix
		step int
	}{{&p.uk, "UK", uk, step}, {&p.k, "K", k, 0}, {&p.uv, "UV", uv, 0}} {
		if *one.to, err = fp8.Pack(one.ms, fp8.PackOptions{Step: one.step, Progress: w.progress}); err != nil {
			p.close()
			return nil, fmt.Errorf("%w: %s: %w", ErrWeights, one.name, err)
		}
	}
	return p, nil
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
