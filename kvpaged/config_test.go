package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*kvpaged.Config)
		want   error
		text   string
	}{
		"no layers":        {func(c *kvpaged.Config) { c.Layers = 0 }, kvpaged.ErrConfig, "Layers is 0"},
		"negative layers":  {func(c *kvpaged.Config) { c.Layers = math.MinInt }, kvpaged.ErrConfig, "Layers is -9"},
		"no page":          {func(c *kvpaged.Config) { c.PageTokens = 0 }, kvpaged.ErrConfig, "PageTokens is 0"},
		"negative page":    {func(c *kvpaged.Config) { c.PageTokens = -1 }, kvpaged.ErrConfig, "PageTokens is -1"},
		"no width":         {func(c *kvpaged.Config) { c.Width = 0 }, kvpaged.ErrConfig, "Width is 0"},
		"negative width":   {func(c *kvpaged.Config) { c.Width = -576 }, kvpaged.ErrConfig, "Width is -576"},
		"no pages":         {func(c *kvpaged.Config) { c.Pages = 0 }, kvpaged.ErrConfig, "Pages is 0"},
		"negative pages":   {func(c *kvpaged.Config) { c.Pages = -8 }, kvpaged.ErrConfig, "Pages is -8"},
		"pages past int32": {func(c *kvpaged.Config) { c.Pages = math.MaxInt32 + 1 }, kvpaged.ErrConfig, "Pages is 2147483648"},
		"pages past 2^26":  {func(c *kvpaged.Config) { c.Pages = 1<<26 + 1 }, kvpaged.ErrConfig, "Pages is 67108865"},
		"format":           {func(c *kvpaged.Config) { c.Format = 77 }, kvpaged.ErrFormat, "Format(77)"},
		"order":            {func(c *kvpaged.Config) { c.Order = 2 }, kvpaged.ErrConfig, "Order is 2"},
		"scale":            {func(c *kvpaged.Config) { c.Scale = 2 }, kvpaged.ErrConfig, "f32 has no such scale"},
		"NaN scale":        {func(c *kvpaged.Config) { c.Scale = float32(math.NaN()) }, kvpaged.ErrConfig, "f32 has no such scale"},
		"group":            {func(c *kvpaged.Config) { c.Group = 1 }, kvpaged.ErrConfig, "Group is 1, but f32 has no such groups"},
		"no group":         {func(c *kvpaged.Config) { c.Format = kvpaged.FP8Token }, kvpaged.ErrConfig, "Group is 0, want at least 1"},
		"negative group":   {func(c *kvpaged.Config) { c.Format, c.Group = kvpaged.FP8Token, math.MinInt }, kvpaged.ErrConfig, "Group is -9"},
		"scales":           {func(c *kvpaged.Config) { c.Scales = make([]float32, 999) }, kvpaged.ErrConfig, "Scales are given, but f32 takes none"},
		"scale and scales": {func(c *kvpaged.Config) { *c = in(kvpaged.FP8Token, *c); c.Scale = 1 }, kvpaged.ErrConfig, "fp8_token has no such scale"},
		"ds_mla width":     {func(c *kvpaged.Config) { c.Format, c.Width = kvpaged.DSMLA656, 512 }, kvpaged.ErrConfig, "Width is 512, want 576 in ds_mla_656"},
		"v4 width":         {func(c *kvpaged.Config) { c.Format, c.Width = kvpaged.V4_584, 576 }, kvpaged.ErrConfig, "Width is 576, want 512 in v4_584"},
		"v41 width":        {func(c *kvpaged.Config) { c.Format, c.Width = kvpaged.V41_528Planar, 528 }, kvpaged.ErrConfig, "want 512"},
		"fp4 width":        {func(c *kvpaged.Config) { c.Format, c.Width = kvpaged.V41FP4_288Interleaved, 256 }, kvpaged.ErrConfig, "want 512"},
		"planes overflow": {func(c *kvpaged.Config) {
			*c = in(kvpaged.V4_584, *c)
			c.Layers, c.Pages, c.PageTokens = 1, 1, math.MaxInt/584
		}, kvpaged.ErrConfig, "2^63-1"},
		"scales overflow": {func(c *kvpaged.Config) { c.Format, c.Group, c.Width = kvpaged.FP8Token, 1, math.MaxInt/4+1 }, kvpaged.ErrConfig, "2^63-1"},
		"outer overflows": {func(c *kvpaged.Config) {
			c.Format, c.Group, c.Scales, c.Layers, c.Pages, c.PageTokens, c.Width = kvpaged.FP8Token, 1, []float32{}, 1, 1, 1, math.MaxInt/2
		}, kvpaged.ErrConfig, "2^63-1"},
		"row overflows":     {func(c *kvpaged.Config) { c.Width = math.MaxInt/4 + 1 }, kvpaged.ErrConfig, "2^63-1"},
		"block overflows":   {func(c *kvpaged.Config) { c.PageTokens = math.MaxInt }, kvpaged.ErrConfig, "2^63-1"},
		"layers overflow":   {func(c *kvpaged.Config) { c.Layers = math.MaxInt / 32 }, kvpaged.ErrConfig, "2^63-1"},
		"everything":        {func(c *kvpaged.Config) { c.Layers, c.PageTokens, c.Width = math.MaxInt, math.MaxInt, math.MaxInt }, kvpaged.ErrConfig, "2^63-1"},
		"wraps to zero":     {func(c *kvpaged.Config) { c.Layers, c.PageTokens, c.Width = 1<<32, 1<<30, 1 }, kvpaged.ErrConfig, "2^63-1"},
		"wraps to positive": {func(c *kvpaged.Config) { c.Layers, c.PageTokens = 1<<31+1, 1<<31 }, kvpaged.ErrConfig, "2^63-1"},
	} {
		cfg := small()
		c.change(&cfg)
		_, err := kvpaged.ArenaBytes(cfg)
		require.ErrorIs(t, err, c.want, name)
		assert.ErrorContains(t, err, c.text, name)
		_, err = kvpaged.New(cfg)
		require.ErrorIs(t, err, c.want, name)
	}
}

func TestArenaBytes(t *testing.T) {
	for f, token := range map[kvpaged.Format]int64{kvpaged.BF16: 2 * 576, kvpaged.F16: 2 * 576, kvpaged.F32: 4 * 576, kvpaged.FP8Unit: 576,
		kvpaged.FP8Tensor: 576, kvpaged.FP8Token: 576 + 2*4, kvpaged.DSMLA656: 656,
		kvpaged.V4_584: 585, kvpaged.V41_528Interleaved: 528, kvpaged.V41_528Planar: 528, // 64 tokens of 584 bytes are rounded up by 64
		kvpaged.V41FP4_288Interleaved: 288, kvpaged.V41FP4_288Planar: 288} {
		for _, order := range allOrders {
			n, err := kvpaged.ArenaBytes(in(f, kvpaged.Config{Layers: 61, PageTokens: 64, Width: 576, Pages: 4096, Order: order}))
			require.NoError(t, err)
			assert.Equal(t, 61*64*4096*token, n, "%v", f)
		}
	}
	for f, want := range map[kvpaged.Format]int64{kvpaged.V4_584: 2 * 576, kvpaged.V41_528Planar: 2 * 512, kvpaged.V41FP4_288Planar: 512} {
		n, err := kvpaged.ArenaBytes(in(f, kvpaged.Config{Layers: 2, PageTokens: 1, Pages: 3}))
		require.NoError(t, err)
		assert.Equal(t, 6*want, n, "%v", f)
	}
	cfg := in(kvpaged.FP8Token, kvpaged.Config{Layers: 2, PageTokens: 5, Width: 7, Pages: 3, Scales: []float32{}})
	n, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	assert.EqualValues(t, 2*5*7*3, n, "the scales are elsewhere")
	n, err = kvpaged.ArenaBytes(kvpaged.Config{Layers: 1, PageTokens: 1, Width: math.MaxInt, Format: kvpaged.FP8Unit, Pages: 1})
	require.NoError(t, err)
	assert.EqualValues(t, math.MaxInt, n)
}

func TestArenaErrors(t *testing.T) {
	cfg := small()
	arena := heapArena(t, cfg)
	cfg.Arena = arena[:len(arena)-1]
	_, err := kvpaged.New(cfg)
	require.ErrorIs(t, err, kvpaged.ErrConfig)
	assert.ErrorContains(t, err, "Arena has 767 bytes, want 2 layers x 8 pages x 4 tokens x 3 values of f32 = 768")
	cfg.Arena = []byte{}
	_, err = kvpaged.New(cfg)
	require.ErrorIs(t, err, kvpaged.ErrConfig)

	token := in(kvpaged.FP8Token, small())
	token.Scales = make([]float32, 2*8*4*2-1)
	_, err = kvpaged.New(token)
	require.ErrorIs(t, err, kvpaged.ErrConfig)
	assert.ErrorContains(t, err, "Scales has 127 values, want 2 layers x 8 pages x 4 tokens x 3 values of fp8_token in groups of 2 = 128")
	token.Scales = []float32{}
	_, err = kvpaged.New(token)
	require.ErrorIs(t, err, kvpaged.ErrConfig)

	long := make([]byte, 64<<10)
	for skip := range 5 {
		for _, f := range allFormats {
			cfg := in(f, small())
			cfg.Arena = long[skip:]
			_, err = kvpaged.New(cfg)
			elem := map[kvpaged.Format]int{kvpaged.BF16: 2, kvpaged.F16: 2, kvpaged.F32: 4, kvpaged.DSMLA656: 2, kvpaged.V4_584: 2}[f]
			if elem > 0 && skip%elem != 0 {
				require.ErrorIs(t, err, kvpaged.ErrConfig, "%v at %d", f, skip)
			} else {
				require.NoError(t, err, "%v at %d", f, skip)
			}
		}
	}
}

func TestNoMemory(t *testing.T) {
	cfg := small()
	cfg.Pages, cfg.PageTokens, cfg.Width = 1<<26, 1<<17, 1<<13
	n, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	assert.Greater(t, n, int64(1)<<56)
	_, err = kvpaged.New(cfg)
	require.Error(t, err)
	assert.ErrorContains(t, err, "arena of 67108864 pages")
}
