package mla

import (
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
)

// graphShape is what the arguments of a call say about its sizes.
type graphShape struct {
	seqs, tokens, longest int // B, T, the longest new part
	keys                  int // the most of a sequence with new tokens
	cfg                   Config
	stride                int // of DIndices
	buffer                int // for Limits.Buffer; 0: its default
}

// check tests all that needs no packed weights, caches or sequences. With no
// new tokens it stops at what describes the batch: there are no shapes then.
func (a *GraphArgs) check(s *graphShape) error {
	if err := a.checkParameters(s); err != nil {
		return err
	}
	if err := a.checkBatch(s); err != nil {
		return err
	}
	if err := a.checkBuffer(s); err != nil {
		return err
	}
	if err := a.checkIndices(s); err != nil || s.tokens == 0 {
		return err
	}
	if err := a.checkWeights(s); err != nil {
		return err
	}
	return a.checkTensors(s)
}

// checkParameters tests what MAX fixes at compile time.
func (a *GraphArgs) checkParameters(s *graphShape) error {
	switch {
	case a.Dtype < fp8.ElemBF16 || a.Dtype > fp8.ElemF32:
		return fmt.Errorf("%w: Dtype is %v, want bf16, f16 or f32", ErrConfig, a.Dtype)
	case a.Fp8Dtype > fp8.ElemE5M2FNUZ:
		return fmt.Errorf("%w: Fp8Dtype is %v, want an 8-bit format", ErrConfig, a.Fp8Dtype)
	case int(a.Fp8ScaleDtype) >= len(scaleNames):
		return fmt.Errorf("%w: Fp8ScaleDtype is %d, want f32, bf16 or e8m0", ErrConfig, a.Fp8ScaleDtype)
	case a.MScaleGranularity != 1:
		return fmt.Errorf("%w: MScaleGranularity is %d, want 1", ErrConfig, a.MScaleGranularity)
	case a.NScaleGranularity < 1 || a.KScaleGranularity < 1:
		return fmt.Errorf("%w: NScaleGranularity is %d and KScaleGranularity %d, want at least 1", ErrConfig, a.NScaleGranularity, a.KScaleGranularity)
	case a.Target != "" && a.Target != "cpu":
		return fmt.Errorf("%w: Target is %q, want cpu", ErrConfig, a.Target)
	case a.Heads < 1 || a.Heads > maxSize:
		return fmt.Errorf("%w: Heads is %d, want 1 to %d", ErrConfig, a.Heads, maxSize)
	case a.TopkPer > TopKPerToken:
		return fmt.Errorf("%w: TopkPer %d is unknown", ErrConfig, a.TopkPer)
	case !(a.Epsilon >= 0):
		return fmt.Errorf("%w: Epsilon is %v, want a finite number >= 0", ErrConfig, a.Epsilon)
	}
	mask, err := ParseMask(a.MaskStr)
	if err != nil {
		return err
	}
	s.cfg = Config{
		Heads: a.Heads, Scale: a.Scale, Epsilon: a.Epsilon, Mask: mask, Compute: a.Compute, RopeStyle: a.RopeStyle,
		FormRule: a.FormRule, MAXThreshold: a.MAXThreshold, NormRounding: a.NormRounding,
		ActQuant: a.ActQuant, ActBlockQ: a.ActBlockQ, ActBlockLatent: a.ActBlockLatent,
	}
	if a.Epsilon == 0 {
		s.cfg.Epsilon = EpsilonZero
	}
	return nil
}

// checkBatch tests the offsets and lengths of the sequences.
func (a *GraphArgs) checkBatch(s *graphShape) error {
	offsets, kv := a.InputRowOffsets, &a.KvCollection
	if len(offsets) == 0 {
		return fmt.Errorf("%w: InputRowOffsets is empty, want B+1 values", ErrShape)
	}
	if offsets[0] != 0 {
		return fmt.Errorf("%w: InputRowOffsets[0] is %d, want 0", ErrShape, offsets[0])
	}
	s.seqs, s.tokens = len(offsets)-1, int(offsets[len(offsets)-1])
	if len(kv.CacheLengths) != s.seqs {
		return fmt.Errorf("%w: KvCollection.CacheLengths has %d values, want B = %d", ErrShape, len(kv.CacheLengths), s.seqs)
	}
	for b, cached := range kv.CacheLengths {
		n := int(offsets[b+1]) - int(offsets[b])
		if n < 0 {
			return fmt.Errorf("%w: InputRowOffsets decreases from %d to %d at sequence %d", ErrShape, offsets[b], offsets[b+1], b)
		}
		if n > 0 {
			s.longest, s.keys = max(s.longest, n), max(s.keys, int(cached)+n)
		}
	}
	if s.tokens > maxTokens {
		return fmt.Errorf("%w: InputRowOffsets ends with %d tokens, want at most %d", ErrShape, s.tokens, maxTokens)
	}
	if a.MaxSeqLen < s.longest {
		return fmt.Errorf("%w: MaxSeqLen is %d, a sequence has %d new tokens", ErrShape, a.MaxSeqLen, s.longest)
	}
	if len(a.ScalarArgsBuf) != 3 {
		return fmt.Errorf("%w: ScalarArgsBuf has %d values, want 3: B, MaxSeqLen and partitions", ErrShape, len(a.ScalarArgsBuf))
	}
	if a.ScalarArgsBuf[0] != int64(s.seqs) || a.ScalarArgsBuf[1] != int64(a.MaxSeqLen) {
		return fmt.Errorf("%w: ScalarArgsBuf is %d, want B = %d, MaxSeqLen = %d, any", ErrShape, a.ScalarArgsBuf, s.seqs, a.MaxSeqLen)
	}
	if a.NumPartitionsIn < 0 {
		return fmt.Errorf("%w: NumPartitionsIn is %d, want at least 0", ErrConfig, a.NumPartitionsIn)
	}
	return nil
}

// checkBuffer tests the chunk of the prefill buffer.
func (a *GraphArgs) checkBuffer(s *graphShape) error {
	rows, from, page := a.BufferRowOffsets, a.CacheOffsets, a.KvCollection.Blocks.PageTokens
	if page < 1 || page > maxContext {
		return fmt.Errorf("%w: KvCollection.Blocks.PageTokens is %d, want 1 to %d", ErrShape, page, maxContext)
	}
	if a.BufferLength < -1 || a.BufferLength > maxContext {
		return fmt.Errorf("%w: BufferLength is %d, want -1 to %d", ErrShape, a.BufferLength, maxContext)
	}
	if a.BufferLength > 0 {
		s.buffer = max(a.BufferLength, page)
	}
	if rows == nil && from == nil {
		return nil
	}
	if len(rows) != s.seqs+1 {
		return fmt.Errorf("%w: BufferRowOffsets has %d values, want B+1 = %d", ErrShape, len(rows), s.seqs+1)
	}
	if len(from) != s.seqs && len(from) != s.seqs+1 {
		return fmt.Errorf("%w: CacheOffsets has %d values, want B = %d or one more", ErrShape, len(from), s.seqs)
	}
	if rows[0] != 0 {
		return fmt.Errorf("%w: BufferRowOffsets[0] is %d, want 0", ErrShape, rows[0])
	}
	for b := range s.seqs {
		if rows[b+1] < rows[b] {
			return fmt.Errorf("%w: BufferRowOffsets decreases from %d to %d at sequence %d", ErrShape, rows[b], rows[b+1], b)
		}
		keys := int(a.KvCollection.CacheLengths[b]) + int(a.InputRowOffsets[b+1]) - int(a.InputRowOffsets[b])
		if end := int(from[b]) + int(rows[b+1]) - int(rows[b]); end > roundUp(keys, page) {
			return fmt.Errorf("%w: the buffer takes keys %d to %d of sequence %d (CacheOffsets, BufferRowOffsets), which has %d in pages of %d",
				ErrShape, from[b], end, b, keys, page)
		}
	}
	if last := int(rows[s.seqs]); last > max(a.BufferLength, 0) {
		return fmt.Errorf("%w: BufferRowOffsets ends with %d, BufferLength is %d", ErrShape, last, a.BufferLength)
	}
	return nil
}

// checkIndices tests the index lists.
func (a *GraphArgs) checkIndices(s *graphShape) error {
	if !a.SparseMla {
		return a.checkDense()
	}
	s.stride = a.IndicesStride
	if s.stride == 0 {
		s.stride = a.SparseIndicesStride
	}
	if a.SparseIndicesStride != 0 && a.SparseIndicesStride != s.stride {
		return fmt.Errorf("%w: IndicesStride is %d, SparseIndicesStride %d", ErrShape, a.IndicesStride, a.SparseIndicesStride)
	}
	if a.ExtraK == nil && (a.ExtraDIndices != nil || a.ExtraIndicesStride != 0 || a.ExtraTopkLengths != nil || a.ExtraScales != nil) {
		return fmt.Errorf("%w: ExtraDIndices, ExtraIndicesStride, ExtraTopkLengths or ExtraScales is given, and ExtraK is not", ErrShape)
	}
	for _, l := range [...]struct {
		name     string
		n        int
		stride   int
		lengths  []int32
		nLengths string
	}{
		{"DIndices", len(a.DIndices), s.stride, a.TopkLengths, "TopkLengths"},
		{"ExtraDIndices", len(a.ExtraDIndices), a.ExtraIndicesStride, a.ExtraTopkLengths, "ExtraTopkLengths"},
	} {
		if l.stride < 0 || l.stride > maxContext {
			return fmt.Errorf("%w: the stride of %s is %d, want 0 to %d", ErrShape, l.name, l.stride, maxContext)
		}
		if l.n != s.tokens*l.stride {
			return fmt.Errorf("%w: %s has %d values, want T*stride = %d*%d", ErrShape, l.name, l.n, s.tokens, l.stride)
		}
		bySeq := a.TopkPer != TopKPerToken && len(l.lengths) == s.seqs
		byToken := a.TopkPer != TopKPerSequence && len(l.lengths) == s.tokens
		if l.lengths != nil && !bySeq && !byToken {
			return fmt.Errorf("%w: %s has %d values, want B = %d or T = %d, as TopkPer allows", ErrShape, l.nLengths, len(l.lengths), s.seqs, s.tokens)
		}
	}
	return nil
}

// checkDense tests that a call without index lists is meant to have none.
func (a *GraphArgs) checkDense() error {
	for _, x := range [...]struct {
		name  string
		given bool
	}{
		{"SparseIndicesStride", a.SparseIndicesStride != 0}, {"FoldSharedIndex", a.FoldSharedIndex}, {"DIndices", a.DIndices != nil},
		{"IndicesStride", a.IndicesStride != 0}, {"TopkLengths", a.TopkLengths != nil}, {"ExtraK", a.ExtraK != nil},
		{"ExtraDIndices", a.ExtraDIndices != nil}, {"ExtraIndicesStride", a.ExtraIndicesStride != 0},
		{"ExtraTopkLengths", a.ExtraTopkLengths != nil}, {"ExtraScales", a.ExtraScales != nil},
	} {
		if x.given {
			return fmt.Errorf("%w: %s is given, and SparseMla is false", ErrConfig, x.name)
		}
	}
	return nil
}

// checkWeights tests the weights and takes N, V and R from them.
func (a *GraphArgs) checkWeights(s *graphShape) error {
	c, n, k := &s.cfg, a.NScaleGranularity, a.KScaleGranularity
	if c.Latent = a.KvNormGamma.Len(); c.Latent == 0 || c.Latent > maxSize {
		return fmt.Errorf("%w: KvNormGamma has %d values, want R = 1 to %d", ErrShape, c.Latent, maxSize)
	}
	if row := c.Heads * c.Latent; len(a.WK) == 0 || len(a.WK)%row != 0 {
		return fmt.Errorf("%w: WK has %d codes, want H*N*R, a multiple of %d*%d", ErrShape, len(a.WK), c.Heads, c.Latent)
	} else if len(a.WUv) == 0 || len(a.WUv)%row != 0 {
		return fmt.Errorf("%w: WUv has %d codes, want H*V*R, a multiple of %d*%d", ErrShape, len(a.WUv), c.Heads, c.Latent)
	} else {
		c.Nope, c.V = len(a.WK)/row, len(a.WUv)/row
	}
	if len(a.WUk) != len(a.WK) {
		return fmt.Errorf("%w: WUk has %d codes, want H*R*N = %d*%d*%d as WK has", ErrShape, len(a.WUk), c.Heads, c.Latent, c.Nope)
	}
	across := ceilDiv(c.Latent, k)
	for _, x := range [...]struct {
		name, shape string
		scales      Scales
		want        int
	}{
		{"WKScale", "ceil(H*N/n)*ceil(R/k)", a.WKScale, ceilDiv(c.Heads*c.Nope, n) * across},
		{"WUkScale", "H*ceil(R/k)*ceil(N/n)", a.WUkScale, c.Heads * across * ceilDiv(c.Nope, n)},
		{"WUvScale", "H*ceil(V/n)*ceil(R/k)", a.WUvScale, c.Heads * ceilDiv(c.V, n) * across},
	} {
		if x.scales.dtype != a.Fp8ScaleDtype {
			return fmt.Errorf("%w: %s is %v, Fp8ScaleDtype %v", ErrShape, x.name, x.scales.dtype, a.Fp8ScaleDtype)
		}
		if x.scales.Len() != x.want {
			return fmt.Errorf("%w: %s has %d values, want %s = %d (H %d, N %d, V %d, R %d, n %d, k %d)",
				ErrShape, x.name, x.scales.Len(), x.shape, x.want, c.Heads, c.Nope, c.V, c.Latent, n, k)
		}
	}
	return nil
}

func ceilDiv(a, b int) int { return (a-1)/b + 1 }

// checkTensors tests the activations and takes P from Q.
func (a *GraphArgs) checkTensors(s *graphShape) error {
	c, t := &s.cfg, s.tokens
	row := t * c.Heads
	if c.Rope = a.Q.Len()/row - c.Nope; a.Q.Len()%row != 0 || c.Rope < 0 || c.Rope > maxSize {
		return fmt.Errorf("%w: Q has %d values, want T*H*(N+P) = %d*%d*(%d+P)", ErrShape, a.Q.Len(), t, c.Heads, c.Nope)
	}
	if a.Q.Kind() != a.Dtype || a.Output.Kind() != a.Dtype {
		return fmt.Errorf("%w: Q is %v and Output %v, Dtype is %v", ErrShape, a.Q.Kind(), a.Output.Kind(), a.Dtype)
	}
	for _, x := range [...]struct {
		name, shape string
		got, want   int
		optional    bool
	}{
		{"Output", "T*H*V", a.Output.Len(), row * c.V, false},
		{"KvInputFn.Rows", "T*(R+P)", a.KvInputFn.Rows.Len(), t * c.Width(), a.KvInputFn.Fill != nil},
		{"AttnSink", "H", len(a.AttnSink), c.Heads, a.AttnSink == nil},
		{"Forms", "B", len(a.Forms), s.seqs, a.Forms == nil},
		{"LSE", "T*H", len(a.LSE), row, a.LSE == nil},
		{"MaxLogit", "T*H", len(a.MaxLogit), row, a.MaxLogit == nil},
	} {
		if x.got != x.want && !x.optional {
			return fmt.Errorf("%w: %s has %d values, want %s = %d (T %d, B %d, H %d, N %d, P %d, V %d, R %d)",
				ErrShape, x.name, x.got, x.shape, x.want, t, s.seqs, c.Heads, c.Nope, c.Rope, c.V, c.Latent)
		}
	}
	if a.KvInputFn.Fill != nil && a.KvInputFn.Rows.Len() != 0 {
		return fmt.Errorf("%w: KvInputFn has Rows, and Fill as well", ErrShape)
	}
	if have := a.FreqsCis.Len(); c.Rope == 0 && have != 0 || c.Rope != 0 && (have%c.Rope != 0 || have/c.Rope < s.keys) {
		return fmt.Errorf("%w: FreqsCis has %d values, want rows of P = %d, and %d of them or more", ErrShape, have, c.Rope, s.keys)
	}
	return nil
}
