package mla

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math"
	"os"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/atomicfile"
	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/internal/openfile"
	"github.com/lamina-ml/lamina/simd"
)

// A saved layer is one file, little-endian:
//
//	0    magic      89 "LAMLAYR"
//	8    uint32     version, what NormAsGamma rounds to
//	16   [32]byte   fingerprint of the source
//	48   uint64     Heads, Nope, V, Latent
//	80   uint64     n block and k block of the scales, 0 without scales
//	96   uint64     bytes of the packed UK, K and UV
//	120  uint64     CRC-64 (ECMA) of gamma, its padding included
//	128  uint64     0, 7 times
//	184  uint64     CRC-64 of the bytes 0 to 183
//	192  float32    gamma [R], zeros up to a multiple of 64 bytes
//	     packed     UK, K, UV, each as fp8.Packed.WriteTo writes it
const (
	savedMagic   = "\x89LAMLAYR"
	savedVersion = 1
	savedHeader  = 192
	savedSum     = savedHeader - 8
	savedAlign   = 64
)

// savedHead is the header, but for the checksum at its end.
type savedHead struct {
	Magic     [8]byte
	Version   uint32
	GammaType uint32
	Source    Fingerprint
	Heads     uint64
	Nope      uint64
	V         uint64
	Latent    uint64
	NBlock    uint64
	KBlock    uint64
	UK, K, UV uint64
	GammaSum  uint64
	Unused    [7]uint64
}

var crcTable = crc64.MakeTable(crc64.ECMA)

// Fingerprint tells the source of packed weights from any other: a SHA-256 that
// the caller makes of what the weights come from, by Weights.Fingerprint, or of
// the files of a checkpoint.
type Fingerprint [sha256.Size]byte

// String is the fingerprint in hexadecimal.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }

// Fingerprint is a SHA-256 of all that the packed form of w hangs on: Heads, Nope, V
// and Latent of cfg, and the shapes, types, blocks, codes and scales of the matrices,
// and gamma. It reads every weight, which is far less work than packing them, and
// checks nothing: New does.
func (w Weights) Fingerprint(cfg Config) Fingerprint {
	h := sha256.New()
	number := func(x int) { h.Write(binary.LittleEndian.AppendUint64(nil, uint64(x))) }
	matrix := func(m fp8.Matrix) {
		sum := m.Digest()
		h.Write(sum[:])
	}
	io.WriteString(h, "lamina weights 1\n")
	for _, x := range []int{cfg.Heads, cfg.Nope, cfg.V, cfg.Latent} {
		number(x)
	}
	matrix(w.KVB)
	matrix(w.K)
	for _, ms := range [][]fp8.Matrix{w.UK, w.UV} {
		number(len(ms))
		for _, m := range ms {
			matrix(m)
		}
	}
	number(int(w.Gamma.Kind()))
	number(w.Gamma.Len())
	gamma := make([]float32, w.Gamma.Len())
	w.Gamma.Widen(gamma, 0, len(gamma))
	h.Write(gammaBytes(gamma))
	return Fingerprint(h.Sum(nil))
}

// gammaBytes is gamma as it lies in a file.
func gammaBytes(gamma []float32) []byte {
	b := make([]byte, 0, gammaSize(len(gamma)))
	for _, x := range gamma {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b[:cap(b)]
}

// gammaSize is the bytes of gamma and its padding; latent is at most maxSize.
func gammaSize(latent int) int { return (4*latent + savedAlign - 1) &^ (savedAlign - 1) }

// Save writes the packed weights and the latent norm to path, where LoadPacked finds
// them: reading them takes less time than packing them again. source says what they
// were packed from.
//
// The file takes the place of one that is there at once, and only when all of it is
// on the disk: it is written beside it first, under a name that begins like its name
// and ends in .tmp. If path is a symbolic link, the link stays, and what it leads to
// is replaced or made. A file that is replaced leaves its permission bits to the new
// one, but not its owner, access lists or extended attributes; other hard links keep
// the old one. What is there and is no regular file is an error. After an error there
// is what there was before; only a process that is killed can leave such a .tmp
// behind. Errors name the path: ErrClosed, and what the operating system says.
func (l *Layer) Save(path string, source Fingerprint) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.w.release()
	if err := replace(path, func(w io.Writer) error { return l.write(w, source) }); err != nil {
		return fmt.Errorf("mla: save %s: %w", path, err)
	}
	return nil
}

func (l *Layer) write(w io.Writer, source Fingerprint) error {
	gamma := gammaBytes(l.gamma)
	h := savedHead{
		Magic: [8]byte([]byte(savedMagic)), Version: savedVersion, GammaType: uint32(l.gammaType), Source: source,
		Heads: uint64(l.cfg.Heads), Nope: uint64(l.cfg.Nope), V: uint64(l.cfg.V), Latent: uint64(l.cfg.Latent),
		NBlock: uint64(l.w.nBlock), KBlock: uint64(l.w.kBlock),
		UK: packedSize(l.w.uk), K: packedSize(l.w.k), UV: packedSize(l.w.uv),
		GammaSum: crc64.Checksum(gamma, crcTable),
	}
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil || len(b) != savedSum {
		panic(fmt.Sprintf("mla: a header of %d bytes: %v", len(b), err)) // its type says so
	}
	b = binary.LittleEndian.AppendUint64(b, crc64.Checksum(b, crcTable))
	if _, err := w.Write(append(b, gamma...)); err != nil {
		return err
	}
	for _, p := range l.w.all() {
		if _, err := p.WriteTo(w); err != nil {
			return err
		}
	}
	return nil
}

func packedSize(p *fp8.Packed) uint64 { return fp8.PackedHeader + uint64(p.Bytes()) }

// replace writes a file and puts it in the place of path, whole and on the disk, or
// not at all.
func replace(path string, write func(io.Writer) error) error { return atomicfile.Replace(path, write) }

// LoadPacked makes a layer of weights that Save wrote to path, and of cfg, which may
// differ from the saved layer's in all but Heads, Nope, V and Latent: a file serves
// both arithmetics. It gives the bits of a layer that New makes of the source, on any
// machine.
//
// The file is refused with ErrStale, and the difference, if source, one of those four
// sizes or the version of the format is not what it was saved with: New and Save make
// a new one. It is refused with ErrPacked if it is no such file or is damaged: every
// size is checked before it is used, every byte is under a checksum, and what the
// header claims costs no memory that the file does not have. Checksums find
// accidents, not forgers: who may write the file decides what the layer computes.
// Other errors: ErrConfig, ErrWeights (ActDynamic on weights without scales), and
// what simd.Err and the operating system say. Errors name the path.
//
// The weights are read into memory off the garbage-collected heap; the file is closed
// on return. That they are not mapped, which would be faster, is for safety: a mapped
// file that somebody shortens raises SIGBUS where a kernel reads, and in the middle
// of a kernel Go cannot make an error of that: it ends the process.
func LoadPacked(cfg Config, path string, source Fingerprint) (*Layer, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	f, size, err := openRegular(path)
	if err != nil {
		return nil, fmt.Errorf("mla: load: %w", err)
	}
	defer f.Close()
	l, err := readLayer(cfg, f, size, source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// openRegular opens a regular file, without waiting for what else may be there; its errors name
// the path.
func openRegular(path string) (*os.File, int64, error) {
	f, size, err := openfile.Regular(path)
	if errors.Is(err, openfile.ErrKind) {
		err = fmt.Errorf("%s: %w: %w", path, ErrPacked, err)
	}
	return f, size, err
}

func readLayer(cfg Config, r io.ReaderAt, size int64, source Fingerprint) (*Layer, error) {
	h, err := readSavedHead(r, size)
	if err != nil {
		return nil, err
	}
	if err := h.check(cfg, size, source); err != nil {
		return nil, err
	}
	l := &Layer{cfg: cfg, gammaType: forms.Rounding(h.GammaType)}
	if l.gamma, err = h.readGamma(r, cfg.Latent); err != nil {
		return nil, err
	}
	if l.w, err = h.readPacked(r, cfg); err != nil {
		return nil, err
	}
	return l.ready()
}

// readSavedHead reads a header that is whole and of this version.
func readSavedHead(r io.ReaderAt, size int64) (h savedHead, err error) {
	if size < savedHeader {
		return h, fmt.Errorf("%w: size is %d, want at least the %d of a header", ErrPacked, size, savedHeader)
	}
	var b [savedHeader]byte
	if err := readAt(r, b[:], 0); err != nil {
		return h, err
	}
	if _, err := binary.Decode(b[:], binary.LittleEndian, &h); err != nil {
		panic("mla: " + err.Error()) // it is long enough
	}
	switch sum := crc64.Checksum(b[:savedSum], crcTable); {
	case string(h.Magic[:]) != savedMagic:
		return h, fmt.Errorf("%w: magic is %q, want %q", ErrPacked, h.Magic[:], savedMagic)
	case h.Version != savedVersion:
		return h, fmt.Errorf("%w: version is %d, want %d", ErrStale, h.Version, savedVersion)
	case binary.LittleEndian.Uint64(b[savedSum:]) != sum:
		return h, fmt.Errorf("%w: checksum of the header is wrong", ErrPacked)
	}
	return h, nil
}

// check returns an error unless the header is of these weights, and of a file of size
// bytes.
func (h *savedHead) check(cfg Config, size int64, source Fingerprint) error {
	if h.Source != source {
		return fmt.Errorf("%w: packed from %v, want %v", ErrStale, h.Source, source)
	}
	for _, f := range []struct {
		name  string
		saved uint64
		want  int
	}{{"Heads", h.Heads, cfg.Heads}, {"Nope", h.Nope, cfg.Nope}, {"V", h.V, cfg.V}, {"Latent", h.Latent, cfg.Latent}} {
		if f.saved != uint64(f.want) {
			return fmt.Errorf("%w: %s is %d, want %d", ErrStale, f.name, f.saved, f.want)
		}
	}
	if h.GammaType > uint32(forms.RoundF16) {
		return fmt.Errorf("%w: type of gamma is %d, want at most %d", ErrPacked, h.GammaType, forms.RoundF16)
	}
	if h.Unused != [7]uint64{} {
		return fmt.Errorf("%w: unused fields are %v, want zeros", ErrPacked, h.Unused)
	}
	left := uint64(size) - savedHeader
	for _, f := range []struct {
		name string
		size uint64
	}{{"gamma", uint64(gammaSize(cfg.Latent))}, {"UK", h.UK}, {"K", h.K}, {"UV", h.UV}} {
		if f.size > left {
			return fmt.Errorf("%w: %s has %d bytes, and the file %d left", ErrPacked, f.name, f.size, left)
		}
		left -= f.size
	}
	if left != 0 {
		return fmt.Errorf("%w: %d bytes follow the last", ErrPacked, left)
	}
	return nil
}

func (h *savedHead) readGamma(r io.ReaderAt, latent int) ([]float32, error) {
	b := make([]byte, gammaSize(latent))
	if err := readAt(r, b, savedHeader); err != nil {
		return nil, err
	}
	if crc64.Checksum(b, crcTable) != h.GammaSum {
		return nil, fmt.Errorf("%w: checksum of gamma is wrong", ErrPacked)
	}
	gamma := make([]float32, latent)
	for i := range gamma {
		gamma[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	if !bytes.Equal(b, gammaBytes(gamma)) {
		return nil, fmt.Errorf("%w: something lies behind gamma, want zeros", ErrPacked)
	}
	return gamma, nil
}

// readPacked reads the products, and checks that they are a layer's.
func (h *savedHead) readPacked(r io.ReaderAt, c Config) (_ *packed, err error) {
	p := &packed{}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	at := int64(savedHeader + gammaSize(c.Latent))
	for _, one := range []struct {
		to   **fp8.Packed
		name string
		size uint64
		n, k int
	}{{&p.uk, "UK", h.UK, c.Latent, c.Nope}, {&p.k, "K", h.K, c.Nope, c.Latent}, {&p.uv, "UV", h.UV, c.V, c.Latent}} {
		w, err := fp8.ReadPacked(io.NewSectionReader(r, at, int64(one.size)), int64(one.size), nil)
		if errors.Is(err, fp8.ErrPacked) {
			return nil, fmt.Errorf("%w: %s: %w", ErrPacked, one.name, err)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.name, err)
		}
		*one.to = w
		if w.Batch() != c.Heads || w.N() != one.n || w.K() != one.k {
			return nil, fmt.Errorf("%w: %s is [%d, %d, %d], want [%d, %d, %d]", ErrPacked, one.name, w.Batch(), w.N(), w.K(), c.Heads, one.n, one.k)
		}
		at += int64(one.size)
	}
	p.scaled = p.uk.Scaled() && p.k.Scaled() && p.uv.Scaled()
	for _, block := range []uint64{h.NBlock, h.KBlock} {
		if (block != 0) != p.scaled || block > math.MaxInt {
			return nil, fmt.Errorf("%w: scale blocks are %d and %d, of weights with scales: %v", ErrPacked, h.NBlock, h.KBlock, p.scaled)
		}
	}
	p.nBlock, p.kBlock = int(h.NBlock), int(h.KBlock)
	return p, nil
}

// readAt fills b. The end of r is an ErrPacked.
func readAt(r io.ReaderAt, b []byte, at int64) error {
	_, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(b))), b)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends before byte %d", ErrPacked, at+int64(len(b)))
	}
	return err
}
