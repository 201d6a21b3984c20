package workpool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/workpool"
)

// TestMain fails the package when a goroutine of a pool is left behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if n := settle(0); n > 0 && code == 0 {
		fmt.Printf("%d goroutines of pools are left\n", n)
		code = 1
	}
	os.Exit(code)
}

// serving counts the goroutines that belong to pools.
func serving() int {
	buf := make([]byte, 1<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "workpool.(*state).serve(")
}

// settle waits until at most want goroutines of pools are left, ten seconds at
// most, and returns how many there are.
func settle(want int) int {
	n := serving()
	for range 1000 {
		if n <= want {
			break
		}
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
		n = serving()
	}
	return n
}

// do makes a Task of a function.
type do func(worker, item int) error

func (f do) Do(worker, item int) error { return f(worker, item) }

func newPool(t testing.TB, n int) *workpool.Pool {
	p := workpool.New(n)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// pools calls f with a nil pool and with pools of several sizes.
func pools(t *testing.T, f func(t *testing.T, p *workpool.Pool)) {
	t.Run("nil", func(t *testing.T) { f(t, nil) })
	for _, n := range []int{1, 2, 3, 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { f(t, newPool(t, n)) })
	}
}

func TestEveryItemRunsOnce(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		for _, items := range []int{-1, 0, 1, 2, 3, 100} {
			counts := make([]atomic.Int32, max(items, 0))
			require.NoError(t, p.Run(context.Background(), items, do(func(_, item int) error {
				counts[item].Add(1)
				return nil
			})))
			for i := range counts {
				require.EqualValues(t, 1, counts[i].Load(), "item %d of %d", i, items)
			}
		}
	})
}

func TestWorkers(t *testing.T) {
	assert.Equal(t, 1, (*workpool.Pool)(nil).Workers())
	assert.Equal(t, 5, newPool(t, 5).Workers())
	assert.Equal(t, runtime.GOMAXPROCS(0), newPool(t, 0).Workers())
	assert.Equal(t, runtime.GOMAXPROCS(0), newPool(t, -3).Workers())
}

func TestWorkerIndexIsTakenByOneGoroutine(t *testing.T) {
	p := newPool(t, 4)
	var wg sync.WaitGroup
	for range 3 { // runs side by side have indices of their own
		wg.Go(func() {
			var inUse [4]atomic.Bool
			for range 20 {
				err := p.Run(nil, 50, do(func(worker, _ int) error {
					if !inUse[worker].CompareAndSwap(false, true) {
						return fmt.Errorf("worker %d is in two places", worker)
					}
					runtime.Gosched()
					inUse[worker].Store(false)
					return nil
				}))
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
}

func TestItemsStartInOrder(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		last := make([]int, p.Workers())
		for w := range last {
			last[w] = -1
		}
		require.NoError(t, p.Run(nil, 500, do(func(worker, item int) error {
			if item <= last[worker] {
				return fmt.Errorf("item %d after %d", item, last[worker])
			}
			last[worker] = item
			return nil
		})))
	})
}

func TestMeetMakesTwoWorkersShare(t *testing.T) {
	for _, n := range []int{2, 3, 7} {
		p := newPool(t, n)
		var meet workpool.Meet
		p.SetHook(meet.Wait)
		for _, items := range []int{0, 1, 2, 3, 20} {
			var workers sync.Map
			require.NoError(t, p.Run(nil, items, do(func(worker, _ int) error {
				workers.Store(worker, true)
				return nil
			})))
			seen := 0
			workers.Range(func(any, any) bool { seen++; return true })
			assert.GreaterOrEqual(t, seen, min(items, 2), "%d workers, %d items", n, items)
		}
		assert.GreaterOrEqual(t, meet.Workers(), 2)
	}
}

func TestMeetDoesNotHang(t *testing.T) {
	for _, p := range []*workpool.Pool{newPool(t, 1), newPool(t, 2)} {
		var meet workpool.Meet
		p.SetHook(meet.Wait)
		for range 3 {
			require.NoError(t, p.Run(nil, 1, do(func(int, int) error { return nil })))
		}
		if p.Workers() == 1 {
			require.NoError(t, p.Run(nil, 5, do(func(int, int) error { return nil })))
		}
		assert.Zero(t, meet.Workers(), "nothing that could be shared has run")
		p.SetHook(nil)
		require.NoError(t, p.Run(nil, 5, do(func(int, int) error { return nil })))
		assert.Zero(t, meet.Workers())
	}
}

// TestMeetGivesUp: the first worker to start cancels the run from the hook of
// its item, so that nobody can come to meet it.
func TestMeetGivesUp(t *testing.T) {
	p := newPool(t, 2)
	ctx, cancel := context.WithCancel(context.Background())
	meet := workpool.Meet{Limit: 5 * time.Millisecond}
	p.SetHook(func(worker, item int) { cancel(); meet.Wait(worker, item) })
	require.ErrorIs(t, p.Run(ctx, 100, do(func(int, int) error { return nil })), context.Canceled)
	p.SetHook(meet.Wait)
	require.NoError(t, p.Run(nil, 100, do(func(int, int) error { return nil })))
	assert.Positive(t, meet.Workers())
	(*workpool.Pool)(nil).SetHook(meet.Wait)
}

func TestLowestErrorWins(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		for range 20 {
			err := p.Run(nil, 40, do(func(_, item int) error {
				switch {
				case item == 5:
					time.Sleep(time.Millisecond) // the others fail first
					return errors.New("item 5")
				case item > 5:
					return fmt.Errorf("item %d", item)
				}
				return nil
			}))
			require.EqualError(t, err, "item 5")
		}
	})
}

func TestErrorStopsTheRun(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		var ran atomic.Int32
		err := p.Run(nil, 1_000_000, do(func(_, item int) error {
			ran.Add(1)
			if item == 3 {
				return io.EOF
			}
			time.Sleep(10 * time.Microsecond)
			return nil
		}))
		require.ErrorIs(t, err, io.EOF)
		assert.Less(t, ran.Load(), int32(100_000))
	})
}

func TestCancel(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		ctx, cancel := context.WithCancel(context.Background())
		var ran atomic.Int32
		err := p.Run(ctx, 1_000_000, do(func(_, item int) error {
			ran.Add(1)
			if item == 10 {
				cancel()
			}
			time.Sleep(10 * time.Microsecond)
			return nil
		}))
		require.ErrorIs(t, err, context.Canceled)
		assert.Less(t, ran.Load(), int32(100_000))

		ran.Store(0)
		err = p.Run(ctx, 3, do(func(int, int) error { ran.Add(1); return nil }))
		require.ErrorIs(t, err, context.Canceled)
		assert.Zero(t, ran.Load(), "nothing starts when the context is done already")
		require.NoError(t, p.Run(ctx, 0, do(nil)), "no item was kept from starting")
	})
}

func TestCancelAfterTheLastItemIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	require.NoError(t, newPool(t, 2).Run(ctx, 1, do(func(int, int) error { cancel(); return nil })))
}

func TestPanicBecomesAnError(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		for _, at := range []int{0, 1, 7} {
			err := p.Run(nil, 8, do(func(_, item int) error {
				if item == at {
					panic(fmt.Sprintf("boom %d", item))
				}
				return nil
			}))
			require.ErrorIs(t, err, workpool.ErrPanic)
			var pe *workpool.PanicError
			require.ErrorAs(t, err, &pe)
			assert.Equal(t, at, pe.Item)
			assert.Equal(t, fmt.Sprintf("boom %d", at), pe.Value)
			assert.Contains(t, string(pe.Stack), "pool_test.go")
			assert.Contains(t, err.Error(), fmt.Sprintf("item %d: boom %d", at, at))
		}
		err := p.Run(nil, 3, do(func(int, int) error { panic(io.ErrUnexpectedEOF) }))
		require.ErrorIs(t, err, workpool.ErrPanic)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a panic with an error wraps it")
		err = p.Run(nil, 3, do(func(int, int) error { panic(nil) }))
		require.ErrorIs(t, err, workpool.ErrPanic)

		var ran atomic.Int32
		require.NoError(t, p.Run(nil, 30, do(func(int, int) error { ran.Add(1); return nil })))
		assert.EqualValues(t, 30, ran.Load(), "the pool works after a panic")
	})
}

// TestPanicInEveryWorker makes the caller and a helper panic in one run.
func TestPanicInEveryWorker(t *testing.T) {
	p := newPool(t, 2)
	var meet workpool.Meet
	p.SetHook(meet.Wait)
	for range 20 {
		require.ErrorIs(t, p.Run(nil, 2, do(func(worker, _ int) error { panic(worker) })), workpool.ErrPanic)
	}
	assert.Equal(t, 2, meet.Workers())
}

func TestGoexitInAHelper(t *testing.T) {
	p := newPool(t, 3)
	for range 20 {
		var meet workpool.Meet
		p.SetHook(meet.Wait)
		err := p.Run(nil, 10, do(func(worker, item int) error {
			if worker != 0 {
				runtime.Goexit()
			}
			return nil
		}))
		require.ErrorIs(t, err, workpool.ErrPanic)
		require.ErrorContains(t, err, "runtime.Goexit")
	}
	p.SetHook(nil)
	require.NoError(t, p.Run(nil, 10, do(func(int, int) error { return nil })))
	assert.Eventually(t, func() bool { return serving() == 2 }, 10*time.Second, time.Millisecond, "a goroutine that ended is replaced by one")
}

func TestGoexitInTheCaller(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		var wg sync.WaitGroup
		returned := false
		wg.Go(func() {
			p.Run(nil, 1, do(func(int, int) error { runtime.Goexit(); return nil }))
			returned = true
		})
		wg.Wait()
		assert.False(t, returned, "Goexit ends the goroutine that called it")
		require.NoError(t, p.Run(nil, 10, do(func(int, int) error { return nil })))
	})
}

func TestRunInsideRun(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		var leaves atomic.Int32
		leaf := do(func(int, int) error { leaves.Add(1); return nil })
		twig := do(func(int, int) error { return p.Run(nil, 4, leaf) })
		branch := do(func(int, int) error { return p.Run(nil, 4, twig) })
		require.NoError(t, p.Run(nil, 4, branch))
		assert.EqualValues(t, 64, leaves.Load())
	})
}

func TestRunsSideBySide(t *testing.T) {
	p := newPool(t, 3)
	const callers = 8
	var wg sync.WaitGroup
	var sums [callers]atomic.Int64
	rounds := 200
	if testing.Short() {
		rounds = 50
	}
	for c := range callers {
		wg.Go(func() {
			for range rounds {
				switch c % 4 {
				case 0:
					assert.Error(t, p.Run(nil, 5, do(func(int, int) error { panic("p") })))
				case 1:
					assert.Error(t, p.Run(nil, 5, do(func(int, int) error { return io.EOF })))
				}
				assert.NoError(t, p.Run(nil, 10, do(func(_, item int) error {
					sums[c].Add(int64(item))
					return nil
				})))
			}
		})
	}
	wg.Wait()
	for c := range callers {
		assert.EqualValues(t, rounds*45, sums[c].Load())
	}
}

func TestClose(t *testing.T) {
	require.NoError(t, (*workpool.Pool)(nil).Close())
	for _, n := range []int{1, 2, 5} {
		p := workpool.New(n)
		require.NoError(t, p.Run(nil, 5, do(func(int, int) error { return nil })))
		require.NoError(t, p.Close())
		require.NoError(t, p.Close(), "a second Close does nothing")
		require.ErrorIs(t, p.Run(nil, 5, do(func(int, int) error { return nil })), workpool.ErrClosed)
		require.ErrorIs(t, p.Run(nil, 0, do(nil)), workpool.ErrClosed)
		assert.Equal(t, n, p.Workers())
	}
	assert.Zero(t, settle(0))
}

func TestCloseWhileRunning(t *testing.T) {
	for _, n := range []int{1, 3} {
		for _, items := range []int{1, 6} {
			p := workpool.New(n)
			require.NoError(t, p.Run(nil, items, do(func(int, int) error {
				if err := p.Close(); !errors.Is(err, workpool.ErrBusy) {
					return fmt.Errorf("Close inside Run: %v", err)
				}
				return nil
			})))
			require.NoError(t, p.Run(nil, items, do(func(int, int) error { return nil })), "nothing was closed")
			require.NoError(t, p.Close())
		}
	}
}

func TestDroppedPoolEndsItsGoroutines(t *testing.T) {
	before := settle(0)
	func() {
		for range 3 {
			p := workpool.New(4)
			require.NoError(t, p.Run(nil, 10, do(func(int, int) error { return nil })))
		}
	}()
	assert.Equal(t, before, settle(before))
}

type count struct{ n atomic.Int64 }

func (c *count) Do(worker, item int) error { c.n.Add(1); return nil }

func TestRunAllocatesNothing(t *testing.T) {
	pools(t, func(t *testing.T, p *workpool.Pool) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		c := new(count)
		p.Run(ctx, 64, c)
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			p.Run(ctx, 64, c)
			p.Run(nil, 1, c)
		}))
	})
}

func BenchmarkRun(b *testing.B) {
	for _, workers := range []int{1, 2} {
		for _, items := range []int{1, 16} {
			b.Run(fmt.Sprintf("workers=%d/items=%d", workers, items), func(b *testing.B) {
				p := newPool(b, workers)
				c := new(count)
				b.ReportAllocs()
				for b.Loop() {
					p.Run(nil, items, c)
				}
			})
		}
	}
}
