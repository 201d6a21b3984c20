package workshop

import (
	"fmt"
	"strings"
)

// Kernel is a row of the list: a function of the door simd, its definition in simd/ref, and its bodies. From it come
// the door's function with its dispatch, the stubs of the bodies, and their place in the roll call of the tests.
type Kernel struct {
	Name   string
	File   string // of the bodies, without suffix: kernels of one kind share a file
	Doc    string // the door's comment, without the name it begins with
	Args   []Arg
	Result string // Go type of the result, "" for none
	Needs  string // what the numbers of a call must be, in Go; the door refuses others. "" is anything
	Bodies []Body
}

// Body is an implementation of a kernel for an instruction set. Bodies are tried in the order of the list.
type Body struct {
	Level *Level
	// Needs names one feature beyond the folder's promise, for which the dispatch tests: the body is used where the
	// machine has it, and carries its name. "" is the plain body, which comes after those that need something.
	Needs string
	Gen   any // func(*G) writes for amd64, func(*A) for arm64
}

// Symbol is the name of the body's function in its folder.
func (b Body) Symbol(k *Kernel) string { return k.Name + b.Needs }

// Arg is a parameter of a kernel. A slice says how the kernel uses it and how far a call reaches: rows of n elements,
// stride apart; the three are Go expressions of the other parameters. The door refuses a slice that is shorter, and
// tells the race detector what assembly reads and writes.
type Arg struct {
	Name, Type      string
	Reads, Writes   bool
	Optional        bool // nil is allowed
	Rows, Stride, N string
}

func (a Arg) slice() bool { return strings.HasPrefix(a.Type, "[]") }

// num is a parameter that is a number.
func num(name, typ string) Arg { return Arg{Name: name, Type: typ} }

// in is a slice that is read: n elements, or rows of them.
func in(name, typ string, extent ...string) Arg {
	return reaching(Arg{Name: name, Type: "[]" + typ, Reads: true}, extent)
}

// out is a slice that is written.
func out(name, typ string, extent ...string) Arg {
	return reaching(Arg{Name: name, Type: "[]" + typ, Writes: true}, extent)
}

// inout is a slice that is read and written.
func inout(name, typ string, extent ...string) Arg {
	return reaching(Arg{Name: name, Type: "[]" + typ, Reads: true, Writes: true}, extent)
}

// hint is a slice whose memory is named and neither read nor written.
func hint(name, typ string) Arg {
	return reaching(Arg{Name: name, Type: "[]" + typ}, []string{"len(" + name + ")"})
}

// opt lets a slice be nil.
func opt(a Arg) Arg {
	a.Optional = true
	return a
}

// reaching sets the extent: n, or rows, stride and n.
func reaching(a Arg, extent []string) Arg {
	switch len(extent) {
	case 1:
		a.Rows, a.Stride, a.N = "1", "0", extent[0]
	case 3:
		a.Rows, a.Stride, a.N = extent[0], extent[1], extent[2]
	default:
		panic(fmt.Sprintf("%s: an extent is n, or rows, stride and n; got %q", a.Name, extent))
	}
	return a
}

// params is the parameter list in Go, consecutive parameters of one type together.
func (k *Kernel) params() string {
	var b strings.Builder
	for i, a := range k.Args {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.Name)
		if i+1 == len(k.Args) || k.Args[i+1].Type != a.Type {
			b.WriteString(" " + a.Type)
		}
	}
	return b.String()
}

// names is the argument list of a call.
func (k *Kernel) names() string {
	var names []string
	for _, a := range k.Args {
		names = append(names, a.Name)
	}
	return strings.Join(names, ", ")
}

// results is " T", or nothing.
func (k *Kernel) results() string {
	if k.Result == "" {
		return ""
	}
	return " " + k.Result
}

// bodies are those for a level, in the order in which they are tried.
func (k *Kernel) bodies(l *Level) (bs []Body) {
	for _, b := range k.Bodies {
		if b.Level == l {
			bs = append(bs, b)
		}
	}
	return bs
}
