package kerneltest

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Zero is what a type promises of its zero value and of a nil pointer to it: no method panics, and those that return an
// error return one that wraps a sentinel.
type Zero struct {
	Value    any                 // new(T)
	Sentinel error               // of every method that returns an error; nil for a type whose zero value is fit for use
	Except   map[string]struct{} // methods that take indices, which must be in range as those of a slice
}

// ZeroValues holds types to what they promise. A method is called with a context, a writer that takes all, a path of a
// folder that is there, and zero values otherwise.
func ZeroValues(t *testing.T, types ...Zero) {
	for _, z := range types {
		pointer := reflect.TypeOf(z.Value)
		for what, v := range map[string]reflect.Value{"zero": reflect.New(pointer.Elem()), "nil": reflect.Zero(pointer)} {
			for i := range pointer.NumMethod() {
				m := pointer.Method(i)
				if _, byValue := pointer.Elem().MethodByName(m.Name); byValue && what == "nil" {
					continue // Go itself cannot call it
				}
				if _, ok := z.Except[m.Name]; ok {
					continue
				}
				t.Run(pointer.Elem().Name()+"/"+what+"/"+m.Name, func(t *testing.T) { zeroCall(t, z, v.Method(i)) })
			}
		}
	}
}

// Closed holds a value that is closed to what it promises: no method panics, Close does nothing more, and the others that
// return an error return one.
func Closed(t *testing.T, value any) {
	v := reflect.ValueOf(value)
	for i := range v.NumMethod() {
		name := v.Type().Method(i).Name
		t.Run(v.Type().Elem().Name()+"/closed/"+name, func(t *testing.T) {
			err, ok := callZero(t, v.Method(i))
			switch {
			case name == "Close":
				require.NoError(t, err)
			case ok:
				require.Error(t, err)
			}
		})
	}
}

var (
	errorType   = reflect.TypeFor[error]()
	contextType = reflect.TypeFor[context.Context]()
	writerType  = reflect.TypeFor[io.Writer]()
)

func zeroCall(t *testing.T, z Zero, f reflect.Value) {
	err, ok := callZero(t, f)
	switch {
	case !ok:
	case z.Sentinel == nil:
		require.NoError(t, err)
	default:
		require.ErrorIs(t, err, z.Sentinel)
		require.NotEqual(t, z.Sentinel, err, "an error says more than its sentinel")
		require.NotErrorIs(t, err, fs.ErrNotExist)
	}
}

// callZero calls a method with zero values, and says whether it returns an error, and which.
func callZero(t *testing.T, f reflect.Value) (err error, ok bool) {
	var args []reflect.Value
	for i := range f.Type().NumIn() {
		switch in := f.Type().In(i); {
		case in == contextType:
			args = append(args, reflect.ValueOf(context.Background()))
		case in == writerType:
			args = append(args, reflect.ValueOf(io.Discard))
		case in.Kind() == reflect.String:
			args = append(args, reflect.ValueOf(filepath.Join(t.TempDir(), "file")).Convert(in))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	var results []reflect.Value
	require.NotPanics(t, func() { results = f.Call(args) })
	n := len(results)
	if n == 0 || f.Type().Out(n-1) != errorType {
		return nil, false
	}
	err, _ = results[n-1].Interface().(error)
	return err, true
}

// TypesWithErrors are the exported types of the package in dir that have an exported method which returns an error: those
// whose zero values ZeroValues should be given.
func TypesWithErrors(t *testing.T, dir string) map[string]bool {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	types, set := map[string]bool{}, token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.IsExported() && returnsError(f.Type) {
				if of := receiver(f); ast.IsExported(of) {
					types[of] = true
				}
			}
		}
	}
	return types
}

func returnsError(f *ast.FuncType) bool {
	if f.Results == nil {
		return false
	}
	last, ok := f.Results.List[len(f.Results.List)-1].Type.(*ast.Ident)
	return ok && last.Name == "error"
}

// receiver is the name of the type that a method belongs to.
func receiver(f *ast.FuncDecl) string {
	x := f.Recv.List[0].Type
	if p, ok := x.(*ast.StarExpr); ok {
		x = p.X
	}
	if id, ok := x.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
