package mla

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lamina-ml/lamina/internal/attend"
)

// MaskKind names which keys a query sees. Positions are absolute: q is the
// query's, k the key's, w the window.
type MaskKind uint8

// The masks, by what a query keeps.
const (
	MaskCausal                 = MaskKind(attend.Causal)                 // k <= q
	MaskNull                   = MaskKind(attend.Null)                   // every key of the sequence
	MaskSlidingWindowCausal    = MaskKind(attend.SlidingWindowCausal)    // k <= q and q-k < w
	MaskSlidingWindowNonCausal = MaskKind(attend.SlidingWindowNonCausal) // k > q-w
	MaskChunked                = MaskKind(attend.Chunked)                // q/w == k/w
	MaskChunkedCausal          = MaskKind(attend.ChunkedCausal)          // q/w == k/w and k <= q
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

// engine is the mask as internal/attend has it.
func (m Mask) engine() attend.Mask {
	return attend.Mask{Kind: attend.MaskKind(m.Kind), Window: m.Window}
}

// visible is the range [lo, hi) of keys that the query at position q sees in a sequence of n keys.
func (m Mask) visible(q, n int) (lo, hi int) { return m.engine().Visible(q, n) }
