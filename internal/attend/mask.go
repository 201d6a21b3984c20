package attend

// MaskKind names which keys a query sees. Positions are absolute: q is the query's, k the key's, w
// the window.
type MaskKind uint8

// The masks, by what a query keeps.
const (
	Causal                 MaskKind = iota // k <= q
	Null                                   // every key of the sequence
	SlidingWindowCausal                    // k <= q and q-k < w
	SlidingWindowNonCausal                 // k > q-w
	Chunked                                // q/w == k/w
	ChunkedCausal                          // q/w == k/w and k <= q
)

// Mask is a MaskKind with its window in tokens, 0 for those that have none.
type Mask struct {
	Kind   MaskKind
	Window int
}

// Visible is the range [lo, hi) of keys that the query at position q sees in a sequence of n keys.
// Every mask keeps one contiguous range, and both of its ends grow with q: the union over
// consecutive queries is a range as well.
func (m Mask) Visible(q, n int) (lo, hi int) {
	hi = n
	switch m.Kind {
	case Causal:
		hi = q + 1
	case SlidingWindowCausal:
		lo, hi = q-m.Window+1, q+1
	case SlidingWindowNonCausal:
		lo = q - m.Window + 1
	case Chunked:
		lo = q - q%m.Window
		if m.Window < n-lo { // so that lo + Window cannot overflow
			hi = lo + m.Window
		}
	case ChunkedCausal:
		lo, hi = q-q%m.Window, q+1
	}
	return max(lo, 0), min(hi, n)
}
