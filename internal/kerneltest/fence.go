package kerneltest

import (
	"testing"
	"unsafe"
)

// Edge is the end of a fenced buffer that touches its fence.
type Edge int

const (
	Back  Edge = iota // the last value is followed by memory that may not be touched
	Front             // the first value follows memory that may not be touched
)

func (e Edge) String() string { return [...]string{"back", "front"}[e] }

// Edges are both edges, for a loop.
var Edges = [...]Edge{Back, Front}

// canary fills what lies between the values and the other fence.
const canary = 0xA5

// Fenced is a buffer of n zero values between two pages that may not be touched: a kernel that reads or writes past the
// given edge ends the test program with a fault, one that writes past the other fails the test when it ends. Where the
// system has no such pages (js, windows) both sides are only checked for writes. T is a number.
func Fenced[T any](t testing.TB, n int, at Edge) []T {
	t.Helper()
	size := n * int(unsafe.Sizeof(*new(T)))
	room, free := fence(t, size)
	for i := range room {
		room[i] = canary
	}
	data, pad := room[:size], room[size:]
	if at == Back {
		pad, data = room[:len(room)-size], room[len(room)-size:]
	}
	clear(data)
	t.Cleanup(func() {
		for i, c := range pad {
			if c != canary {
				t.Errorf("kerneltest: byte %d of the %d beside a fenced buffer of %d was written", i, len(pad), size)
				break
			}
		}
		free()
	})
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(data))), n)
}

// FencedCopy is a fenced buffer that holds the values of x.
func FencedCopy[T any](t testing.TB, x []T, at Edge) []T {
	t.Helper()
	y := Fenced[T](t, len(x), at)
	copy(y, x)
	return y
}
