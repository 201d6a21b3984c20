package bench

import (
	"errors"
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// store is a cache of one layer with a batch of sequences in it.
type store struct {
	arena arena
	spec  Spec
	width int
	rng   rng
	cache *kvpaged.Cache
	batch mla.Batch
}

const (
	pageTokens = 64
	// tensorScale is the scale of a cache that has one: values beyond 448 times
	// it do not occur in normed rows.
	tensorScale = 1.0 / 48
	tokenGroup  = 128 // values of a row that share a scale, where a cache wants to be told
)

// Formats lists the cache formats, all that kvpaged has.
func Formats() []kvpaged.Format {
	var all []kvpaged.Format
	for f := kvpaged.Format(0); ; f++ {
		if _, err := kvpaged.ParseFormat(f.String()); err != nil {
			return all
		}
		all = append(all, f)
	}
}

// cache is the cache of a row of the bench, with rows of width values.
func (s Spec) cache(width int) kvpaged.Config {
	cfg := kvpaged.Config{Layers: 1, PageTokens: pageTokens, Width: width, Format: s.KV}
	for seq := range s.Batch {
		cfg.Pages += ceil(s.length(seq), pageTokens)
	}
	switch s.KV.Scales() {
	case kvpaged.ScaleTensor:
		cfg.Scale = tensorScale
	case kvpaged.ScaleToken:
		cfg.Group = tokenGroup
	}
	return cfg
}

// dims is the width of a cache row, and how many of its leading values are the
// value in attention alone. They are C = R+P and R of the model; where a format
// has room for R values only, attention alone takes the whole row as the value,
// as DeepSeek-V4 does. The error says why the format does not fit.
func (s Spec) dims() (width, value int, err error) {
	m := s.Model
	if _, err = kvpaged.ArenaBytes(s.cache(m.Width())); err == nil {
		return m.Width(), m.Latent, nil
	}
	if s.Op.isCore() {
		if _, err := kvpaged.ArenaBytes(s.cache(m.Latent)); err == nil {
			return m.Latent, m.Latent, nil
		}
	}
	return 0, 0, fmt.Errorf("a cache row of this operation has %d values: %w", m.Width(), err)
}

// open makes the cache and commits all but the last reserved tokens of every
// sequence, made-up rows; those are reserved.
func (st *store) open(reserved int) error {
	s, err := st.spec, st.arena.err
	if err != nil {
		return err
	}
	if st.cache, err = kvpaged.New(s.cache(st.width)); err != nil {
		return err
	}
	st.batch = mla.Batch{Cache: st.cache, Offsets: []uint32{0}}
	for b := range s.Batch {
		seq, err := st.cache.NewSeq()
		if err != nil {
			return err
		}
		st.batch.Seqs = append(st.batch.Seqs, seq)
		st.batch.Offsets = append(st.batch.Offsets, uint32((b+1)*s.Tokens))
		if err := st.write(seq, s.length(b)-reserved); err != nil {
			return err
		}
		if err := seq.Reserve(reserved); err != nil {
			return err
		}
	}
	return nil
}

// write commits n rows of made-up context.
func (st *store) write(seq *kvpaged.Seq, n int) error {
	if err := seq.Reserve(n); err != nil {
		return err
	}
	const chunk = 256
	buf := make([]float32, chunk*st.width)
	for pos := 0; pos < n; pos += chunk {
		rows := buf[:min(chunk, n-pos)*st.width]
		st.rng.fill(rows, 1)
		if err := seq.WriteRows(0, pos, rows); err != nil {
			return err
		}
	}
	return seq.Commit(n)
}

// commit makes the new rows readable; rollback takes them back, so that a
// Forward can store them again.
func (st *store) commit() error {
	for _, seq := range st.batch.Seqs {
		if err := seq.Commit(st.spec.Tokens); err != nil {
			return err
		}
	}
	return nil
}

func (st *store) rollback() error {
	for b, seq := range st.batch.Seqs {
		if err := seq.Truncate(st.spec.length(b) - st.spec.Tokens); err != nil {
			return err
		}
		if err := seq.Reserve(st.spec.Tokens); err != nil {
			return err
		}
	}
	return nil
}

// fetch reads committed rows for the oracle, one at a time.
func (st *store) fetch() func(seq, pos int) []float64 {
	row, wide := make([]float32, st.width), make([]float64, st.width)
	return func(seq, pos int) []float64 {
		if err := st.batch.Seqs[seq].ReadRows(row, 0, pos, 1); err != nil {
			panic(err) // the position was committed by the caller
		}
		for i, x := range row {
			wide[i] = float64(x)
		}
		return wide
	}
}

func (st *store) bytes() int64 {
	return int64(st.cache.Config().Pages) * int64(st.cache.PageBytes())
}

func (st *store) RowBytes() int { return st.cache.RowBytes() }

func (st *store) close() error {
	errs := []error{st.arena.free()}
	for _, seq := range st.batch.Seqs {
		errs = append(errs, seq.Free())
	}
	if st.cache != nil {
		errs = append(errs, st.cache.Close())
	}
	return errors.Join(errs...)
}

// storedError is what rounding to a cache format may change in a row whose
// largest magnitude is amax: half a unit in the last place and, on top, float32's
// own error, which may tip a tie. Formats that are not named have E4M3 codes in
// groups; a group's scale is at most what amax asks for, rounded up. E2M1 has its
// steps of a half below 2 and clips what is beyond 6 of a scale that was rounded
// down.
func storedError(f kvpaged.Format, amax float64) (rel, abs float64) {
	const f32 = 1e-5 // of values near 1, after norm and rope
	switch f {
	case kvpaged.F32:
		return 0, f32
	case kvpaged.F16:
		return 0x1p-11, f32
	case kvpaged.BF16:
		return 0x1p-8, f32
	case kvpaged.FP8Unit:
		return 0x1p-4, 0x1p-10 + f32
	case kvpaged.FP8Tensor:
		return 0x1p-4, 0x1p-10*tensorScale + f32
	case kvpaged.V41FP4_288Interleaved, kvpaged.V41FP4_288Planar:
		return 0x1p-2, 0x1p-2*max(amax/6*1.0625, 0x1p-9) + f32
	}
	return 0x1p-4, 0x1p-10*2*max(amax/448, 1e-4) + f32
}

func largest(x []float64) float64 {
	var m float64
	for _, v := range x {
		m = math.Max(m, math.Abs(v))
	}
	return m
}
