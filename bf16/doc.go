// Package bf16 is the bfloat16 number: the upper half of a float32.
//
//	 15  14        7  6         0
//	+--+------------+-----------+
//	|s | exponent 8 | mantissa 7|     bias 127, the range of a float32
//	+--+------------+-----------+
//
//	value         bits     meaning
//	1             3F80
//	3.3895314e38  7F7F     the largest finite value
//	1.1754944e-38 0080     the smallest normal value
//	9.1835496e-41 0001     the smallest subnormal value
//	Inf, NaN      7F80, 7FC0
//
// Every bf16 is a float32 without rounding. The other way rounds to nearest,
// ties to even, and overflows to Inf; a NaN stays a NaN, keeps its sign and the
// upper bits of its payload, and becomes quiet.
//
// The names follow github.com/x448/float16, which is the binary16 of this
// module.
package bf16
