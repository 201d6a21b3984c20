package mla

import (
	"fmt"
	"strconv"
	"strings"
)

// MaskKind names which keys a query sees. Positions are absolute: q is the
// query's, k the key's, w the window.
type MaskKind uint8

// The masks, by what a query keeps.
const (
	MaskCausal                 MaskKind = iota // k <= q
	MaskNull                                   // every key of the sequence
	MaskSlidingWindowCausal                    // k <= q and q-k < w
	MaskSlidingWindowNonCausal                 // k > q-w
	MaskChunked                                // q/w == k/w
	MaskChunkedCausal                          // q/w == k/w and k <= q
)

var maskNames = [...]string{"causal", "null", "sliding_window_causal", "sliding_window_noncausal", "chunked", "chunked_causal"}

// Mask is a MaskKind with its window in tokens; causal and null have none.
type Mask struct {
	Kind   MaskKind
	Window int
}

// ParseMask reads a mask as MAX names it, with the window after a colon:
// "causal", "null", "sliding_window_causal:128".
func ParseMask(s string) (Mask, error) {
	name, window, windowed := strings.Cut(s, ":")
	for kind, known := range maskNames {
		if name != known {
			continue
		}
		m := Mask{Kind: MaskKind(kind)}
		if windowed {
			w, err := strconv.Atoi(window)
			if err != nil {
				return Mask{}, fmt.Errorf("%w: mask %q: window %q is no number", ErrConfig, s, window)
			}
			m.Window = w
			if !m.windowed() {
				return Mask{}, fmt.Errorf("%w: mask %q: %s takes no window", ErrConfig, s, name)
			}
		}
		return m, m.check()
	}
	return Mask{}, fmt.Errorf("%w: mask %q is none of %s", ErrConfig, s, strings.Join(maskNames[:], ", "))
}

// String is the inverse of ParseMask.
func (m Mask) String() string {
	if int(m.Kind) >= len(maskNames) {
		return fmt.Sprintf("MaskKind(%d)", m.Kind)
	}
	if !m.windowed() {
		return maskNames[m.Kind]
	}
	return maskNames[m.Kind] + ":" + strconv.Itoa(m.Window)
}

func (m Mask) windowed() bool { return m.Kind >= MaskSlidingWindowCausal }

func (m Mask) check() error {
	switch {
	case int(m.Kind) >= len(maskNames):
		return fmt.Errorf("%w: mask kind %d is unknown", ErrConfig, m.Kind)
	case m.windowed() && m.Window <= 0:
		return fmt.Errorf("%w: mask %s has window %d, want at least 1", ErrConfig, maskNames[m.Kind], m.Window)
	case !m.windowed() && m.Window != 0:
		return fmt.Errorf("%w: mask %s takes no window, got %d", ErrConfig, maskNames[m.Kind], m.Window)
	}
	return nil
}

// visible is the range [lo, hi) of keys that the query at position q sees in a
// sequence of n keys. Every mask keeps one contiguous range, and both of its
// ends grow with q: the union over consecutive queries is a range as well.
func (m Mask) visible(q, n int) (lo, hi int) {
	hi = n
	switch m.Kind {
	case MaskCausal:
		hi = q + 1
	case MaskSlidingWindowCausal:
		lo, hi = q-m.Window+1, q+1
	case MaskSlidingWindowNonCausal:
		lo = q - m.Window + 1
	case MaskChunked:
		lo = q - q%m.Window
		if m.Window < n-lo { // so that lo + Window cannot overflow
			hi = lo + m.Window
		}
	case MaskChunkedCausal:
		lo, hi = q-q%m.Window, q+1
	}
	return max(lo, 0), min(hi, n)
}
