package mla_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// quantised is the recipe of docs/arithmetic.md for one row in groups of g: what the codes
// stand for, in float64.
func quantised(x []float32, g int) []float64 {
	y := make([]float64, len(x))
	for at := 0; at < len(x); at += g {
		group := x[at:min(at+g, len(x))]
		amax := float32(0)
		for _, v := range group {
			amax = max(amax, v, -v)
		}
		scale := min(amax, 1200) / 448
		recip := 1 / scale
		if scale == 0 || math.IsInf(float64(recip), 0) {
			recip = 0
		}
		for i, v := range group {
			code := fp8.E4M3FromFloat32(min(max(v*recip, -448), 448), fp8.Saturate)
			y[at+i] = float64(code.Float32()) * float64(scale)
		}
	}
	return y
}

// TestActDynamicExpanded: in the expanded form the latent part of every row is
// quantised once, for keys and values, and nothing else is: the oracle on rows
// so prepared gives the answer, for every granularity of weights and groups.
func TestActDynamicExpanded(t *testing.T) {
	for _, c := range []struct {
		weight    weightKind
		q, latent int
		groups    int // along the latent
	}{
		{weightKind{fp8.ElemE4M3, 32, 32}, 0, 0, 32},
		{weightKind{fp8.ElemE4M3, 24, 40}, 8, 0, 40},
		{weightKind{fp8.ElemE4M3, 0, 0}, 0, 0, 72},
		{weightKind{fp8.ElemE4M3, 1, 72}, 4, 20, 20},
		{weightKind{fp8.ElemE5M2, 64, 8}, 0, 500, 72},
		{weightKind{fp8.ElemE4M3, 1, 1}, 1, 0, 1},
	} {
		w := small()
		w.weight, w.cfg.ActQuant, w.cfg.ActBlockQ, w.cfg.ActBlockLatent = c.weight, mla.ActDynamic, c.q, c.latent
		m := w.make(t)
		a := m.forward(t, m.plan(t, m.limits(), nil), mla.FormExpanded)
		call := m.oracle(t)
		for b := range m.seqs {
			rows := m.stored(t, b)
			for pos := range m.cached[b] + m.fresh[b] {
				copy(call.Rows[b][pos*w.width():], quantised(rows[pos*w.width():pos*w.width()+w.cfg.Latent], c.groups))
			}
		}
		m.checkWith(t, call, a)
	}
}

// TestActDynamicSameBits: any workers, page sizes and batches give the same bits
// here too, and the absorbed form stays near the unquantised answer.
func TestActDynamicSameBits(t *testing.T) {
	for _, form := range bothForms {
		w := small()
		w.weight, w.cfg.ActQuant, w.format, w.kv = weightKind{fp8.ElemE4M3, 32, 32}, mla.ActDynamic, kvpaged.BF16, "bf16"
		m := w.make(t)
		want := m.forward(t, m.plan(t, m.limits(), nil), form)
		for _, workers := range []int{2, 5} {
			pool := mla.NewPool(workers)
			p, err := bind(m.layer_, m.limits(), pool)
			require.NoError(t, err)
			sameBits(t, want, m.forward(t, p, form), fmt.Sprintf("%d workers", workers))
			require.NoError(t, p.Close())
			require.NoError(t, pool.Close())
		}
		w.page = 16
		m = w.make(t)
		sameBits(t, want, m.forward(t, m.plan(t, m.limits(), nil), form), "page size")
		w.cfg.ActQuant = mla.ActNone
		plain := w.make(t)
		near := plain.forward(t, plain.plan(t, plain.limits(), nil), form)
		var diff, sum float64
		for i, x := range near.out {
			diff += math.Pow(float64(x-want.out[i]), 2)
			sum += math.Pow(float64(x), 2)
		}
		require.Less(t, diff/sum, 0.01, "%v: E4M3 rounds by 3%% or so", form)
		require.NotEqual(t, near.out, want.out)
	}
}

func TestActQuantErrors(t *testing.T) {
	w := small()
	m := w.make(t)
	gamma := rowsOf("f32", m.gammas)
	c := w.cfg
	c.ActQuant = mla.ActDynamic
	_, err := mla.New(c, mla.Weights{KVB: m.kvb, Gamma: gamma})
	require.ErrorIs(t, err, mla.ErrConfig)
	require.ErrorContains(t, err, "ActBlockQ must be set, since the n block is 24")
	plain := weightKind{elem: fp8.ElemF32}.matrix(t, m.kvb.Rows(), m.kvb.Cols(), make([]float32, m.kvb.Rows()*m.kvb.Cols()))
	_, err = mla.New(c, mla.Weights{KVB: plain, Gamma: gamma})
	require.ErrorIs(t, err, mla.ErrWeights)
	require.ErrorContains(t, err, "wants weights with scales")
	c.ActBlockQ = -1
	_, err = mla.New(c, mla.Weights{KVB: m.kvb, Gamma: gamma})
	require.ErrorIs(t, err, mla.ErrConfig)
	c.ActQuant = 7
	_, err = mla.New(c, mla.Weights{KVB: m.kvb, Gamma: gamma})
	require.ErrorContains(t, err, "ActQuant 7")
}
