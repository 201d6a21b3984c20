package checkpoint_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	single = "model.safetensors"
	index  = "model.safetensors.index.json"
)

// written writes files below a directory: tensors x, or with ".json" an index that has x in the
// file of that name, or as "name -> target" a link.
func written(t *testing.T, dir string, files ...string) {
	t.Helper()
	for _, name := range files {
		name, target, _ := strings.Cut(name, " ")
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		switch to, link := strings.CutPrefix(target, "-> "); {
		case link:
			require.NoError(t, os.Symlink(to, path))
		case strings.HasSuffix(name, ".json"):
			require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `{"weight_map":{"x":%q}}`, target), 0o600))
		default:
			require.NoError(t, checkpoint.WriteFile(path, []checkpoint.Tensor{bytesOf("x", 1)}, nil))
		}
	}
}

// TestOneOfSeveral: what is opened where a directory holds more than one thing that may be meant.
func TestOneOfSeveral(t *testing.T) {
	shard := "model-00001-of-00001.safetensors"
	for name, c := range map[string]struct {
		files []string
		opens string // file of x
		says  string
	}{
		"a stray file beside an index": {[]string{single, shard, index + " " + shard}, "", "it holds model.safetensors and model.safetensors.index.json, which names other files"},
		"a stray link to nothing":      {[]string{single + " -> nowhere", shard, index + " " + shard}, "", "it holds model.safetensors and model.safetensors.index.json"},
		"a stray index":                {[]string{single, index + " gone"}, "", "it holds model.safetensors and model.safetensors.index.json"},
		"a broken index":               {[]string{single, index + " "}, "", index},
		"an index that names the file": {[]string{single, index + " " + single}, single, ""},
		"files that no index names":    {[]string{shard, "consolidated.safetensors", "model-00009-of-00009.safetensors", index + " " + shard}, shard, ""},
		"another index":                {[]string{shard, "model.fp16.safetensors.index.json gone", index + " " + shard}, shard, ""},
		"shards without an index":      {[]string{shard}, "", "only " + shard},
		"consolidated alone":           {[]string{"consolidated.safetensors"}, "", "only consolidated.safetensors"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			written(t, dir, c.files...)
			d, err := checkpoint.OpenDir(dir)
			if c.opens == "" {
				require.Error(t, err)
				assert.ErrorContains(t, err, dir)
				assert.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, []string{"x " + c.opens}, names(d))
			require.NoError(t, d.Close())
		})
	}
}

// TestLayersOfTwoModels: neither of two prefixes that are known is taken for the model's.
func TestLayersOfTwoModels(t *testing.T) {
	d := newDraft(t)
	d.attention(module0)
	d.attention("language_model." + module0)
	_, err := checkpoint.OpenModel(d.write())
	assert.ErrorIs(t, err, checkpoint.ErrWeights)
	assert.ErrorContains(t, err, `layers begin with "model." and with "language_model.model.", wanted one model`)
}

// TestElsewhere: a path that is beside or above what is wanted gets the name of that.
func TestElsewhere(t *testing.T) {
	top := t.TempDir()
	at := func(path string) string { return filepath.Join(top, filepath.FromSlash(path)) }
	blob := at("hub/models--a--b/blobs/5f")
	written(t, top, "many/v2/"+single, "many/v3/"+index+" a", "many/none/readme", "many/deep/x/y/"+single, "many/deep/x/y/z/"+single, "many/deep/1/2/3/4/"+single,
		"many/linked -> v2", "many/loop -> .", "many/far -> ../far", "far/"+single, "hub/models--a--b/blobs/5f", "hub/models--a--b/snapshots/c0ffee/"+single+" -> "+blob,
		"hub/models--a--b/refs/main", "empty/readme")
	for i := range 12 {
		written(t, top, fmt.Sprintf("crowd/%02d/%s", i, single))
	}
	for _, open := range []func(string) error{
		func(dir string) error { _, err := checkpoint.OpenDir(dir); return err },
		func(dir string) error { _, err := checkpoint.OpenModel(dir); return err },
	} {
		for _, c := range []struct {
			dir   string
			below []string
			more  string
		}{
			{"many", []string{"many/v2", "many/v3", "many/far", "many/deep/x/y"}, ""},
			{"hub", []string{"hub/models--a--b/snapshots/c0ffee"}, ""},
			{"hub/models--a--b", []string{"hub/models--a--b/snapshots/c0ffee"}, ""},
			{"hub/models--a--b/snapshots", []string{"hub/models--a--b/snapshots/c0ffee"}, ""},
			{"crowd", []string{"crowd/00", "crowd/07"}, " and 4 more"},
		} {
			err := open(at(c.dir))
			require.ErrorIs(t, err, fs.ErrNotExist)
			require.ErrorContains(t, err, at(c.dir)+": ")
			_, list, ok := strings.Cut(err.Error(), "neither model.safetensors nor model.safetensors.index.json, which these directories below it do: ")
			require.True(t, ok, "%v", err)
			list = ", " + strings.TrimSuffix(list, c.more) + ", "
			for _, dir := range c.below {
				assert.Contains(t, list, ", "+at(dir)+", ")
			}
			if c.more == "" {
				assert.Len(t, strings.Split(list, ", "), len(c.below)+2, "each once: %s", list)
			}
			assert.NotContains(t, list, "none")
			assert.NotContains(t, list, "3/4", "too deep")
			assert.NotContains(t, list, "y/z", "in a checkpoint")
			assert.NotContains(t, list, "blobs")
			assert.True(t, strings.HasSuffix(err.Error(), c.more), "%v", err)
		}
		for _, file := range []string{"many/v2/" + single, "many/v3/" + index} {
			err := open(at(file))
			assert.ErrorIs(t, err, syscall.ENOTDIR)
			assert.ErrorContains(t, err, at(file)+": ")
			assert.ErrorContains(t, err, "give the directory of the checkpoint, "+filepath.Dir(at(file)))
		}
		assert.ErrorIs(t, open(at("absent")), fs.ErrNotExist)
		err := open(at("empty"))
		assert.ErrorIs(t, err, fs.ErrNotExist)
		assert.NotContains(t, err.Error(), "below")
	}
	_, err := checkpoint.OpenModel(at("many/v2"))
	assert.ErrorContains(t, err, filepath.Join("v2", "config.json"))
}

// TestLFSPointers: a file that Git LFS has not fetched is called that, whichever it is.
func TestLFSPointers(t *testing.T) {
	text := []byte("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n")
	for _, name := range []string{"model-00001-of-00001.safetensors", index, "config.json"} {
		d := newDraft(t)
		d.shard = 0
		d.attention(module0)
		dir := d.write()
		if name != "config.json" {
			require.NoError(t, os.Rename(filepath.Join(dir, single), filepath.Join(dir, "model-00001-of-00001.safetensors")))
			written(t, dir, index+" model-00001-of-00001.safetensors")
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		_, err := checkpoint.OpenModel(dir)
		require.Error(t, err)
		assert.ErrorContains(t, err, path+": ")
		assert.ErrorContains(t, err, "Git LFS pointer")
		assert.ErrorContains(t, err, "git lfs pull")
	}
	_, err := checkpoint.Parse(text)
	assert.ErrorIs(t, err, checkpoint.ErrFormat)
	assert.ErrorContains(t, err, "Git LFS pointer")
	_, err = checkpoint.ParseConfig(text)
	assert.ErrorIs(t, err, checkpoint.ErrConfig)
	assert.ErrorContains(t, err, "Git LFS pointer")
}
