package mla_test

import (
	"context"
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// A prompt of five tokens, then one more, with the arguments of MAX's operator.
// The pages belong to the caller.
func ExamplePrefillDecodeGraphFP8() {
	const heads, nope, rope, v, latent = 4, 16, 8, 16, 32
	const blocks, page, block = 8, 4, 16 // 8 pages of 4 tokens, scales for 16 x 16
	scales := func(n int) mla.Scales { return mla.ScalesF32(constant(n/block/block, 0.5)) }

	wk := make([]fp8.E4M3, heads*nope*latent)
	fp8.FromFloat32s(wk, wave(len(wk)), fp8.Saturate)
	wuk := make([]fp8.E4M3, len(wk)) // of each head, the transpose
	for i := range heads * nope {
		for j := range latent {
			wuk[(i/nope*latent+j)*nope+i%nope] = wk[i*latent+j]
		}
	}
	args := &mla.GraphArgs{
		Dtype: fp8.ElemF32, CollectionT: kvpaged.BF16,
		MScaleGranularity: 1, NScaleGranularity: block, KScaleGranularity: block, MaskStr: "causal",
		FreqsCis: mla.RowsF32(angles(blocks*page, rope)), KvNormGamma: mla.RowsF32(constant(latent, 1)),
		KvCollection: mla.KvCollection{
			Blocks:       mla.KvBlocks{Data: mla.BlockBytes(make([]uint16, blocks*page*(latent+rope))), NumBlocks: blocks, Layers: 1, PageTokens: page},
			CacheLengths: []uint32{0},
			LookupTable:  []uint32{3, 6, blocks}, // the third page is not mapped
		},
		Scale: 0.2, Epsilon: 1e-6,
		WK: fp8.Cast[byte](wk), WKScale: scales(heads * nope * latent),
		WUk: fp8.Cast[byte](wuk), WUkScale: scales(heads * latent * nope),
		WUv: fp8.Cast[byte](wk), WUvScale: scales(heads * v * latent), // as good as any
		GraphHost: mla.GraphHost{Heads: heads},
	}
	defer args.Close()

	for _, n := range []int{5, 1} {
		args.InputRowOffsets, args.MaxSeqLen = []uint32{0, uint32(n)}, n
		args.ScalarArgsBuf = []int64{1, int64(n), 1}
		args.Q = mla.RowsF32(wave(n * heads * (nope + rope)))
		args.KvInputFn.Rows = mla.RowsF32(wave(n * (latent + rope)))
		args.Output = mla.RowsF32(make([]float32, n*heads*v))

		check(mla.PrefillDecodeGraphFP8(context.Background(), args))
		args.KvCollection.CacheLengths[0] += uint32(n) // the caller commits
		fmt.Printf("%d new of %d tokens: out[0] = %.4f\n", n, args.KvCollection.CacheLengths[0], args.Output.Float32(0))
	}
	// Output:
	// 5 new of 5 tokens: out[0] = 11.3263
	// 1 new of 6 tokens: out[0] = 7.3868
}
