package mla_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/mla"
)

// Every block of a prefill asks for the queries of the next and for keys that it sees, of a prompt for each key once.
func TestAskedAhead(t *testing.T) {
	const h, width, values = 2, 24, 16
	for _, c := range []struct {
		name           string
		mask           mla.Mask
		offsets, keys  []uint32
		each           bool // every key is asked for once, but those of the first block
		first, perHead int  // keys of the first block, and of a head
	}{
		{"prompt", mla.Mask{}, []uint32{0, 700}, []uint32{0, 700}, true, 256, 700},
		{"ragged", mla.Mask{}, []uint32{0, 300, 301, 1000}, []uint32{0, 300, 301, 1000}, true, 256, 1000},
		{"prefix", mla.Mask{}, []uint32{0, 300, 600}, []uint32{0, 900, 1300}, false, 0, 0},
		{"window", mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 50}, []uint32{0, 600}, []uint32{0, 900}, false, 0, 0},
		{"all", mla.Mask{Kind: mla.MaskNull}, []uint32{0, 600}, []uint32{0, 700}, false, 0, 0},
	} {
		queries, keys := int(c.offsets[len(c.offsets)-1]), int(c.keys[len(c.keys)-1])
		core, err := mla.NewCore(mla.CoreConfig{Heads: h, Width: width, V: values, Scale: 1, Mask: c.mask, Arithmetic: mla.BF16},
			mla.Limits{Tokens: queries, Seqs: len(c.keys) - 1, Context: keys}, nil)
		require.NoError(t, err)
		rows := func(n int) mla.Rows { return mla.RowsBF16(make([]uint16, n)) }
		asked, err := mla.AskedAhead(core, rows(queries*h*values), rows(queries*h*width), rows(h*keys*width), rows(h*keys*values),
			mla.PrefillArgs{Offsets: c.offsets, Keys: c.keys, LdK: width, StrideK: keys * width, LdV: values, StrideV: keys * values})
		require.NoError(t, err)
		seen := make([]int, h*keys)
		for _, a := range asked {
			assert.Equal(t, [2]int{a.Tok, a.Rows}, a.Queries, c.name)
			assert.Equal(t, a.Keys, a.Values, c.name)
			if a.Keys[1] > 0 {
				assert.GreaterOrEqual(t, a.Keys[0], a.Lo, c.name)
				assert.LessOrEqual(t, a.Keys[0]+a.Keys[1], a.Hi, c.name)
			}
			assert.LessOrEqual(t, a.Keys[1], 256, c.name)
			for key := range a.Keys[1] {
				seen[a.Head*keys+a.Keys[0]+key]++
			}
		}
		for i := c.first; c.each && i < len(seen); i++ {
			require.Equal(t, 1, seen[i], "%s: head %d, key %d", c.name, i/c.perHead, i%c.perHead)
		}
		require.NoError(t, core.Close())
	}
}

// The pieces that calls ask for, and the parts in between, are all of it.
func TestPieces(t *testing.T) {
	for _, calls := range []int{1, 2, 3, 7, 100} {
		for _, n := range []int{64, 640, 6400, 64 * 1001} {
			pieces, rows := mla.Pieces(n, 64, calls)
			sum := 0
			for _, piece := range pieces {
				sum += piece
				assert.LessOrEqual(t, piece, (n+calls-1)/calls+63)
			}
			assert.Equal(t, n, sum)
			assert.False(t, rows)
			sum = 0
			for _, part := range mla.Parts(n/64, calls) {
				sum += part
			}
			assert.Equal(t, n/64, sum)
		}
	}
	_, rows := mla.Pieces(6400, 64, 0)
	assert.True(t, rows, "calls that ask for nothing leave the rows to others")
}
