package archtest

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"math"
	"path"
	"slices"
)

// guarded are the folders whose floats have the same bits on every platform.
var guarded = []string{
	"simd", "bf16", "fp8", "kvpaged", "internal/compute", "internal/attend", "internal/forms", "mla", "checkpoint",
}

// scalings are the functions, as "path/file.go:Func" or "path/file.go:Type.Method",
// in which a product by a constant power of two stands without a conversion, with
// the reason why it is exact there: an exact product has the same bits fused or not.
var scalings = map[string]string{}

// Products finds float products that the compiler may fuse with a later sum. On
// some platforms it does, on others not, across statements too; only an explicit
// conversion of the product itself, float32(x*y) or float64(x*y), stops it. So
// every product of floats in the guarded folders is the operand of one. Products of
// constants are exempt, and those in the functions that exact lists. A product whose
// type cannot be told, and a file that none of the targets builds, are found too.
func Products(t *Tree, exact map[string]string) []Finding {
	c := products{tree: t, exact: exact, used: map[string]bool{}, typed: map[*File]bool{}}
	for _, u := range t.checked() {
		if !under(u.pkg.Dir, guarded...) {
			continue
		}
		for _, f := range u.files {
			c.file(f, u.info)
		}
	}
	for _, p := range t.Packages {
		for _, f := range p.source() {
			if under(p.Dir, guarded...) && !c.typed[f] {
				c.found = append(c.found, Finding{f.Path, 0, "is built for none of the targets that internal/archtest knows"})
			}
		}
	}
	for where := range exact {
		if !c.used[where] {
			c.found = append(c.found, Finding{where, 0, "is listed as an exact scaling, and holds none"})
		}
	}
	return c.found
}

type products struct {
	tree  *Tree
	exact map[string]string
	used  map[string]bool
	typed map[*File]bool
	found []Finding
}

func (c *products) file(f *File, info *types.Info) {
	if c.typed[f] {
		return
	}
	c.typed[f] = true
	ast.PreorderStack(f.AST, nil, func(n ast.Node, stack []ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.MUL {
				c.product(f, info, n, stack)
			}
		case *ast.AssignStmt:
			if n.Tok == token.MUL_ASSIGN && mayBeFloat(info.Types[n.Lhs[0]].Type) && !c.scaling(f, info, stack, n.Rhs[0]) {
				c.add(n.TokPos, "a float product by *= cannot be guarded: write x = float32(x*y)")
			}
		}
		return true
	})
}

func (c *products) product(f *File, info *types.Info, n *ast.BinaryExpr, stack []ast.Node) {
	tv := info.Types[n]
	switch {
	case unknown(tv.Type):
		c.add(n.OpPos, "the type of this product cannot be told")
	case tv.Value != nil || !mayBeFloat(tv.Type) || converted(info, stack):
	case c.scaling(f, info, stack, n.X, n.Y):
	default:
		c.add(n.OpPos, "a float product without float32(...) or float64(...) around it may be fused with a sum")
	}
}

func (c *products) add(pos token.Pos, says string) {
	c.found = append(c.found, c.tree.at(pos, "%s", says))
}

// scaling reports whether one of the factors, below stack, is a power of two in a
// listed function.
func (c *products) scaling(f *File, info *types.Info, stack []ast.Node, factors ...ast.Expr) bool {
	where := f.Path + ":" + function(stack)
	_, listed := c.exact[where]
	exact := listed && slices.ContainsFunc(factors, func(x ast.Expr) bool { return powerOfTwo(info.Types[x].Value) })
	if exact {
		c.used[where] = true
	}
	return exact
}

func powerOfTwo(v constant.Value) bool {
	if v == nil {
		return false
	}
	x, _ := constant.Float64Val(constant.ToFloat(v))
	fraction, _ := math.Frexp(x)
	return math.Abs(fraction) == 0.5
}

// function is the name of the function that stack is in.
func function(stack []ast.Node) string {
	for _, n := range stack {
		if decl, ok := n.(*ast.FuncDecl); ok {
			return receiver(decl) + decl.Name.Name
		}
	}
	return ""
}

func receiver(decl *ast.FuncDecl) string {
	if decl.Recv == nil || len(decl.Recv.List) == 0 {
		return ""
	}
	of := decl.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
		case *ast.IndexExpr:
			of = t.X
		case *ast.Ident:
			return t.Name + "."
		default:
			return ""
		}
	}
}

// converted reports whether the node below stack is the operand of a conversion to
// a floating-point type, parentheses aside.
func converted(info *types.Info, stack []ast.Node) bool {
	for i := len(stack) - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.ParenExpr:
			continue
		case *ast.CallExpr:
			tv := info.Types[n.Fun]
			return tv.IsType() && isFloat(tv.Type)
		default:
			return false
		}
	}
	return false
}

func unknown(t types.Type) bool { return t == nil || t == types.Typ[types.Invalid] }

func isFloat(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsFloat != 0
}

// mayBeFloat reports whether t is a floating-point or complex type, or a type
// parameter that may stand for one.
func mayBeFloat(t types.Type) bool {
	if unknown(t) {
		return false
	}
	if p, ok := t.(*types.TypeParam); ok {
		return anyTerm(p.Constraint(), mayBeFloat)
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&(types.IsFloat|types.IsComplex) != 0
}

// anyTerm reports whether f holds for a type in the type set of a constraint.
func anyTerm(constraint types.Type, f func(types.Type) bool) bool {
	switch c := constraint.(type) {
	case *types.Union:
		for term := range c.Terms() {
			if anyTerm(term.Type(), f) {
				return true
			}
		}
		return false
	default:
		set, ok := c.Underlying().(*types.Interface)
		if !ok {
			return f(c)
		}
		for embedded := range set.EmbeddedTypes() {
			if anyTerm(embedded, f) {
				return true
			}
		}
		return false
	}
}

// sameEverywhere are the functions of math that give the same bits on every
// platform: IEEE 754 defines them, or they move bits about.
var sameEverywhere = map[string]bool{
	"Abs": true, "Ceil": true, "Copysign": true, "FMA": true, "Float32bits": true, "Float32frombits": true,
	"Float64bits": true, "Float64frombits": true, "Floor": true, "Frexp": true, "Inf": true, "IsInf": true, "IsNaN": true,
	"Ldexp": true, "Max": true, "Min": true, "Modf": true, "NaN": true, "Nextafter": true, "Nextafter32": true,
	"Round": true, "RoundToEven": true, "Signbit": true, "Sqrt": true, "Trunc": true,
}

// MathCalls finds the functions of math in the guarded folders that differ between
// architectures: exponentials, logarithms, powers, trigonometry. Ours are in simd/ref.
func MathCalls(t *Tree) []Finding {
	var found []Finding
	for _, u := range t.checked() {
		if !under(u.pkg.Dir, guarded...) {
			continue
		}
		for id, obj := range u.info.Uses {
			fn, ok := obj.(*types.Func)
			if ok && fn.Pkg() != nil && (path.Base(fn.Pkg().Path()) == "cmplx" || fn.Pkg().Path() == "math" && !sameEverywhere[fn.Name()]) {
				found = append(found, t.at(id.Pos(), "%s.%s has other bits on other architectures", fn.Pkg().Name(), fn.Name()))
			}
		}
	}
	return found
}
