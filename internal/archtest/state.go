package archtest

import (
	"go/ast"
	"go/token"
	"go/types"
)

// DirectCalls finds what could stand between a caller of simd and a kernel: package
// variables that hold functions or interfaces, functions used as values rather than
// called, and interfaces with methods. Through any of these every pointer argument
// of a kernel would escape to the heap. Errors are no kernels.
func DirectCalls(t *Tree) []Finding {
	var found []Finding
	for _, u := range t.checked() {
		if !under(u.pkg.Dir, "simd") {
			continue
		}
		for _, f := range u.files {
			found = append(found, directCalls(t, u, f)...)
		}
	}
	return found
}

func directCalls(t *Tree, u *unit, f *File) []Finding {
	var found []Finding
	ast.PreorderStack(f.AST, nil, func(n ast.Node, stack []ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			if v := packageVar(u.info.Defs[n]); v != nil && indirect(v.Type(), nil) {
				found = append(found, t.at(n.Pos(), "%s holds functions or interfaces: call kernels directly", n.Name))
			}
			if fn, ok := u.info.Uses[n].(*types.Func); ok && fn.Parent() != nil && !called(n, stack) {
				found = append(found, t.at(n.Pos(), "%s is used as a value: call kernels directly", n.Name))
			}
		case *ast.InterfaceType:
			if iface, ok := u.info.Types[n].Type.(*types.Interface); ok && iface.NumMethods() > 0 {
				found = append(found, t.at(n.Pos(), "an interface stands between a caller and a kernel"))
			}
		}
		return true
	})
	return found
}

// packageVar is the package-level variable that obj is, or nil.
func packageVar(obj types.Object) *types.Var {
	v, ok := obj.(*types.Var)
	if ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope() {
		return v
	}
	return nil
}

// indirect reports whether a value of type t holds functions or interfaces other than error.
func indirect(t types.Type, inside []types.Type) bool {
	for _, outer := range inside {
		if types.Identical(outer, t) {
			return false
		}
	}
	if types.Identical(t, types.Universe.Lookup("error").Type()) {
		return false
	}
	inside = append(inside, t)
	switch u := t.Underlying().(type) {
	case *types.Signature, *types.Interface:
		return true
	case *types.Array:
		return indirect(u.Elem(), inside)
	case *types.Slice:
		return indirect(u.Elem(), inside)
	case *types.Pointer:
		return indirect(u.Elem(), inside)
	case *types.Chan:
		return indirect(u.Elem(), inside)
	case *types.Map:
		return indirect(u.Key(), inside) || indirect(u.Elem(), inside)
	case *types.Struct:
		for field := range u.Fields() {
			if indirect(field.Type(), inside) {
				return true
			}
		}
	}
	return false
}

// called reports whether id, below stack, is the function of a call.
func called(id *ast.Ident, stack []ast.Node) bool {
	var fun ast.Expr = id
	for i := len(stack) - 1; i >= 0; i-- {
		switch n := stack[i].(type) {
		case *ast.SelectorExpr, *ast.ParenExpr, *ast.IndexExpr, *ast.IndexListExpr:
			fun = n.(ast.Expr)
		case *ast.CallExpr:
			return n.Fun == fun
		default:
			return false
		}
	}
	return false
}

// changing are the package-level variables that may change, as "folder.name", with
// the reason.
var changing = map[string]string{}

// State finds package-level variables that change after the package was made: that
// are assigned to, in whole or in part, outside init, whose address is taken where
// it can be written through, or whose pointer methods are called. Those that may
// lists are exempt, and must exist.
func State(t *Tree, may map[string]string) []Finding {
	s := states{tree: t, may: may, used: map[string]bool{}}
	for _, u := range t.checked() {
		for _, f := range u.files {
			s.file(u, f)
		}
	}
	for name := range may {
		if !s.used[name] {
			s.found = append(s.found, Finding{name, 0, "is listed as a variable that may change, and does not"})
		}
	}
	return s.found
}

type states struct {
	tree  *Tree
	may   map[string]string
	used  map[string]bool
	found []Finding
}

func (s *states) file(u *unit, f *File) {
	for _, decl := range f.AST.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv == nil && fn.Name.Name == "init" {
			continue
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			s.node(u, n)
			return true
		})
	}
}

func (s *states) node(u *unit, n ast.Node) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for _, left := range n.Lhs {
			if n.Tok != token.DEFINE {
				s.changed(u, left)
			}
		}
	case *ast.IncDecStmt:
		s.changed(u, n.X)
	case *ast.RangeStmt:
		if n.Tok == token.ASSIGN {
			s.changed(u, n.Key)
			s.changed(u, n.Value)
		}
	case *ast.UnaryExpr:
		if v := root(u.info, n.X); n.Op == token.AND && v != nil && writable(v.Type()) {
			s.changed(u, n.X)
		}
	case *ast.CallExpr:
		s.call(u, n)
	}
}

// call looks at builtins that write to their first argument, and at methods whose
// receiver is the address of a variable.
func (s *states) call(u *unit, n *ast.CallExpr) {
	switch fun := ast.Unparen(n.Fun).(type) {
	case *ast.Ident:
		if b, ok := u.info.Uses[fun].(*types.Builtin); ok && (b.Name() == "copy" || b.Name() == "clear" || b.Name() == "delete") {
			s.changed(u, n.Args[0])
		}
	case *ast.SelectorExpr:
		sel := u.info.Selections[fun]
		if sel == nil || sel.Kind() != types.MethodVal {
			return
		}
		method, ok := sel.Obj().Type().(*types.Signature)
		if ok && pointer(method.Recv().Type()) && !pointer(sel.Recv()) {
			s.changed(u, fun.X)
		}
	}
}

func pointer(t types.Type) bool {
	_, ok := t.Underlying().(*types.Pointer)
	return ok
}

// writable reports whether the address of a variable of type t is taken to write to
// it, as atomic operations do, rather than to read a table without copying it.
func writable(t types.Type) bool {
	switch t.Underlying().(type) {
	case *types.Basic, *types.Pointer:
		return true
	}
	return false
}

func (s *states) changed(u *unit, e ast.Expr) {
	v := root(u.info, e)
	if v == nil {
		return
	}
	dir, ours := s.tree.in(v.Pkg().Path())
	name := dir + "." + v.Name()
	_, listed := s.may[name]
	switch {
	case listed:
		s.used[name] = true
	case ours:
		s.found = append(s.found, s.tree.at(e.Pos(), "%s changes after init: no package keeps state", name))
	}
}

// root is the package-level variable that e is a part of, or nil.
func root(info *types.Info, e ast.Expr) *types.Var {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return packageVar(info.Uses[x])
		case *ast.SelectorExpr:
			if v := packageVar(info.Uses[x.Sel]); v != nil {
				return v
			}
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
