package archtest

import (
	"go/types"
	"path"
	"slices"
)

// orders are the files of a package from the top down: a function or method is called from its own
// file and those above it. So a walk from the first file to the last never goes back up.
var orders = map[string][]string{
	"mla": {
		"graph.go", "graph_check.go", "graph_args.go",
		"block_saved.go", "block_forward.go", "block.go",
		"saved.go", "prefill.go", "core.go", "forward.go", "layer.go",
		"batch.go", "sparse.go", "arguments.go", "workspace.go",
		"weights.go", "chunks.go", "merge.go", "config.go", "compute.go", "mask.go", "rows.go", "errors.go", "doc.go",
	},
	"internal/attend": {"wave.go", "heads.go", "dense.go", "attend.go", "tree.go", "mask.go", "doc.go"},
	"internal/forms":  {"forms.go", "store.go", "absorbed.go", "expanded.go", "scratch.go", "call.go", "doc.go"},
	"internal/compute": {
		"f32.go", "bf16.go", "tile.go", "prefetch.go", "keys.go", "compute.go", "doc.go",
	},
}

// FileOrder finds calls that go up, and files that have no place in an order.
func FileOrder(t *Tree, orders map[string][]string) []Finding {
	var found []Finding
	for _, u := range t.checked() {
		order, ok := orders[u.pkg.Dir]
		if !ok {
			continue
		}
		place := func(file string) int { return slices.Index(order, path.Base(file)) }
		for _, f := range u.files {
			if place(f.Path) < 0 {
				found = append(found, Finding{f.Path, 0, "has no place in the order of its package: give it one in " + self})
			}
		}
		for id, object := range u.info.Uses {
			f, ok := object.(*types.Func)
			if !ok || f.Pkg() != u.types {
				continue
			}
			from, to := t.Fset.Position(id.Pos()).Filename, t.Fset.Position(f.Pos()).Filename
			if place(from) > place(to) && place(to) >= 0 {
				found = append(found, t.at(id.Pos(), "calls %s, which is above it, in %s", f.Name(), path.Base(to)))
			}
		}
	}
	return found
}

// self is this package, as findings name it.
const self = "internal/archtest"
