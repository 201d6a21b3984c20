package kvpaged_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// TestReadersAndWriters has, for each of some sequences, one goroutine that
// appends and some that read, in one pool that is too small for all, while
// others fork, append to the forks, truncate, free and try to close. The arena is on
// the heap, where the race detector sees it.
func TestReadersAndWriters(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 40
	}
	cfg := kvpaged.Config{Layers: 2, PageTokens: 3, Width: 4, Format: kvpaged.F32, Pages: 60, Order: kvpaged.PageMajor}
	cfg.Arena = heapArena(t, cfg)
	c := newCache(t, cfg)
	var writers, others sync.WaitGroup
	var done atomic.Bool
	var committed atomic.Int64
	for i := range 3 {
		s, row := newSeq(t, c), rowOf(c, i)
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 4))
			for range rounds {
				n := rng.IntN(7)
				switch err := s.Reserve(n); {
				case errors.Is(err, kvpaged.ErrBusy): // a reader is in the page to be copied
					runtime.Gosched()
					continue
				case errors.Is(err, kvpaged.ErrFull):
					if err := s.Truncate(rng.IntN(s.Len() + 1)); err != nil {
						assert.ErrorIs(t, err, kvpaged.ErrBusy)
					}
					continue
				case err != nil:
					assert.NoError(t, err)
				}
				assert.NoError(t, writeAll(s, n, row))
				assert.NoError(t, s.Commit(n))
				committed.Add(int64(n))
			}
		})
		for range 2 {
			others.Go(func() {
				for !done.Load() {
					readAll(t, s, row)
					pause()
				}
			})
		}
		others.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 5))
			for !done.Load() {
				forkAndAppend(t, s, row, rng)
				pause()
			}
		})
	}
	others.Go(func() {
		for !done.Load() {
			v, err := c.NewSeq()
			assert.NoError(t, err)
			if v.Reserve(4) == nil {
				assert.NoError(t, v.WriteRows(1, 0, make([]float32, 16)))
				l, err := v.Lease(0, 0)
				assert.NoError(t, err)
				assert.ErrorIs(t, c.Close(), kvpaged.ErrBusy)
				l.Release()
			}
			assert.NoError(t, v.Free())
			c.FreePages()
			pause()
		}
	})
	writers.Wait()
	done.Store(true)
	others.Wait()
	assert.Positive(t, committed.Load())
	t.Logf("%d tokens committed in %d rounds", committed.Load(), 3*rounds)
}

// pause lets the writers in: who only ever locks makes the others wait.
func pause() { time.Sleep(20 * time.Microsecond) }

// writeAll writes n new tokens, half of them in each of two goroutines.
func writeAll(s *kvpaged.Seq, n int, row func(layer, pos int) []float32) error {
	for l := range s.Cache().Config().Layers {
		v, err := s.Lease(l, n)
		if err != nil {
			return err
		}
		var wg sync.WaitGroup
		for half := range 2 {
			wg.Go(func() {
				for i := half; i < n; i += 2 {
					v.Write(v.Len()+i, row(l, v.Len()+i))
				}
			})
		}
		wg.Wait()
		v.Release()
	}
	return nil
}

func readAll(t *testing.T, s *kvpaged.Seq, row func(layer, pos int) []float32) {
	for l := range 2 {
		v, err := s.Lease(l, 0)
		if !assert.NoError(t, err) {
			return
		}
		got := make([]float32, v.Len()*4)
		v.Widen(got, 4, 0, v.Len())
		for pos := range v.Len() {
			if want := row(l, pos); !slices.Equal(want, got[pos*4:pos*4+4]) {
				assert.Equal(t, want, got[pos*4:pos*4+4], "layer %d, position %d", l, pos)
				break
			}
		}
		v.Release()
	}
}

// forkAndAppend forks what a sequence has at this moment, or less, and goes on from
// there with rows that are none of the parent's.
func forkAndAppend(t *testing.T, s *kvpaged.Seq, row func(layer, pos int) []float32, rng *rand.Rand) {
	fork, err := s.Fork(rng.IntN(s.Len() + 1))
	if err != nil { // truncated meanwhile
		assert.True(t, errors.Is(err, kvpaged.ErrFull) || errors.Is(err, kvpaged.ErrRange), "%v", err)
		return
	}
	readAll(t, fork, row)
	n := fork.Len()
	if more := rng.IntN(4); fork.Reserve(more) == nil {
		assert.NoError(t, writeAll(fork, more, func(layer, pos int) []float32 { return row(layer+1, pos) }))
		assert.NoError(t, fork.Commit(more))
		assert.NoError(t, fork.Truncate(n))
	}
	again, err := fork.Fork(n - n%3) // its pages are shared by three
	assert.NoError(t, err)
	assert.NoError(t, fork.Free())
	readAll(t, again, row)
	assert.NoError(t, again.Free())
}

// TestForkRacesWithFree: a fork has all tokens that it was asked for, or there is
// none, whatever happens to the parent and its pages meanwhile.
func TestForkRacesWithFree(t *testing.T) {
	cfg := kvpaged.Config{Layers: 2, PageTokens: 4, Width: 4, Format: kvpaged.F32, Pages: 8}
	cfg.Arena = heapArena(t, cfg)
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	for round := range rounds {
		c := newCache(t, cfg)
		s := newSeq(t, c)
		appendRows(t, s, 14, rowOf(c, 1))
		assert.NoError(t, s.Reserve(2))
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				fork, err := s.Fork(14 - (round+3*i)%9)
				if err != nil {
					known := errors.Is(err, kvpaged.ErrClosed) || errors.Is(err, kvpaged.ErrRange) || errors.Is(err, kvpaged.ErrFull)
					assert.True(t, known, "%v", err)
					return
				}
				readAll(t, fork, rowOf(c, 1))
				assert.NoError(t, fork.Free())
			})
		}
		wg.Go(func() {
			assert.NoError(t, s.Commit(0))
			assert.NoError(t, s.Truncate(9))
			assert.NoError(t, s.Free())
		})
		wg.Go(func() { // who takes the pages that become free
			other, err := c.NewSeq()
			assert.NoError(t, err)
			for range 3 {
				if other.Reserve(4) == nil {
					assert.NoError(t, other.WriteRows(1, other.Len(), make([]float32, 12)))
					assert.NoError(t, other.Commit(4))
				}
			}
			assert.NoError(t, other.Free())
		})
		wg.Wait()
		require.Equal(t, 8, c.FreePages())
	}
}

// TestCloseRacesWithLeases: a lease that was given is good until it is released.
func TestCloseRacesWithLeases(t *testing.T) {
	for range 50 {
		c, err := kvpaged.New(small())
		require.NoError(t, err)
		s := newSeq(t, c)
		appendRows(t, s, 4, rowOf(c, 1))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				v, err := s.Lease(0, 0)
				if err != nil {
					assert.ErrorIs(t, err, kvpaged.ErrClosed)
					return
				}
				v.Widen(make([]float32, 12), 3, 0, 4)
				v.Release()
			})
			wg.Go(func() {
				if err := s.Reserve(1); err != nil {
					assert.ErrorIs(t, err, kvpaged.ErrClosed)
				}
			})
			wg.Go(func() {
				if err := c.Close(); err != nil {
					assert.ErrorIs(t, err, kvpaged.ErrBusy)
				}
			})
		}
		wg.Wait()
		require.NoError(t, c.Close())
	}
}

// TestNeighboursAreWritten has goroutines write tokens whose rows and scales lie
// next to each other, while committed tokens of the same page are read.
func TestNeighboursAreWritten(t *testing.T) {
	const n = 9
	for _, f := range allFormats[5:] {
		m := newMemory(t, in(f, kvpaged.Config{Layers: 1, PageTokens: 8, Width: 7, Pages: 3}), f == kvpaged.FP8Token)
		rng := rand.New(rand.NewPCG(8, uint64(f)))
		x, w := rows(rng, 2*n, m.cfg.Width), m.cfg.Width
		s := newSeq(t, m.Cache)
		require.NoError(t, s.Reserve(2*n))
		require.NoError(t, s.WriteRows(0, 0, x[:n*w]))
		require.NoError(t, s.Commit(n))
		v, err := s.Lease(0, n)
		require.NoError(t, err)
		pool, err := m.Lease(0)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for k := range 3 {
			wg.Go(func() {
				for i := k; i < n; i += 3 {
					v.Write(n+i, x[(n+i)*w:(n+i+1)*w])
				}
			})
			wg.Go(func() {
				got := make([]float32, n*w)
				v.Widen(got, w, 0, n)
				pool.Gather(got, w, []int32{s.Pages()[0]*8 + 7})
				_, err := s.Export(0, 0, n)
				assert.NoError(t, err)
				_, err = s.ExportPage(0, 1)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		pool.Release()
		v.Release()
		require.NoError(t, s.Commit(n))
		var want []float32
		for pos := range 2 * n {
			row, scales := encoded(m.cfg, x[pos*w:(pos+1)*w])
			want = append(want, decoded(m.cfg, row, scales)...)
		}
		checkReads(t, f.String(), m, s, 0, want)
	}
}
