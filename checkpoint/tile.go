package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
)

// tile checks that the tensors cover the data from its first byte to its last, each byte
// once. Tensors may stand in the data in any order; one of no elements may stand at any border.
func (h *header) tile(size uint64) error {
	type start struct {
		begin uint64
		i     uint32
	}
	order := make([]start, len(h.order))
	for i := range order {
		r := h.record(i)
		order[i] = start{r.begin, uint32(i)}
	}
	slices.SortFunc(order, func(a, b start) int {
		if a.begin != b.begin {
			return cmp.Compare(a.begin, b.begin)
		}
		x, y := h.record(int(a.i)), h.record(int(b.i))
		return cmp.Or(cmp.Compare(x.size(), y.size()), cmp.Compare(a.i, b.i))
	})
	var end uint64
	last := -1
	for _, at := range order {
		r := h.record(int(at.i))
		switch stop := r.begin + r.size(); {
		case r.begin < end:
			return fmt.Errorf("tensors %q and %q overlap: one ends at byte %d of the data, the other begins at %d",
				clip(string(h.name(last))), clip(string(r.name)), end, r.begin)
		case r.begin > end:
			return fmt.Errorf("bytes %d to %d of the data, before tensor %q, belong to no tensor",
				end, r.begin, clip(string(r.name)))
		case stop > size:
			return fmt.Errorf("the file ends in the middle of tensor %q: it takes bytes %d to %d of the data, there are %d",
				clip(string(r.name)), r.begin, stop, size)
		default:
			end, last = stop, int(at.i)
		}
	}
	if end < size {
		return fmt.Errorf("%d bytes follow the last tensor", size-end)
	}
	return nil
}
