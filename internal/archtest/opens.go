package archtest

import "go/types"

// readers are the folders that may open files by paths of the user's.
var readers = []string{"bf16", "fp8", "kvpaged", "mla", "checkpoint"}

// waiting are the functions of os that wait where a FIFO is opened.
var waiting = map[string]bool{"Open": true, "OpenFile": true, "ReadFile": true}

// Opens finds files that are opened by what may wait for ever: internal/openfile does not.
func Opens(t *Tree) []Finding {
	var found []Finding
	for _, u := range t.checked() {
		if !under(u.pkg.Dir, readers...) {
			continue
		}
		for id, obj := range u.info.Uses {
			fn, ok := obj.(*types.Func)
			if !ok || fn.Pkg() == nil || fn.Pkg().Path() != "os" || !waiting[fn.Name()] || fn.Signature().Recv() != nil {
				continue
			}
			found = append(found, t.at(id.Pos(), "os.%s may wait for ever: internal/openfile does not", fn.Name()))
		}
	}
	return found
}
