package workshop

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// bodyOf writes a body of a level on its own.
func bodyOf(t *testing.T, l *Level, name string) *A {
	t.Helper()
	for _, k := range kernels {
		for _, b := range k.bodies(l) {
			if gen, ok := b.Gen.(func(*A)); ok && k.Name == name {
				a := newNEONFile(l).begin(k.Name, k.params(), k.results())
				gen(a)
				return a
			}
		}
	}
	t.Fatalf("no body of %s for %s", name, l.Name)
	return nil
}

// TestLoops tells what the innermost loops of every NEON body are made of.
func TestLoops(t *testing.T) {
	for _, k := range kernels {
		for _, level := range []*Level{neon, neonbf16} {
			if len(k.bodies(level)) == 0 {
				continue
			}
			for _, l := range bodyOf(t, level, k.Name).Loops() {
				if !l.Inner {
					continue
				}
				t.Logf("%-20s %-8s %-9s fma %3d  load %3d  store %3d  vector %3d  other %2d", k.Name, level.Name, l.Label, l.FMA, l.Load, l.Store, l.Vector, l.Integer+l.Prefetch+l.Branch)
			}
		}
	}
}

// core is what a core can start in a cycle, and the cycles from a fused multiply-add to the next one of the same sum.
// The numbers are those of the optimization guides, of nothing measured here.
type core struct {
	name                string
	fma, loads, decoded float64
	latency             float64
	pairs               bool    // multiplies pairs of bf16, BFMLALB and BFMLALT as often as it starts fma
	blocks              float64 // cycles in which a load of 16 bytes lets no fma start: in-order cores of 8-byte loads
}

var cores = []core{
	{name: "A53/A55", fma: 1, loads: 0.5, decoded: 2, latency: 4, blocks: 2},
	{name: "A72", fma: 1, loads: 1, decoded: 3, latency: 3},
	{name: "A76", fma: 2, loads: 2, decoded: 4, latency: 2},
	{name: "V1", fma: 4, loads: 3, decoded: 8, latency: 2, pairs: true},
}

// cycles is the least that a loop can take whose every sum takes chain multiply-adds one after the other.
func (c core) cycles(n Count, chain int) float64 {
	vectors, moves := float64(n.FMA+n.Vector), float64(n.Load+n.Store)
	return max(vectors/c.fma+moves*c.blocks, moves/c.loads, float64(n.total())/c.decoded, float64(chain)*c.latency)
}

// steps is a loop that takes some steps of k, or keys, or pairs of them.
type steps struct {
	name string
	Loop
	steps int
	fused int  // fma of a sum in a step, one after the other: 0 is 1
	pairs bool // for cores that multiply pairs
}

// chain is how many fma of a sum follow each other.
func (s steps) chain() int { return s.steps * max(1, s.fused) }

// perStep is what a step has of some instructions.
func (s steps) perStep(instructions int) float64 { return float64(instructions) / float64(s.steps) }

// report tells what a step is made of and how many cycles it takes at least. If widest, nothing but instructions of the
// vector unit may bound it on out-of-order cores.
func (s steps) report(t *testing.T, widest bool) {
	t.Helper()
	text := fmt.Sprintf("%s: fma %.0f, other vectors %.2f, loads %.2f, others %.2f a step; cycles, and what fma take of them:", s.name,
		s.perStep(s.FMA), s.perStep(s.Vector), s.perStep(s.Load), s.perStep(s.total()-s.FMA-s.Vector-s.Load))
	for _, c := range cores {
		if s.pairs && !c.pairs {
			continue
		}
		bound := c.cycles(s.Count, s.chain())
		text += fmt.Sprintf("  %s %.2f %.0f%%", c.name, bound/float64(s.steps), 100*float64(s.FMA)/c.fma/bound)
		if widest && c.blocks == 0 && bound > float64(s.FMA+s.Vector)/c.fma {
			t.Errorf("%s: %s is bound by more than vector instructions", s.name, c.name)
		}
	}
	t.Log(text)
}

// TestPartLoops counts the steps of the Part tiles: each multiply-add must be there once, loads must be the fewest that
// the tile allows, and on out-of-order cores nothing but multiply-adds may bound the tile of 6 rows.
func TestPartLoops(t *testing.T) {
	for _, name := range []string{"PartSet", "PartAdd"} {
		seen := map[int]bool{}
		for _, l := range bodyOf(t, neon, name).Loops() {
			const row = tileSteps * tileVecs
			rows := l.FMA / row
			if !l.Inner || rows == 0 || l.FMA%row != 0 || l.Load != rows+row || l.Vector > 0 {
				continue
			}
			seen[rows] = true
			steps{name: fmt.Sprintf("%s, %d rows", name, rows), Loop: l, steps: tileSteps}.report(t, rows == tileRows)
		}
		for _, rows := range []int{1, 2, 3, 4, 6} {
			if !seen[rows] {
				t.Errorf("%s: no tile of %d rows has the loads that it should", name, rows)
			}
		}
	}
}

// TestGemmLoops counts the steps of the tiles of the products with codes: each multiply-add must be there once, decoding
// must take 9 instructions for the four steps of a vector, 10 by way of binary16, and loads must be the fewest that the
// tile allows. On out-of-order cores nothing but vector instructions may bound the tile of 8 rows.
func TestGemmLoops(t *testing.T) {
	for name, decoding := range map[string]int{"GemmE4M3": 9, "GemmE4M3Half": 10} {
		seen := map[int]bool{}
		for _, l := range bodyOf(t, neon, name).Loops() {
			rows := l.FMA / (gemmSteps * gemmVecs)
			if !l.Inner || rows == 0 || l.FMA != rows*gemmSteps*gemmVecs || l.Load != rows+gemmVecs || l.Vector != decoding*gemmVecs {
				continue
			}
			seen[rows] = true
			steps{name: fmt.Sprintf("%s, %d rows", name, rows), Loop: l, steps: gemmSteps}.report(t, rows == gemmRows)
		}
		for rows := 1; rows <= gemmRows; rows++ {
			if !seen[rows] {
				t.Errorf("%s: no tile of %d rows has the instructions that it should", name, rows)
			}
		}
	}
}

// TestValueLoops counts the groups of keys of the Value tiles: each multiply-add must be there once, and loads must be
// the fewest that the tile allows, and for masked tiles those of each pair of rows once more. On out-of-order cores
// nothing but multiply-adds may bound the tile of 8 rows by 12 columns.
func TestValueLoops(t *testing.T) {
	for name, masked := range map[string]int{"ValueTile": 0, "ValueTileMasked": 1} {
		counts := map[Count]Loop{}
		for _, l := range bodyOf(t, neon, name).Loops() {
			counts[Count{FMA: l.FMA, Vector: l.Vector, Load: l.Load}] = l
		}
		for _, vecs := range []int{3, 2} {
			for _, rows := range valueRows {
				tile := valueTileNEON{rows: rows}
				loads := len(tile.pieces()) + vecs + masked*(rows+1)/2
				l, ok := counts[Count{FMA: keyGroup * rows * vecs, Load: keyGroup * loads}]
				if !ok {
					t.Errorf("%s: no tile of %d rows and %d columns has the instructions that it should", name, rows, 4*vecs)
					continue
				}
				steps{name: fmt.Sprintf("%s, %d rows, %d columns", name, rows, 4*vecs), Loop: l, steps: keyGroup}.report(t, rows == 8 && vecs == 3)
			}
		}
	}
}

// TestPairLoops counts the tiles of the kernels of pairs: each multiply-add must be there once, loads must be the fewest
// that the tile allows, and other vector instructions those that split what they have loaded: none where the processor
// multiplies pairs, but for decoding, which takes 9 for the four steps of a vector, and 13 where it makes float32.
func TestPairLoops(t *testing.T) {
	type tile struct {
		body, name string
		steps      int
		want       Count
	}
	for _, level := range []*Level{neon, neonbf16} {
		dots := level == neonbf16
		var tiles []tile
		add := func(body, name string, steps int, want Count) { tiles = append(tiles, tile{body, name, steps, want}) }
		most, pairs := splitRows, 2
		if dots {
			most, pairs = tileRows, 4
		}
		for rows := 1; rows <= most; rows++ {
			want := Count{FMA: pairs * 2 * rows * tileVecs, Load: rows + pairs*tileVecs}
			if !dots {
				want.Vector = rows + pairs*2*tileVecs
			}
			for _, body := range []string{"PairSet", "PairAdd", "PairScale", "PairScaleRows"} {
				add(body, fmt.Sprintf("%d rows", rows), pairs, want)
			}
		}
		for rows := 1; rows <= gemmRows; rows++ {
			want := Count{FMA: rows * gemmSteps * gemmVecs, Vector: 9 * gemmVecs, Load: rows + gemmVecs}
			if !dots {
				want.Vector = rows + 13*gemmVecs
			}
			add("GemmE4M3Pairs", fmt.Sprintf("%d rows", rows), gemmSteps/2, want)
		}
		for body, masked := range map[string]int{"ValueTilePairs": 0, "ValueTilePairsMasked": 1} {
			for _, vecs := range []int{3, 2} {
				for _, rows := range valueRows {
					pieces := len(valueTileNEON{rows: rows}.pieces())
					want := Count{FMA: keyGroup * 2 * rows * vecs, Load: keyGroup * (pieces + vecs + masked*(rows+1)/2)}
					if !dots {
						want.Vector = keyGroup * 2 * (pieces + vecs)
					}
					add(body, fmt.Sprintf("%d rows, %d columns", rows, 4*vecs), keyGroup, want)
				}
			}
		}
		for _, want := range tiles {
			found := false
			for _, l := range bodyOf(t, level, want.body).Loops() {
				if (Count{FMA: l.FMA, Vector: l.Vector, Load: l.Load}) == want.want {
					found = true
					steps{name: fmt.Sprintf("%s, %s, %s", level.Name, want.body, want.name), Loop: l, steps: want.steps, fused: 2, pairs: dots}.report(t, false)
				}
			}
			if !found {
				t.Errorf("%s: no tile of %s has the instructions that it should: %+v", want.body, want.name, want.want)
			}
		}
	}
}

// TestDocumentedLoops holds the table of docs/performance.md to the counts.
func TestDocumentedLoops(t *testing.T) {
	text, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []struct {
		level *Level
		body  string
		steps int
		fused int
		Count
	}{
		{neon, "PartSet", tileSteps, 1, Count{FMA: 96, Load: 22}},
		{neon, "PartSet", tileSteps, 1, Count{FMA: 64, Load: 20}},
		{neon, "PartSet", tileSteps, 1, Count{FMA: 16, Load: 17}},
		{neon, "ValueTile", keyGroup, 1, Count{FMA: keyGroup * 24, Load: keyGroup * 5}},
		{neon, "ValueTileMasked", keyGroup, 1, Count{FMA: keyGroup * 24, Load: keyGroup * 9}},
		{neon, "GemmE4M3", gemmSteps, 1, Count{FMA: 64, Vector: 18, Load: 10}},
		{neon, "GemmE4M3", gemmSteps, 1, Count{FMA: 32, Vector: 18, Load: 6}},
		{neon, "GemmE4M3", gemmSteps, 1, Count{FMA: 8, Vector: 18, Load: 3}},
		{neon, "PairSet", 2, 2, Count{FMA: 80, Vector: 21, Load: 13}},
		{neonbf16, "PairSet", 4, 2, Count{FMA: 192, Load: 22}},
		{neon, "ValueTilePairs", keyGroup, 2, Count{FMA: keyGroup * 48, Vector: keyGroup * 10, Load: keyGroup * 5}},
		{neonbf16, "ValueTilePairs", keyGroup, 2, Count{FMA: keyGroup * 48, Load: keyGroup * 5}},
		{neon, "GemmE4M3Pairs", 2, 2, Count{FMA: 64, Vector: 34, Load: 10}},
		{neonbf16, "GemmE4M3Pairs", 2, 2, Count{FMA: 64, Vector: 18, Load: 10}},
		{neon, "GemmE4M3Pairs", 2, 2, Count{FMA: 8, Vector: 27, Load: 3}},
		{neonbf16, "GemmE4M3Pairs", 2, 2, Count{FMA: 8, Vector: 18, Load: 3}},
	} {
		found := false
		for _, l := range bodyOf(t, d.level, d.body).Loops() {
			if (Count{FMA: l.FMA, Vector: l.Vector, Load: l.Load}) != d.Count {
				continue
			}
			found = true
			if row := (steps{name: d.body, Loop: l, steps: d.steps, fused: d.fused, pairs: d.level == neonbf16}).row(); !strings.Contains(string(text), row) {
				t.Errorf("%s: docs/performance.md lacks %s", d.body, row)
			}
		}
		if !found {
			t.Errorf("%s: no loop of %+v", d.body, d.Count)
		}
	}
}

// row is a line of the table without its first cell.
func (s steps) row() string {
	row := fmt.Sprintf("| %.4g | %.4g | %.4g | %.4g |", s.perStep(s.FMA), s.perStep(s.Vector), s.perStep(s.Load),
		s.perStep(s.total()-s.FMA-s.Vector-s.Load))
	for _, c := range cores {
		if s.pairs && !c.pairs {
			row += " – |"
			continue
		}
		bound := c.cycles(s.Count, s.chain())
		row += fmt.Sprintf(" %.4g, %.0f%% |", bound/float64(s.steps), 100*float64(s.FMA)/c.fma/bound)
	}
	return row
}
