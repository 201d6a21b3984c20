package kvpaged_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// methodTypes are the exported types of the package with exported methods, by what
// the source says, so that a new one cannot be forgotten below.
func methodTypes(t *testing.T) map[string]bool {
	t.Helper()
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	types := map[string]bool{}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, 0)
		require.NoError(t, err)
		for _, d := range tree.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil || !fn.Name.IsExported() {
				continue
			}
			of := fn.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if name := of.(*ast.Ident); name.IsExported() {
				types[name.Name] = true
			}
		}
	}
	return types
}

// TestUnusable calls every method of every type on values that are nil, zero, or
// closed, with arguments that are zero and that are not. What returns an error
// returns ErrClosed, but for Close and Free, which have nothing to do; the rest
// returns, or, in a lease, panics as it does for a row that is out of range.
func TestUnusable(t *testing.T) {
	cache, err := kvpaged.New(small())
	require.NoError(t, err)
	freed := newSeq(t, cache)
	appendRows(t, freed, 5, rowOf(cache, 1))
	view, err := freed.Lease(0, 0)
	require.NoError(t, err)
	view.Release()
	pool, err := cache.Lease(0)
	require.NoError(t, err)
	pool.Release()
	orphan := newSeq(t, cache)
	appendRows(t, orphan, 5, rowOf(cache, 1))
	require.NoError(t, freed.Free())
	require.NoError(t, cache.Close())

	unknown := kvpaged.Format(200)
	covered := map[string]bool{}
	for name, values := range map[string][]any{
		"Cache":    {(*kvpaged.Cache)(nil), new(kvpaged.Cache), cache},
		"Seq":      {(*kvpaged.Seq)(nil), new(kvpaged.Seq), freed, orphan},
		"View":     {(*kvpaged.View)(nil), new(kvpaged.View), &view},
		"PoolView": {(*kvpaged.PoolView)(nil), new(kvpaged.PoolView), &pool},
		"Format":   {&unknown},
	} {
		covered[name] = true
		for i, value := range values {
			v := reflect.ValueOf(value)
			for m := range v.NumMethod() {
				for _, size := range []int{0, 1, 3} {
					about := fmt.Sprintf("%s %d of %T, arguments of size %d", v.Type().Method(m).Name, i, value, size)
					callUnusable(t, v, m, size, about)
				}
			}
		}
	}
	assert.Equal(t, methodTypes(t), covered)

	for name, c := range map[string]*kvpaged.Cache{"nil": nil, "zero": new(kvpaged.Cache), "closed": cache} {
		_, err := kvpaged.ImportLookup(c, []int{0}, []int{1}, []int{0})
		assert.ErrorIs(t, err, kvpaged.ErrClosed, name)
		_, err = kvpaged.ImportBlockTable(c, []int{0}, []int{1}, []int{0}, nil)
		assert.ErrorIs(t, err, kvpaged.ErrClosed, name)
		_, err = kvpaged.ImportCSR(c, []int{0, 1}, []int{0}, []int{1}, []int{0})
		assert.ErrorIs(t, err, kvpaged.ErrClosed, name)
	}
}

// callUnusable calls method m with integers, and slices of a length, of size.
func callUnusable(t *testing.T, v reflect.Value, m, size int, about string) {
	t.Helper()
	method := v.Method(m)
	var args []reflect.Value
	for i := range method.Type().NumIn() {
		arg := reflect.New(method.Type().In(i)).Elem()
		switch arg.Kind() {
		case reflect.Slice:
			arg.Set(reflect.MakeSlice(arg.Type(), size, size))
		case reflect.Int:
			arg.SetInt(int64(size))
		default:
			t.Fatalf("%s: what is a %v?", about, arg.Type())
		}
		args = append(args, arg)
	}
	var out []reflect.Value
	panicked := func() (p any) {
		defer func() { p = recover() }()
		out = method.Call(args)
		return nil
	}()
	if panicked != nil {
		assert.Contains(t, v.Type().String(), "View", about)
		if name := v.Type().Method(m).Name; !slices.Contains([]string{"Row", "Run", "RunBF16", "Scales", "Write"}, name) {
			assert.NotZero(t, size, "%s: no rows are no harm", about)
		}
		text, _ := panicked.(string)
		assert.Regexp(t, "^kvpaged: ", text, "%s: %v", about, panicked)
		return
	}
	if len(out) == 0 {
		return
	}
	err, isError := out[len(out)-1].Interface().(error)
	switch name := v.Type().Method(m).Name; {
	case name == "Close" || name == "Free":
		assert.False(t, isError, "%s: %v", about, err)
	case method.Type().Out(len(out)-1) == reflect.TypeFor[error]():
		require.True(t, isError, about)
		assert.ErrorIs(t, err, kvpaged.ErrClosed, about)
	}
}
