package simd_test

import (
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

var partTrials = map[string]trial{
	"PartSet": func(r *rand.Rand, class kerneltest.Class) []any {
		return drawPart(r, class).args()
	},
	"PartAdd": func(r *rand.Rand, class kerneltest.Class) []any {
		return drawPart(r, class).args()
	},
	"PartScale": func(r *rand.Rand, class kerneltest.Class) []any {
		p := drawPart(r, class)
		return p.args(class.Make(r, p.n))
	},
	"PartScaleRows": func(r *rand.Rand, class kerneltest.Class) []any {
		p := drawPart(r, class)
		ldr := 1 + r.IntN(3)
		return p.args(class.Make(r, extent(p.m, ldr, 1)), ldr, class.Make(r, p.n))
	},
	"PartFoldSet": func(r *rand.Rand, class kerneltest.Class) []any {
		return drawPart(r, class).argsFold(r, class)
	},
	"PartFoldAdd": func(r *rand.Rand, class kerneltest.Class) []any {
		return drawPart(r, class).argsFold(r, class)
	},
}

// partCall is what the Part kernels have in common.
type partCall struct {
	y, x, b                []float32
	ldy, ldx, ldb, m, n, k int
}

// drawPart draws every number of rows that is cut in a way of its own, every width up to some panels, and few or, once in
// a while, many steps.
func drawPart(r *rand.Rand, class kerneltest.Class) partCall {
	p := partCall{m: r.IntN(14), n: r.IntN(82), k: r.IntN(14)}
	switch r.IntN(6) {
	case 0:
		p.m, p.n = r.IntN(4), r.IntN(150) // the widest tiles
	case 1:
		p.m = 12 + r.IntN(22) // several tiles of rows
	case 2:
		p.n, p.k = 1+r.IntN(34), r.IntN(258)
	}
	p.ldy, p.ldx, p.ldb = p.n+r.IntN(4), rowsOf(r, p.k), rowsOf(r, simd.Lanes*p.k)
	p.y = class.Make(r, extent(p.m, p.ldy, p.n))
	p.x = class.Make(r, extent(p.m, p.ldx, p.k))
	p.b = class.Make(r, extent(panelCount(p.n), p.ldb, simd.Lanes*p.k))
	return p
}

// args are the arguments of a kernel that has more of them after b.
func (p partCall) args(more ...any) []any {
	args := append([]any{p.y, p.ldy, p.x, p.ldx, p.b, p.ldb}, more...)
	return append(args, p.m, p.n, p.k)
}

// argsFold are those of a kernel that has a scale for each weight.
func (p partCall) argsFold(r *rand.Rand, class kerneltest.Class) []any {
	lds := rowsOf(r, simd.Lanes*p.k)
	return p.args(class.Make(r, extent(panelCount(p.n), lds, simd.Lanes*p.k)), lds)
}
