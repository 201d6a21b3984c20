package simd_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/simd"
)

// TestDoorRefusesArraysThatAreTooShort shows that no counts and strides take assembly past the end of an array: not
// those that are negative, nor those whose product is more than an int holds.
func TestDoorRefusesArraysThatAreTooShort(t *testing.T) {
	x, y := make([]float32, 64), make([]float32, 64)
	codes, u := make([]byte, 64), make([]uint16, 64)
	for name, call := range map[string]func(){
		"Lift: ldx*m is 65":              func() { simd.Lift(y, 16, x, 17, 4, 16, 1) },
		"Lift: ldx is negative":          func() { simd.Lift(y, 16, x, -16, 2, 16, 1) },
		"Lift: ldd is negative":          func() { simd.Lift(y, -1<<28, x, 16, 2, 16, 1) },
		"Lift: 2*ldx is no int":          func() { simd.Lift(y, 16, x, math.MaxInt/2+1, 3, 16, 1) },
		"Lift: 4*ldx is 0 in an int":     func() { simd.Lift(y, 0, x, math.MinInt, 5, 16, 1) },
		"Lift: k is negative":            func() { simd.Lift(y, 16, x, 16, 2, -16, 1) },
		"Lift: m is negative":            func() { simd.Lift(y, 16, x, 16, -1, 16, 1) },
		"QuantDynamic: too few scales":   func() { simd.QuantDynamic(codes, y[:3], x, 16) },
		"QuantDynamic: negative group":   func() { simd.QuantDynamic(codes, y, x, -1) },
		"QuantDynamic: no group":         func() { simd.QuantDynamic(codes, y, x, 0) },
		"GemmE4M3: no k":                 func() { simd.GemmE4M3(y, 16, x, 4, codes, 64, x, 16, 1, 16, 0, 0, 4, 0) },
		"GemmE4M3: k is 6":               func() { simd.GemmE4M3(y, 16, x, 6, codes, 64, x, 16, 1, 16, 0, 6, 4, 0) },
		"GemmE4M3Half: a negative step":  func() { simd.GemmE4M3Half(y, 16, x, 4, codes, 64, x, 16, 1, 16, 0, 4, -4, 0) },
		"GemmE4M3: k0 is k":              func() { simd.GemmE4M3(y, 16, x, 4, codes, 64, x, 16, 1, 16, 4, 4, 4, 0) },
		"GemmE4M3Half: k0 is 2":          func() { simd.GemmE4M3Half(y, 16, x, 4, codes, 64, x, 16, 1, 16, 2, 4, 4, 0) },
		"FoldRows: n is negative":        func() { simd.FoldRows(y, 16, y, y, x, 16, x, x, -1, 16) },
		"FinishRows: cols is negative":   func() { simd.FinishRows(y, 16, x, 16, x, x, nil, nil, nil, 1, -1, 0) },
		"FinishRows: sink is too short":  func() { simd.FinishRows(y, 16, x, 16, x, x, x[:1], nil, nil, 2, 16, 0) },
		"FinishRowsBF16: out is short":   func() { simd.FinishRowsBF16(u[:31], 16, x, 16, x, x, nil, nil, nil, 2, 16, 0) },
		"FinishRowsBF16: O is short":     func() { simd.FinishRowsBF16(u, 16, x[:31], 16, x, x, nil, nil, nil, 2, 16, 0) },
		"FinishRowsBF16: ldout is -16":   func() { simd.FinishRowsBF16(u, -16, x, 16, x, x, nil, nil, nil, 2, 16, 0) },
		"FinishRowsBF16: ldout is 49":    func() { simd.FinishRowsBF16(u, 49, x, 16, x, x, nil, nil, nil, 2, 16, 1) },
		"FinishRowsBF16: ldO is large":   func() { simd.FinishRowsBF16(u, 16, x, math.MaxInt/2+1, x, x, nil, nil, nil, 3, 16, 0) },
		"FinishRowsBF16: lse is short":   func() { simd.FinishRowsBF16(u, 16, x, 16, x, x, nil, y[:1], nil, 2, 16, 0) },
		"GemmE4M3Pairs: k0 is k":         func() { simd.GemmE4M3Pairs(y, 16, u, 4, codes, 64, x, 16, 1, 16, 4, 4, 4) },
		"GemmE4M3Pairs: k0 is 2":         func() { simd.GemmE4M3Pairs(y, 16, u, 4, codes, 64, x, 16, 1, 16, 2, 4, 4) },
		"GemmE4M3Pairs: k0 is negative":  func() { simd.GemmE4M3Pairs(y, 16, u, 4, codes, 64, x, 16, 1, 16, -4, 4, 4) },
		"ValueTile: keys is negative":    func() { simd.ValueTile(y, 16, x, 16, x, 16, nil, -1, 4, 16) },
		"PackRows: the panel is shorter": func() { simd.PackRows(y, 64, x, 4, 16, 5) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				require.Regexp(t, `^simd: \w+(: \w+ has \d+ elements, want | wants )`, fmt.Sprint(recover()))
			}()
			call()
		})
	}
}
