package mla_test

import (
	"bufio"
	"debug/elf"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

// variant is a way to run a call that no bit of its result may depend on. A row of variants is
// all that a further one takes.
type variant struct {
	workers int
	page    int // of the two page sizes of a geometry
	buffer  int // of the two expansion buffers, and limits that leave room
	order   order
	pool    *mla.Pool // while it runs
}

// order is what makes workers take their items in an order of its own, so that two items that
// write to one place do so in both orders.
type order string

const (
	asTheyCome order = ""
	together   order = "two at once"
	evenLast   order = "even items late"
	oddLast    order = "odd items late"
)

// variants are all variants; the first gives the bits that the others must have.
var variants = []variant{
	{workers: 1, page: 0, buffer: 0, order: asTheyCome},
	{workers: 1, page: 1, buffer: 1, order: asTheyCome},
	{workers: 2, page: 0, buffer: 0, order: oddLast},
	{workers: 2, page: 0, buffer: 0, order: evenLast},
	{workers: 2, page: 1, buffer: 0, order: together},
	{workers: 3, page: 0, buffer: 1, order: evenLast},
	{workers: 3, page: 1, buffer: 0, order: oddLast},
	{workers: 7, page: 0, buffer: 0, order: asTheyCome},
	{workers: 7, page: 1, buffer: 1, order: together},
	{workers: 7, page: 0, buffer: 0, order: oddLast},
}

func (v variant) String() string {
	s := fmt.Sprintf("%d workers, page size %d and limits %d of the two", v.workers, v.page, v.buffer)
	if v.order != asTheyCome {
		s += ", " + string(v.order)
	}
	return s
}

// lateness is as long as other items of these small calls take.
const lateness = 50 * time.Microsecond

// compute runs a call as the variant says, and tells how many workers had work, as far as that
// is known.
func (v variant) compute(t testing.TB, of run) (o outcome, workers int) {
	t.Helper()
	v.pool = mla.NewPool(v.workers)
	defer func() { require.NoError(t, v.pool.Close()) }()
	var meet workpool.Meet
	late := func(n int) func(int, int) {
		return func(_, item int) {
			if item%2 == n {
				for begin := time.Now(); time.Since(begin) < lateness; {
					runtime.Gosched()
				}
			}
		}
	}
	switch v.order {
	case together:
		v.pool.SetHook(meet.Wait)
	case evenLast:
		v.pool.SetHook(late(0))
	case oddLast:
		v.pool.SetHook(late(1))
	}
	return of(t, v), meet.Workers()
}

// parts is what is compared of two outcomes.
func (o *outcome) parts() []part {
	return []part{{"out", o.out}, {"lse", o.lse}, {"max logit", o.top}, {"cache rows", o.rows}}
}

type part struct {
	name string
	x    []float32
}

// differs tells where two outcomes are not the same bit for bit, NaN as a class.
func (o *outcome) differs(got *outcome) error {
	if o.ignored != got.ignored {
		return fmt.Errorf("%d entries are ignored, want %d", got.ignored, o.ignored)
	}
	others := got.parts()
	for n, p := range o.parts() {
		for i, want := range p.x {
			if got := others[n].x[i]; !kerneltest.SameBits(want, got) {
				return fmt.Errorf("%s[%d] is %v (%08x), want %v (%08x)", p.name, i,
					got, math.Float32bits(got), want, math.Float32bits(want))
			}
		}
	}
	return nil
}

// hash is the bits of an outcome, every NaN as the quiet positive one, in a hash for each part.
func (o *outcome) hash() string {
	s := fmt.Sprintf("ignored %d", o.ignored)
	for _, p := range o.parts() {
		h := fnv.New64a()
		for _, x := range p.x {
			bits := math.Float32bits(x)
			if x != x {
				bits = 0x7FC00000
			}
			h.Write([]byte{byte(bits), byte(bits >> 8), byte(bits >> 16), byte(bits >> 24)})
		}
		s += fmt.Sprintf(", %s %016x", p.name, h.Sum64())
	}
	return s
}

func hashOf(s string) string {
	h := fnv.New64a()
	h.Write([]byte(s))
	return fmt.Sprintf("%016x", h.Sum64())
}

// differential runs the geometry that data draws in every variant and on every level, and says
// where the bits differ. With an oracle it compares with float64, too.
func differential(t testing.TB, data []byte, on []*level, withOracle bool) (*geometry, error) {
	t.Helper()
	g := geometryOf(data)
	of := g.call.prepare(g, t)
	want, _ := variants[0].compute(t, of)
	if withOracle && want.check != nil {
		want.check(t)
		g.checked = true
	}
	for _, v := range variants[1:] {
		got, workers := v.compute(t, of)
		g.workers = max(g.workers, workers)
		if err := want.differs(&got); err != nil {
			return g, fmt.Errorf("%v: %w", v, err)
		}
	}
	hash := want.hash()
	g.hash = hashOf(hash)
	for _, l := range on {
		got, err := l.hash(data)
		if err != nil {
			return g, err
		}
		if got != hash {
			return g, fmt.Errorf("%s gives %s, and %s %s", l.name, got, simd.Level(), hash)
		}
	}
	return g, nil
}

// levelEnv tells a test binary that another one wants to know its hashes.
const levelEnv = "LAMINA_GEOMETRY_LEVEL"

// level is another instruction set of this machine. A program has one level from its start to
// its end, so this test runs itself once more for each other level, and asks that process for
// the hash of a geometry: a line of hexadecimal digits in, a line with a hash out.
type level struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

// answerMark begins the lines that are answers; a test binary prints others, too.
const answerMark = "geometry: "

// otherLevels starts a process for every level of this machine but the one in use. In an emulator
// there are none: a process that qemu-user forks may hang before its program begins. There, and
// between machines, TestGeometry has the hashes of testdata/geometry.txt.
func otherLevels(t testing.TB) (all []*level, err error) {
	t.Helper()
	if emulated() {
		t.Logf("emulated: of %v only %s runs here; the others have %s", simd.Levels(), simd.Level(), hashFile)
		return nil, nil
	}
	for _, name := range simd.Levels() {
		if name == simd.Level() {
			continue
		}
		l, err := startLevel(name)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("no process for level %s: %w", name, err), closeLevels(all))
		}
		all = append(all, l)
	}
	return all, nil
}

// emulated reports whether the programs of this system are for another architecture.
func emulated() bool {
	shell, err := elf.Open("/bin/sh")
	if err != nil {
		return false // no system that such an emulator is for
	}
	defer shell.Close()
	machines := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}
	return machines[shell.Machine] != runtime.GOARCH
}

func startLevel(name string) (*level, error) {
	l := &level{name: name, cmd: exec.Command(os.Args[0], "-test.run=^TestGeometry$", "-test.timeout=0")}
	l.cmd.Env = append(os.Environ(), simd.Env+"="+name, levelEnv+"="+name)
	l.cmd.Stderr = os.Stderr
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	l.out = bufio.NewScanner(out)
	return l, l.cmd.Start()
}

// hash asks for the hash of a geometry.
func (l *level) hash(data []byte) (string, error) {
	if _, err := fmt.Fprintf(l.in, "%x\n", data); err != nil {
		return "", fmt.Errorf("level %s: %w", l.name, err)
	}
	var said []string
	for l.out.Scan() {
		if answer, ok := strings.CutPrefix(l.out.Text(), answerMark); ok {
			return answer, nil
		}
		said = append(said, l.out.Text())
	}
	return "", fmt.Errorf("level %s ended without an answer: %s", l.name, strings.Join(said, "\n"))
}

// closeLevels ends the processes, each of which must have passed.
func closeLevels(all []*level) (err error) {
	for _, l := range all {
		l.in.Close() // the end of its input ends it
		for l.out.Scan() {
		}
		if e := l.cmd.Wait(); e != nil && err == nil {
			err = fmt.Errorf("level %s: %w", l.name, e)
		}
	}
	return err
}

// answerHashes is what TestGeometry is in a process for another level.
func answerHashes(t *testing.T) {
	require.Equal(t, os.Getenv(levelEnv), simd.Level())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		t.Run("", func(t *testing.T) {
			data, err := hex.DecodeString(lines.Text())
			require.NoError(t, err)
			g := geometryOf(data)
			got, _ := variants[0].compute(t, g.call.prepare(g, t))
			fmt.Println(answerMark + got.hash())
		})
	}
	require.NoError(t, lines.Err())
}

// geometryBytes is the bytes of a geometry by its number.
func geometryBytes(seed int) []byte {
	r := rand.New(rand.NewPCG(uint64(seed), 14))
	data := make([]byte, 80)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// hashFile has the hashes of the geometries that -short runs, a line for each: those of all levels
// on all machines. Whoever changes how geometries are drawn writes it anew, on one level, with
//
//	go test ./mla -run TestGeometry -args -write
//
// and lets the other levels, and other machines, compare with it.
const hashFile = "testdata/geometry.txt"

var write = flag.Bool("write", false, "write the hashes of "+hashFile+" instead of comparing with them")

// shortSeeds is the number of geometries that -short runs.
const shortSeeds = 160

// TestGeometry draws small calls of all kinds and demands one hash of everything they give, on 1,
// 2, 3 and 7 workers, every level of this machine, two page sizes and two expansion buffers.
// Caches, workspaces and outputs are NaN before each run.
func TestGeometry(t *testing.T) {
	if os.Getenv(levelEnv) != "" {
		answerHashes(t)
		return
	}
	others, err := otherLevels(t)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closeLevels(others)) })
	seeds := 600
	if testing.Short() {
		seeds = shortSeeds
	}
	var known, hashes []string
	if !*write {
		text, err := os.ReadFile(hashFile)
		require.NoError(t, err)
		known = strings.Fields(string(text))
		require.Len(t, known, shortSeeds)
	}
	shared, checked := 0, 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			data := geometryBytes(seed)
			g, err := differential(t, data, others, true)
			hashes = append(hashes, g.hash)
			if g.workers > 1 {
				shared++
			}
			if g.checked {
				checked++
			}
			if err != nil {
				t.Fatal(report(t, data, others, g, err))
			}
			if seed < len(known) {
				require.Equal(t, known[seed], g.hash, "%s: %s: %+v", hashFile, g.call.name, g)
			}
		})
	}
	t.Logf("%d calls on %s and %d other levels, %d shared by workers, %d compared with float64",
		len(hashes), simd.Level(), len(others), shared, checked)
	if len(hashes) < seeds { // -run names some of them
		return
	}
	require.Greater(t, 2*shared, seeds, "calls that two workers shared")
	require.NotZero(t, checked, "calls compared with float64")
	if *write && !t.Failed() {
		require.NoError(t, os.WriteFile(hashFile, []byte(strings.Join(hashes[:shortSeeds], "\n")+"\n"), 0o644))
	}
}

// FuzzGeometry is TestGeometry for the geometry that the bytes draw.
func FuzzGeometry(f *testing.F) {
	for seed := range 12 {
		f.Add(geometryBytes(seed))
	}
	var others []*level
	started := false // in the process that computes, not in the one that directs it
	f.Cleanup(func() { require.NoError(f, closeLevels(others)) })
	f.Fuzz(func(t *testing.T, data []byte) {
		if !started {
			started = true
			var err error
			others, err = otherLevels(t)
			require.NoError(t, err)
		}
		if g, err := differential(t, data, others, true); err != nil {
			t.Fatal(report(t, data, others, g, err))
		}
	})
}

// report says what differs, with the smallest input that differs, too.
func report(t testing.TB, data []byte, others []*level, g *geometry, err error) string {
	t.Helper()
	small := smallest(data, func(data []byte) bool {
		for range 3 { // an error of workers does not come every time
			if _, err := differential(t, data, others, false); err != nil {
				return true
			}
		}
		return false
	})
	h, e := differential(t, small, others, false)
	s := fmt.Sprintf("%v\n%s: %+v\n", err, g.call.name, g)
	if e == nil {
		e = fmt.Errorf("not every time")
	}
	return s + fmt.Sprintf("smallest: %v\n%s: %+v\ngo test fuzz v1\n[]byte(%q)", e, h.call.name, h, small)
}

// smallest makes bytes 0 or smaller, and drops what is 0 at the end, as long as they fail.
func smallest(data []byte, fails func([]byte) bool) []byte {
	data = slices.Clone(data)
	for i := len(data) - 1; i >= 0; i-- {
		for _, to := range []byte{0, 1, 2, 3} {
			was := data[i]
			if to >= was {
				break
			}
			if data[i] = to; fails(data) {
				break
			}
			data[i] = was
		}
	}
	for len(data) > 0 && data[len(data)-1] == 0 {
		data = data[:len(data)-1]
	}
	return data
}
