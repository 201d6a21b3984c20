package workshop

import (
	"fmt"
	"math"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The constants of ref.Log, with the coefficients of its series from the last to the first.
const (
	ln2Hi = 0x1.62e42feep-1
	ln2Lo = 0x1.a39ef35793c76p-33
)

var atanh = [...]float64{1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3}

// full64 is four of an 8-byte constant in memory, float64s four of a float64.
func (g *G) full64(bits uint64) operand.Mem {
	v := operand.U64(bits)
	return g.table(fmt.Sprintf("d%016x", bits), v, v, v, v)
}

func (g *G) float64s(x float64) operand.Mem { return g.full64(math.Float64bits(x)) }

// log4 is y = ref.Log(x) of four values in XMM registers, in float64 with its roundings. It overwrites Y0 to Y5.
func log4(g *G, x, y reg.VecPhysical) {
	m, n, f, z, s, t := Y(0), Y(1), Y(2), Y(3), Y(4), Y(5)
	g.VCVTPS2PD(x, m)
	g.VPSRLQ(operand.U8(52), m, n)
	g.VPOR(g.float64s(1<<52), n, n) // an integer becomes a float64 as the low bits of 2^52
	g.VSUBPD(g.float64s(1<<52+1023), n, n)
	g.VPAND(g.full64(1<<52-1), m, m)
	g.VPOR(g.float64s(1), m, m)
	g.VCMPPD(cmpGe, g.float64s(math.Sqrt2), m, f)
	g.VPAND(g.float64s(1), f, t)
	g.VADDPD(t, n, n)
	g.VMULPD(g.float64s(0.5), m, t)
	g.VBLENDVPD(f, t, m, m)

	g.VSUBPD(g.float64s(1), m, f)
	g.VADDPD(g.float64s(1), m, t)
	g.VDIVPD(t, f, f)
	g.VMULPD(f, f, z)
	g.VMOVUPD(g.float64s(atanh[0]), s)
	for _, c := range atanh[1:] {
		g.VMULPD(z, s, s)
		g.VADDPD(g.float64s(c), s, s)
	}
	g.VMULPD(z, s, s)
	g.VADDPD(f, f, f)
	g.VMULPD(f, s, s)
	g.VMULPD(g.float64s(ln2Lo), n, t)
	g.VADDPD(t, s, s)
	g.VADDPD(s, f, f)
	g.VMULPD(g.float64s(ln2Hi), n, n)
	g.VADDPD(f, n, n)
	g.VCVTPD2PSY(n, y)

	mask, zero := X(0), X(1)
	g.Zero(zero)
	g.VCMPPS(cmpEq, g.full(infBits), x, mask)
	g.VBLENDVPS(mask, x, y, y)
	g.VCMPPS(cmpNge, zero, x, mask)
	g.VPOR(mask, y, y) // below zero, and NaN
	g.VCMPPS(cmpEq, zero, x, mask)
	g.VBLENDVPS(mask, g.full(negInfBits), y, y)
}
