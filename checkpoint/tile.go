package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
)

// tile checks that the tensors cover the data from its first byte to its last, each byte
// once. Tensors may stand in the data in any order; one of no elements may stand at any border.
func (h *header) tile(size uint64) error {
	order := make([]int, len(h.spans))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := h.spans[i], h.spans[j]
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(i, j))
	})
	var end uint64
	last := ""
	for _, i := range order {
		at, name := h.spans[i], clip(h.tensors[i].Name)
		switch {
		case at.begin < end:
			return fmt.Errorf("tensors %q and %q overlap: one ends at byte %d of the data, the other begins at %d",
				last, name, end, at.begin)
		case at.begin > end:
			return fmt.Errorf("bytes %d to %d of the data, before tensor %q, belong to no tensor",
				end, at.begin, name)
		case at.end > size:
			return fmt.Errorf("the file ends in the middle of tensor %q: it takes bytes %d to %d of the data, there are %d",
				name, at.begin, at.end, size)
		}
		end, last = at.end, name
	}
	if end < size {
		return fmt.Errorf("%d bytes follow the last tensor", size-end)
	}
	return nil
}

// attach gives every tensor its piece of the data, which tile has checked.
func (h *header) attach(data []byte) {
	for i, at := range h.spans {
		h.tensors[i].Data = data[at.begin:at.end:at.end]
	}
}
