package workshop

import "github.com/mmcloughlin/avo/operand"

// Values of float32 by their bits.
const (
	oneBits     = 0x3F800000
	infBits     = 0x7F800000
	negInfBits  = 0xFF800000
	minus87Bits = 0xC2AE0000
	minus41Bits = 0xC2240000
	hiddenBits  = 0x80000000 // -0, the probability of a key that a row does not see
)

// power is the bits of 2^e.
func power(e int) uint32 { return uint32(127+e) << 23 }

// The comparisons of VCMPPS and VPCMPD.
const (
	cmpEq     = operand.U8(0)
	cmpLe     = operand.U8(2)
	cmpUnord  = operand.U8(3)
	cmpNeq    = operand.U8(4) // true of a NaN
	cmpNge    = operand.U8(9) // true of a NaN
	cmpNltInt = operand.U8(5)
	cmpLtInt  = operand.U8(1)
	cmpGe     = operand.U8(13)
)

// nearestEven is the rounding of VCVTPS2PH, whatever mode is set.
const nearestEven = operand.U8(0)
