package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestBar draws on a terminal, not too often, and leaves an empty line; elsewhere nothing.
func TestBar(t *testing.T) {
	var out bytes.Buffer
	b := newBar(&out, "packing")
	b.progress(1, 2)
	b.clear()
	assert.Empty(t, out.String(), "no terminal")

	b.line.on = true
	b.drawn = time.Now().Add(-time.Hour)
	b.progress(1, 3)
	assert.Equal(t, "\r\x1b[Kpacking ["+strings.Repeat("#", 10)+strings.Repeat(".", 20)+"]  33%", out.String())
	out.Reset()
	b.drawn = time.Now().Add(time.Hour)
	b.progress(2, 3)
	assert.Empty(t, out.String(), "it has just been drawn")
	b.progress(3, 3)
	assert.Equal(t, "\r\x1b[Kpacking ["+strings.Repeat("#", 30)+"] 100%", out.String(), "the last is drawn")
	out.Reset()
	b.progress(0, 0)
	assert.Empty(t, out.String())
	b.clear()
	assert.Equal(t, "\r\x1b[K", out.String())
}
