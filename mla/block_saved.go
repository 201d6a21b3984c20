package mla

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math"
	"slices"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/simd"
)

// A saved block is one file, little-endian:
//
//	0    magic      89 "LAMBLOK"
//	8    uint32     version, what NormAsGamma rounds the query's norm to
//	16   [32]byte   fingerprint of the source
//	48   uint64     Hidden, QLora, Heads, Nope, Rope, V, Latent
//	104  uint64     k block of the scales of QA, QB, KVA and O, 0 without scales
//	136  uint64     bytes of the packed QA (0 where QLora is 0), QB, KVA and O, and of the core
//	176  uint64     values of the biases of QA, KVA and O, 0 for none
//	200  uint64     CRC-64 (ECMA) of the vectors, their padding included
//	208  uint64     0, 5 times
//	248  uint64     CRC-64 of the bytes 0 to 247
//	256  float32    vectors: the query's gamma, the biases of QA, KVA and O, zeros up
//	                to a multiple of 64 bytes
//	     packed     QA, QB, KVA, O, each as fp8.Packed.WriteTo writes it
//	     layer      the core, a file as Layer.Save writes it
const (
	blockMagic   = "\x89LAMBLOK"
	blockVersion = 1
	blockHeader  = 256
	blockSum     = blockHeader - 8
)

// blockHead is the header, but for the checksum at its end.
type blockHead struct {
	Magic     [8]byte
	Version   uint32
	GammaType uint32
	Source    Fingerprint
	Sizes     [7]uint64 // as blockSizes names them
	Groups    [4]uint64 // QA, QB, KVA, O
	Packed    [5]uint64 // QA, QB, KVA, O, the core
	Biases    [3]uint64 // QA, KVA, O
	VectorSum uint64
	Unused    [5]uint64
}

// blockSizes are the sizes of a configuration that its packed weights hang on.
func (c *BlockConfig) blockSizes() [7]namedSize {
	k := &c.Core
	return [...]namedSize{
		{"Hidden", c.Hidden}, {"QLora", c.QLora}, {"Heads", k.Heads}, {"Nope", k.Nope}, {"Rope", k.Rope}, {"V", k.V}, {"Latent", k.Latent},
	}
}

type namedSize struct {
	name string
	n    int
}

// Fingerprint is a SHA-256 of all that the packed form of w hangs on: the sizes of
// cfg, and the shapes, types, blocks, codes and scales of the matrices, and the
// norms and biases. It reads every weight, and checks nothing: NewBlock does.
func (w BlockWeights) Fingerprint(cfg BlockConfig) Fingerprint {
	h := sha256.New()
	number := func(x int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(x))) }
	io.WriteString(h, "lamina block weights 1\n")
	for _, s := range cfg.blockSizes() {
		number(s.n)
	}
	for _, m := range []fp8.Matrix{w.QA, w.QB, w.KVA, w.O} {
		sum := m.Digest()
		h.Write(sum[:])
	}
	number(int(w.QGamma.Kind()))
	for _, v := range []Rows{w.QGamma, w.QABias, w.KVABias, w.OBias} {
		number(v.Len())
		h.Write(gammaBytes(widened(v)))
	}
	core := w.Core.Fingerprint(cfg.Core)
	h.Write(core[:])
	return Fingerprint(h.Sum(nil))
}

// Save writes the packed weights, norms and biases to path, where LoadPackedBlock
// finds them. It is to a Block what Layer.Save is to a Layer, the way in which the
// file takes the place of one that is there included.
func (b *Block) Save(path string, source Fingerprint) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	if err := replace(path, func(w io.Writer) error { return b.write(w, source) }); err != nil {
		return fmt.Errorf("mla: save %s: %w", path, err)
	}
	return nil
}

func (b *Block) write(w io.Writer, source Fingerprint) error {
	vectors := gammaBytes(slices.Concat(b.qGamma, b.qa.bias, b.kva.bias, b.o.bias))
	h := blockHead{
		Magic: [8]byte([]byte(blockMagic)), Version: blockVersion, GammaType: uint32(b.qRound), Source: source,
		VectorSum: crc64.Checksum(vectors, crcTable),
	}
	for i, s := range b.cfg.blockSizes() {
		h.Sizes[i] = uint64(s.n)
	}
	for i, p := range b.inOrder() {
		if p.w != nil {
			h.Groups[i], h.Packed[i] = uint64(p.group), packedSize(p.w)
		}
	}
	h.Packed[4] = b.core.savedSize()
	for i, bias := range [][]float32{b.qa.bias, b.kva.bias, b.o.bias} {
		h.Biases[i] = uint64(len(bias))
	}
	head, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil || len(head) != blockSum {
		panic(fmt.Sprintf("mla: a header of %d bytes: %v", len(head), err)) // its type says so
	}
	head = binary.LittleEndian.AppendUint64(head, crc64.Checksum(head, crcTable))
	if _, err := w.Write(append(head, vectors...)); err != nil {
		return err
	}
	for _, p := range b.inOrder() {
		if p.w == nil {
			continue
		}
		if _, err := p.w.WriteTo(w); err != nil {
			return err
		}
	}
	return b.core.write(w, source)
}

// inOrder is the projections as they lie in a file, with one that may have no weights.
func (b *Block) inOrder() [4]*projection { return [...]*projection{&b.qa, &b.qb, &b.kva, &b.o} }

// savedSize is the bytes that write writes.
func (l *Layer) savedSize() uint64 {
	n := uint64(savedHeader + gammaSize(l.cfg.Latent))
	for _, p := range l.w.all() {
		n += packedSize(p)
	}
	return n
}

// LoadPackedBlock makes a block of weights that Block.Save wrote to path, and of
// cfg, which may differ from the saved block's in all but Hidden, QLora, Heads,
// Nope, Rope, V and Latent: weights are packed alike for either arithmetic. It gives the bits of a block that NewBlock makes of the
// source, on any machine. What it refuses, and how, is as for LoadPacked: ErrStale
// for another source, size or version, ErrPacked for a damaged file, and never more
// memory than the file has bytes.
func LoadPackedBlock(cfg BlockConfig, path string, source Fingerprint) (*Block, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	core := cfg.Core
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	f, size, err := openRegular(path)
	if err != nil {
		return nil, fmt.Errorf("mla: load: %w", err)
	}
	defer f.Close()
	b, err := readBlock(cfg, core, f, size, source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// readBlock reads a block of a checked configuration; core is its core's before
// checking.
func readBlock(cfg BlockConfig, core Config, r io.ReaderAt, size int64, source Fingerprint) (_ *Block, err error) {
	h, err := readBlockHead(r, size)
	if err != nil {
		return nil, err
	}
	if err := h.check(&cfg, size, source); err != nil {
		return nil, err
	}
	b := &Block{cfg: cfg, qRound: forms.Rounding(h.GammaType)}
	defer func() {
		if err != nil {
			b.free()
		}
	}()
	at, err := h.readVectors(r, b)
	if err != nil {
		return nil, err
	}
	if at, err = h.readProjections(r, b, at); err != nil {
		return nil, err
	}
	if core, err = core.checked(); err != nil {
		return nil, err
	}
	left := int64(h.Packed[4])
	if b.core, err = readLayer(core, io.NewSectionReader(r, at, left), left, source); err != nil {
		return nil, fmt.Errorf("the core: %w", err)
	}
	b.cfg.Core = b.core.Config()
	return b, nil
}

// readBlockHead reads a header that is whole and of this version.
func readBlockHead(r io.ReaderAt, size int64) (h blockHead, err error) {
	if size < blockHeader {
		return h, fmt.Errorf("%w: size is %d, want at least the %d of a header", ErrPacked, size, blockHeader)
	}
	var b [blockHeader]byte
	if err := readAt(r, b[:], 0); err != nil {
		return h, err
	}
	if _, err := binary.Decode(b[:], binary.LittleEndian, &h); err != nil {
		panic("mla: " + err.Error()) // it is long enough
	}
	switch sum := crc64.Checksum(b[:blockSum], crcTable); {
	case string(h.Magic[:]) != blockMagic:
		return h, fmt.Errorf("%w: magic is %q, want %q", ErrPacked, h.Magic[:], blockMagic)
	case h.Version != blockVersion:
		return h, fmt.Errorf("%w: version is %d, want %d", ErrStale, h.Version, blockVersion)
	case binary.LittleEndian.Uint64(b[blockSum:]) != sum:
		return h, fmt.Errorf("%w: checksum of the header is wrong", ErrPacked)
	}
	return h, nil
}

// check returns an error unless the header is of these weights, and of a file of size
// bytes.
func (h *blockHead) check(c *BlockConfig, size int64, source Fingerprint) error {
	if h.Source != source {
		return fmt.Errorf("%w: packed from %v, want %v", ErrStale, h.Source, source)
	}
	for i, s := range c.blockSizes() {
		if h.Sizes[i] != uint64(s.n) {
			return fmt.Errorf("%w: %s is %d, want %d", ErrStale, s.name, h.Sizes[i], s.n)
		}
	}
	if h.GammaType > uint32(forms.RoundF16) {
		return fmt.Errorf("%w: type of gamma is %d, want at most %d", ErrPacked, h.GammaType, forms.RoundF16)
	}
	if h.Unused != [5]uint64{} {
		return fmt.Errorf("%w: unused fields are %v, want zeros", ErrPacked, h.Unused)
	}
	for i, s := range []namedSize{{"QA", c.QLora}, {"KVA", c.Core.Width()}, {"O", c.Hidden}} {
		if n := h.Biases[i]; n != 0 && n != uint64(s.n) {
			return fmt.Errorf("%w: the bias of %s has %d values, want %d or none", ErrPacked, s.name, n, s.n)
		}
	}
	left := uint64(size) - blockHeader
	for i, name := range []string{"the vectors", "QA", "QB", "KVA", "O", "the core"} {
		n := uint64(h.vectorBytes(c.QLora))
		if i > 0 {
			n = h.Packed[i-1]
		}
		if n > left {
			return fmt.Errorf("%w: %s has %d bytes, and the file %d left", ErrPacked, name, n, left)
		}
		left -= n
	}
	if left != 0 {
		return fmt.Errorf("%w: %d bytes follow the last", ErrPacked, left)
	}
	if (h.Packed[0] == 0) != (c.QLora == 0) {
		return fmt.Errorf("%w: QA has %d bytes where QLora is %d", ErrPacked, h.Packed[0], c.QLora)
	}
	return nil
}

// vectorBytes is the bytes of gamma, the biases, which check has bounded, and padding.
func (h *blockHead) vectorBytes(qLora int) int {
	return gammaSize(qLora + int(h.Biases[0]) + int(h.Biases[1]) + int(h.Biases[2]))
}

// readVectors fills in the query's gamma and the biases, and says where they end.
func (h *blockHead) readVectors(r io.ReaderAt, b *Block) (int64, error) {
	raw := make([]byte, h.vectorBytes(b.cfg.QLora))
	if err := readAt(r, raw, blockHeader); err != nil {
		return 0, err
	}
	if crc64.Checksum(raw, crcTable) != h.VectorSum {
		return 0, fmt.Errorf("%w: checksum of the vectors is wrong", ErrPacked)
	}
	rest := raw
	for _, v := range []struct {
		to *[]float32
		n  int
	}{{&b.qGamma, b.cfg.QLora}, {&b.qa.bias, int(h.Biases[0])}, {&b.kva.bias, int(h.Biases[1])}, {&b.o.bias, int(h.Biases[2])}} {
		if v.n == 0 {
			continue
		}
		*v.to = make([]float32, v.n)
		for i := range v.n {
			(*v.to)[i] = math.Float32frombits(binary.LittleEndian.Uint32(rest[4*i:]))
		}
		rest = rest[4*v.n:]
	}
	for _, x := range rest {
		if x != 0 {
			return 0, fmt.Errorf("%w: something lies behind the vectors, want zeros", ErrPacked)
		}
	}
	return blockHeader + int64(len(raw)), nil
}

// readProjections reads the projections, which begin at at, checks that they are the
// block's, and says where they end.
func (h *blockHead) readProjections(r io.ReaderAt, b *Block, at int64) (int64, error) {
	c := &b.cfg
	in := c.Hidden
	if c.QLora > 0 {
		in = c.QLora
	}
	for i, one := range []struct {
		name string
		n, k int
	}{
		{"QA", c.QLora, c.Hidden}, {"QB", c.Core.Heads * (c.Core.Nope + c.Core.Rope), in},
		{"KVA", c.Core.Width(), c.Hidden}, {"O", c.Hidden, c.Core.Heads * c.Core.V},
	} {
		if one.n == 0 {
			if h.Groups[i] != 0 {
				return 0, fmt.Errorf("%w: the scale block of QA is %d where QLora is 0", ErrPacked, h.Groups[i])
			}
			continue
		}
		size := int64(h.Packed[i])
		w, err := fp8.ReadPacked(io.NewSectionReader(r, at, size), size, nil)
		if errors.Is(err, fp8.ErrPacked) {
			return 0, fmt.Errorf("%w: %s: %w", ErrPacked, one.name, err)
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", one.name, err)
		}
		b.inOrder()[i].w = w
		if w.Batch() != 1 || w.N() != one.n || w.K() != one.k {
			return 0, fmt.Errorf("%w: %s is [%d, %d, %d], want [1, %d, %d]", ErrPacked, one.name, w.Batch(), w.N(), w.K(), one.n, one.k)
		}
		if g := h.Groups[i]; (g != 0) != w.Scaled() || g > math.MaxInt {
			return 0, fmt.Errorf("%w: the scale block of %s is %d, of weights with scales: %v", ErrPacked, one.name, g, w.Scaled())
		}
		b.inOrder()[i].group = int(h.Groups[i])
		at += size
	}
	return at, nil
}
