package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/simd"
)

func TestInfo(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, statusOK, runInfo(t.Context(), nil, &out, &errs), errs.String())
	for _, want := range []string{"cpu ", "features ", "simd        " + simd.Level() + ": ", "levels ", "cores ", "caches ", "go ", "commit "} {
		assert.Contains(t, out.String(), want)
	}
}

func TestInfoJSON(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, statusOK, runInfo(t.Context(), []string{"-json"}, &out, &errs))
	var i info
	require.NoError(t, json.Unmarshal(out.Bytes(), &i))
	assert.Equal(t, simd.Level(), i.SIMD)
	assert.Contains(t, i.Levels, "generic")
	assert.Positive(t, i.GOMAXPROCS)
	assert.NotEmpty(t, i.Why)
}

func TestInfoFlags(t *testing.T) {
	var out, errs bytes.Buffer
	assert.Equal(t, statusUnusable, runInfo(t.Context(), []string{"-fast"}, &out, &errs))
	assert.Equal(t, statusUnusable, runInfo(t.Context(), []string{"more"}, &out, &errs))
	assert.Contains(t, errs.String(), `"more" is not a flag`)
}

func TestSize(t *testing.T) {
	assert.Equal(t, "unknown", size(-1))
	assert.Equal(t, "64 B", size(64))
	assert.Equal(t, "48 KiB", size(48<<10))
	assert.Equal(t, "32 MiB", size(32<<20))
}
