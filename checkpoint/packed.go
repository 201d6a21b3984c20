package checkpoint

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/lamina-ml/lamina/mla"
)

// Fingerprint tells the tensors of attention block i from any other: a SHA-256 of their types,
// shapes and bytes, of the sizes of scale blocks and of the geometry. It reads every byte of
// them, which takes far less time than packing them. Errors are as for [Model.LoadBlock].
func (m *Model) Fingerprint(i int) (mla.Fingerprint, error) {
	b, err := m.block(i)
	if err != nil {
		return mla.Fingerprint{}, err
	}
	h := sha256.New()
	number := func(x int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(x))) }
	io.WriteString(h, "lamina checkpoint block 1\n")
	c := m.Config.Block
	for _, x := range []int{c.Hidden, c.QLora, c.Core.Heads, c.Core.Nope, c.Core.Rope, c.Core.V, c.Core.Latent} {
		number(x)
	}
	for _, x := range []matrix{b.qa, b.qb, b.kva, b.core.kvb, b.o} {
		number(x.rows)
		number(x.cols)
	}
	buf := make([]byte, 1<<18)
	module := m.Module(i)
	for _, t := range b.all() {
		// Without the number of the layer, and whatever the file is called.
		fmt.Fprintf(h, "%s %v %v\n", t.Name[len(module):], t.DType, t.Shape)
		r := io.NewSectionReader(t, 0, t.size)
		if _, err := io.CopyBuffer(h, struct{ io.Reader }{r}, buf); err != nil {
			return mla.Fingerprint{}, err
		}
	}
	return mla.Fingerprint(h.Sum(nil)), nil
}

// SavePacked saves an attention block that was made of block i of this model to path, beside
// the checkpoint or elsewhere, with the fingerprint of its tensors. Errors are those of
// [Model.Fingerprint] and [mla.Block.Save].
func (m *Model) SavePacked(i int, b *mla.Block, path string) error {
	source, err := m.Fingerprint(i)
	if err != nil {
		return err
	}
	return b.Save(path, source)
}

// LoadPacked reads what [Model.SavePacked] saved for block i: the same bits as [Model.Block],
// without packing. mla.ErrStale, with the reason, if the file was packed from other tensors
// than are here now, for another geometry, or by another version of the format;
// mla.ErrPacked if it is no such file or damaged. Other errors are those of
// [Model.Fingerprint] and [mla.LoadPackedBlock].
func (m *Model) LoadPacked(i int, path string) (*mla.Block, error) {
	source, err := m.Fingerprint(i)
	if err != nil {
		return nil, err
	}
	return mla.LoadPackedBlock(m.Config.Block, path, source)
}
