package oracle

import "fmt"

// Mask says which keys a query sees. Kind is one of the names of the case
// files; the empty string means causal. Window is used by the four kinds that
// have one.
type Mask struct {
	Kind   string
	Window int
}

// Keep reports whether the query at absolute position q sees the key at
// absolute position k. The caller bounds k by the number of keys.
func (m Mask) Keep(q, k int) bool {
	switch m.Kind {
	case "", "causal":
		return k <= q
	case "null":
		return true
	case "chunked":
		return q/m.Window == k/m.Window
	case "sliding_window_causal":
		return k <= q && q-k < m.Window
	case "sliding_window_noncausal":
		return k > q-m.Window
	case "chunked_causal":
		return k <= q && q/m.Window == k/m.Window
	}
	panic(fmt.Sprintf("oracle: unknown mask %q", m.Kind))
}

// Visible lists the keys in [0, keys) that the query at position q sees.
func (m Mask) Visible(q, keys int) []int {
	var v []int
	for k := range keys {
		if m.Keep(q, k) {
			v = append(v, k)
		}
	}
	return v
}
