package checkpoint

import (
	"fmt"
	"strconv"
	"strings"
)

// DType is the element type of a tensor.
type DType uint8

// The types of the format. The F8, F6 and F4 types, BF16 and F16 are floats that Go has no
// type for: their accessors give bits. Elements of F4 and F6 are packed without padding.
const (
	BOOL DType = iota + 1
	U8
	I8
	F8_E5M2
	F8_E4M3
	F8_E8M0
	F8_E4M3FNUZ
	F8_E5M2FNUZ
	F4
	F6_E2M3
	F6_E3M2
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64
	F64
	I64
	U64
)

var dtypes = [...]struct {
	name string
	bits int
}{
	BOOL: {"BOOL", 8}, U8: {"U8", 8}, I8: {"I8", 8},
	F8_E5M2: {"F8_E5M2", 8}, F8_E4M3: {"F8_E4M3", 8}, F8_E8M0: {"F8_E8M0", 8},
	F8_E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8_E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	F4: {"F4", 4}, F6_E2M3: {"F6_E2M3", 6}, F6_E3M2: {"F6_E3M2", 6},
	I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16},
	I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32},
	C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// ParseDType returns the type that the format calls name.
func ParseDType(name string) (DType, error) {
	if d := dtypeNamed([]byte(name)); d != 0 {
		return d, nil
	}
	return 0, fmt.Errorf("%w: dtype %q does not exist", ErrDType, clip(name))
}

// dtypeNamed is 0 for a name that no type has.
func dtypeNamed(name []byte) DType {
	for d := BOOL; int(d) < len(dtypes); d++ {
		if dtypes[d].name == string(name) {
			return d
		}
	}
	return 0
}

// Bits is the size of one element in bits; 0 for a DType that does not exist.
func (d DType) Bits() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}

// String is the name the format has for the type.
func (d DType) String() string {
	if d.Bits() == 0 {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// clipped is how many bytes of what a file says an error message can bear.
const clipped = 160

// clip shortens what a file says to that.
func clip(s string) string {
	if len(s) <= clipped {
		return s
	}
	return strings.ToValidUTF8(s[:clipped], "") + "..."
}

// shown is a name in a message: not all of a long one, and quoted if it holds what is not
// printed.
func shown(name string) string {
	name = clip(name)
	for _, r := range name {
		if !strconv.IsPrint(r) {
			return strconv.Quote(name)
		}
	}
	return name
}
