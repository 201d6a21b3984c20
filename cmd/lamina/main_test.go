package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/stretchr/testify/assert"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

// command runs the program and returns what it printed.
func command(args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(context.Background(), args, &out, &err)
	return status, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	for _, help := range []string{"help", "-h", "-help", "--help"} {
		status, out, err := command(help)
		assert.Equal(t, statusOK, status)
		assert.Contains(t, out, "usage: lamina COMMAND")
		assert.Empty(t, err)
	}
	status, out, err := command()
	assert.Equal(t, statusUnusable, status)
	assert.Empty(t, out)
	assert.Contains(t, err, "usage: lamina COMMAND")

	status, out, err = command("relpay")
	assert.Equal(t, statusUnusable, status)
	assert.Empty(t, out)
	assert.Contains(t, err, `"relpay" is no command`)
	assert.Contains(t, err, "replay")
}

// TestHelp reads help on standard output, in both ways to ask for it.
func TestHelp(t *testing.T) {
	for name, flags := range map[string][]string{
		"bench":   {"model", "op", "kv", "ctx", "batch", "prefill", "m", "sparse", "threads", "time", "budget", "seed", "json", "quick", "weights", "layer"},
		"replay":  {"json", "hash", "threads", "page", "form"},
		"inspect": {"json", "tensors"},
		"info":    {"json"},
		"version": nil,
	} {
		status, out, err := command(name, "-h")
		assert.Equal(t, statusOK, status, name)
		assert.Empty(t, err, name)
		assert.True(t, strings.HasPrefix(out, "usage: lamina "+name), out)
		for _, flag := range flags {
			assert.Contains(t, out, "\n  -"+flag, name)
		}
		assert.Equal(t, len(flags) > 0, strings.Contains(out, "\nflags:\n"), name)
		status, same, err := command("help", name)
		assert.Equal(t, statusOK, status, name)
		assert.Empty(t, err, name)
		assert.Equal(t, out, same)
	}
	_, all, _ := command("help")
	_, out, _ := command("help", "help")
	assert.Equal(t, all, out)
	for fault, args := range map[string][]string{
		`"x" is not a flag`:       {"version", "x"},
		`-x`:                      {"--version", "-x"},
		`"relpay" is no command`:  {"help", "relpay"},
		`"replay" is too much`:    {"help", "bench", "replay"},
		`provided but not define`: {"info", "-fast"},
	} {
		status, out, err := command(args...)
		assert.Equal(t, statusUnusable, status, args)
		assert.Empty(t, out, args)
		assert.Contains(t, err, fault)
	}
}

// full is a disk that has room for a few bytes.
type full struct{ room int }

var errFull = errors.New("no space left")

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestFullOutput ends every command with a status of 2 and one message, at the first write
// that fails.
func TestFullOutput(t *testing.T) {
	for _, args := range []string{"info", "info -json", "version", "help", "bench -h", "help replay", "replay -json", "replay -json testdata"} {
		var stderr bytes.Buffer
		args := strings.Fields(args)
		status := run(t.Context(), args, &full{}, &stderr)
		assert.Equal(t, statusUnusable, status, args)
		assert.Equal(t, "lamina "+args[0]+": standard output: no space left\n", stderr.String())
	}

	stops, disk := 0, &full{room: 1}
	o := &output{w: disk, failed: func() { stops++ }}
	for range 3 {
		_, err := o.Write([]byte("two"))
		assert.ErrorIs(t, err, errFull)
	}
	assert.Equal(t, 1, stops)
	assert.Equal(t, 1-len("two"), disk.room, "one write")

	// A case counts when its line was written, and no further one is run.
	var stderr bytes.Buffer
	const file = "testdata/merge_plain.safetensors"
	status := run(t.Context(), []string{"replay", file, file, file}, &full{room: 300}, &stderr)
	assert.Equal(t, statusUnusable, status)
	assert.Equal(t, 1, strings.Count(stderr.String(), "merge_plain"), stderr.String())
	assert.Contains(t, stderr.String(), "\n1 passed, 0 wrong, 0 could not be used")
	assert.Contains(t, stderr.String(), "\nlamina replay: standard output: no space left\n")
}

// A bench that nobody hears ends before its first row.
func TestFullBench(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine for a second; TestFullOutput has what all commands share")
	}
	for _, args := range []string{"bench -quick", "bench -quick -json"} {
		var stderr bytes.Buffer
		assert.Equal(t, statusUnusable, run(t.Context(), strings.Fields(args), &full{}, &stderr))
		assert.Equal(t, "lamina bench: standard output: no space left\n", stderr.String())
	}
}

func TestVersion(t *testing.T) {
	status, out, _ := command("version")
	assert.Equal(t, statusOK, status)
	assert.Regexp(t, `^lamina \S+ go\S+ \w+/\w+\n$`, out)
}
