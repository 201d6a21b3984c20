package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// operands are what both kinds of product have, for each of Batch products:
// x [M,K], weights [N,K], y [M,N]. The weights are one matrix of all rows.
type operands struct {
	arena  arena
	spec   Spec
	w      matrix
	x, y   []float32
	tamper func([]float32)
}

func (l *Lab) operands(s Spec) (operands, error) {
	r := rng(l.seed + 2)
	o := operands{spec: s, w: r.codedMatrix(s.products()*s.N, s.K), tamper: l.tamper}
	o.x = o.arena.floats(s.data(r.normals(s.products()*s.M*s.K, 1)))
	o.y = placed[float32](&o.arena, s.products()*s.M*s.N)
	return o, o.arena.err
}

func (o *operands) Close() error { return o.arena.free() }

// product is one product through fp8.Packed.
type product struct {
	operands
	packed *fp8.Packed
	pool   *mla.Pool
}

func (l *Lab) openProduct(s Spec) (Workload, error) {
	p := &product{pool: l.pool(s.Threads)}
	if err := p.open(l, s); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *product) open(l *Lab, s Spec) (err error) {
	if p.operands, err = l.operands(s); err != nil {
		return err
	}
	all, err := p.w.fp8()
	if err != nil {
		return err
	}
	var each []fp8.Matrix
	for b := range s.products() {
		one, err := all.Slice(b*s.N, (b+1)*s.N)
		if err != nil {
			return err
		}
		each = append(each, one)
	}
	p.packed, err = fp8.Pack(each, fp8.PackOptions{})
	return err
}

func (p *product) Run(ctx context.Context) error {
	s := p.spec
	return p.packed.Mul(ctx, p.pool, p.y, fp8.RowsF32(p.x), fp8.Shape{M: s.M, LdX: s.K, LdY: s.N, StrideX: s.M * s.K},
		fp8.Product{Compute: s.Arithmetic})
}

func (p *product) Memory() int64 { return p.packed.Bytes() }
func (p *product) RowBytes() int { return 0 }

func (p *product) Close() error {
	var err error
	if p.packed != nil {
		err = p.packed.Close()
	}
	return errors.Join(err, p.operands.Close())
}

// rival is the same product by gonum's sgemm, on weights dequantised to float32.
type rival struct {
	operands
	wide []float32
}

func (l *Lab) openRival(s Spec) (Workload, error) {
	if s.Rival != Gonum || s.Batch > 1 || s.Arithmetic != mla.ComputeF32 {
		return nil, fmt.Errorf("rival %q of %d products in %v, want %q of one in f32", s.Rival, s.products(), s.Arithmetic, Gonum)
	}
	o, err := l.operands(s)
	r := &rival{operands: o, wide: placed[float32](&o.arena, s.N*s.K)}
	if err = cmp.Or(err, r.arena.err); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	for i := range s.N {
		for j, x := range r.w.row(i) {
			r.wide[i*s.K+j] = float32(x)
		}
	}
	return r, nil
}

// Run lets gonum have as many goroutines as the row says: it goes by GOMAXPROCS.
func (r *rival) Run(context.Context) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(r.spec.Threads))
	s := r.spec
	gonum.Implementation{}.Sgemm(blas.NoTrans, blas.Trans, s.M, s.N, s.K, 1, r.x, s.K, r.wide, s.K, 0, r.y, s.N)
	return nil
}

func (r *rival) Memory() int64 { return int64(4 * len(r.wide)) }
func (r *rival) RowBytes() int { return 0 }

const (
	// checkedColumn is the stride of the outputs that are compared in a row: it
	// has no factor in common with any panel or block.
	checkedColumn = 31
	// productBound is the error a product may have, of the largest size of its row
	// (oracle.Sum): what attention's bound gives a sum of a few hundred terms. In the second
	// arithmetic it is the same, since x and the codes are exact in bf16.
	productBound = 2e-6
)

// Check compares a few rows: the last and every 31st output of each, from another
// first output in each row.
func (o *operands) Check() (Checked, error) {
	if o.tamper != nil {
		o.tamper(o.y)
	}
	var sum Checked
	for i, row := range sample(o.spec.products() * o.spec.M) {
		if err := o.checkRow(row, i%checkedColumn, &sum); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// checkRow compares row i of all rows of all products.
func (o *operands) checkRow(i, first int, sum *Checked) error {
	s := o.spec
	weights := i / s.M * s.N // where those of its product begin
	columns := []int{s.N - 1}
	for j := first; j < s.N; j += checkedColumn {
		columns = append(columns, j)
	}
	x := oracle.Widen(o.x[i*s.K:][:s.K])
	want := make([]float64, len(columns))
	var largest, size float64
	for n, j := range columns {
		var of float64
		want[n], of = oracle.Sum(x, o.w.row(weights+j))
		largest, size = math.Max(largest, math.Abs(want[n])), math.Max(size, of)
	}
	bound := productBound * size
	sum.Rows++
	for n, j := range columns {
		got := o.y[i*s.N+j]
		diff := math.Abs(float64(got) - want[n])
		sum.MaxErr = math.Max(sum.MaxErr, diff/largest)
		if !(diff <= bound) { // NaN is wrong, too
			return fmt.Errorf("%w: %v: y[%d, %d] is %v, want %v within %.2g", ErrWrong, s, i, j, got, want[n], bound)
		}
	}
	return nil
}
