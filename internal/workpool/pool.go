package workpool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

var (
	// ErrClosed is returned by Run after Close.
	ErrClosed = errors.New("workpool: pool is closed")
	// ErrBusy is returned by Close while a Run is in progress.
	ErrBusy = errors.New("workpool: pool is busy")
	// ErrPanic is what a panic of a task wraps, see PanicError.
	ErrPanic = errors.New("workpool: panic in a task")
)

// PanicError is the error of an item that panicked or called runtime.Goexit. It
// wraps ErrPanic and, when the value is an error, the value.
type PanicError struct {
	Item  int
	Value any    // of the panic; nil for runtime.Goexit
	Stack []byte // of the goroutine that ran the item
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return fmt.Sprintf("%v: item %d called runtime.Goexit\n\n%s", ErrPanic, e.Item, e.Stack)
	}
	return fmt.Sprintf("%v: item %d: %v\n\n%s", ErrPanic, e.Item, e.Value, e.Stack)
}

func (e *PanicError) Unwrap() []error {
	if err, ok := e.Value.(error); ok {
		return []error{ErrPanic, err}
	}
	return []error{ErrPanic}
}

// Task is work in items that may run in any order and at the same time.
type Task interface {
	// Do runs one item. worker is in [0, Workers()) and no other goroutine has
	// the same one in this Run at the same time, so it can index scratch memory.
	Do(worker, item int) error
}

// Pool is a set of workers. A nil or zero Pool runs everything in the caller.
type Pool struct{ s *state }

// New starts a pool of n workers: n-1 goroutines and whoever calls Run.
// n <= 0 means one worker for every processor that Go may use.
func New(n int) *Pool {
	if n <= 0 {
		n = runtime.GOMAXPROCS(0)
	}
	s := &state{workers: n}
	s.wake.L = &s.mu
	s.gone.Add(n - 1)
	for id := 1; id < n; id++ {
		go s.serve(id)
	}
	p := &Pool{s}
	runtime.AddCleanup(p, (*state).shut, s)
	return p
}

func (p *Pool) none() bool { return p == nil || p.s == nil }

// Workers returns the number of workers, 1 for a nil or zero Pool.
func (p *Pool) Workers() int {
	if p.none() {
		return 1
	}
	return p.s.workers
}

// Run calls t.Do for every item in [0, items) and returns when every call that
// started has ended. Items start in increasing order. After the first error, or
// when ctx is done (nil: never), no further item starts. The error is the one of
// the lowest item that failed; the lowest item that ctx kept from starting
// counts as failed with ctx.Err(). A panic in Do is an error that wraps ErrPanic.
//
// Any number of goroutines may call Run at the same time and share the workers.
// Do may call Run too: the inner call needs nobody but its caller, so it cannot
// wait for a worker that waits for it.
func (p *Pool) Run(ctx context.Context, items int, t Task) error {
	if p.none() {
		return inline(ctx, items, t)
	}
	err := p.s.run(ctx, items, t)
	runtime.KeepAlive(p)
	return err
}

// Close ends the goroutines and waits for them. It returns ErrBusy, and closes
// nothing, while a Run is in progress. Further calls do nothing.
func (p *Pool) Close() error {
	if p.none() {
		return nil
	}
	if err := p.s.close(); err != nil {
		return err
	}
	p.s.gone.Wait()
	return nil
}

// SetHook sets a function for tests that is called before every item of a run
// that several workers may share: one of two items or more on a pool of two
// workers or more. nil removes it.
func (p *Pool) SetHook(h func(worker, item int)) {
	switch {
	case p.none():
	case h == nil:
		p.s.hook.Store(nil)
	default:
		p.s.hook.Store(&h)
	}
}

// state is what the goroutines of a pool share.
type state struct {
	workers int
	started atomic.Uint32 // runs started, by which an idle worker sees a new one without the lock
	hook    atomic.Pointer[func(worker, item int)]
	gone    sync.WaitGroup

	mu      sync.Mutex
	wake    sync.Cond // a run has started, or the pool is closed
	asleep  int       // goroutines waiting for wake
	closed  bool
	running int    // runs in progress
	active  []*run // those that may be joined
	free    []*run
}

// run is one call of Run.
type run struct {
	ctx   context.Context
	task  Task
	items int
	hook  *func(worker, item int)

	next atomic.Int64 // the next item to start
	stop atomic.Bool  // no further item starts

	mu     sync.Mutex
	err    error // of errAt, the lowest item that failed
	errAt  int
	inside atomic.Int32 // helpers; changes under state.mu
	// waiting is set, under state.mu, by a caller that sleeps on last until the
	// last helper has left.
	waiting bool
	last    chan struct{}
}

func (s *state) run(ctx context.Context, items int, t Task) (err error) {
	r, err := s.start(ctx, items, t)
	if err != nil {
		return err
	}
	defer func() { err = s.finish(r) }() // also when Do ends this goroutine
	r.work(0)
	return nil
}

// start makes a run that helpers may join.
func (s *state) start(ctx context.Context, items int, t Task) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.running++
	r := s.newRun()
	r.ctx, r.task, r.items = ctx, t, items
	helpers := min(items, s.workers) - 1
	if helpers <= 0 {
		return r, nil
	}
	r.hook = s.hook.Load()
	s.active = append(s.active, r)
	s.started.Add(1)
	for range min(helpers, s.asleep) {
		s.wake.Signal()
	}
	return r, nil
}

// newRun takes a clean run from the free list.
func (s *state) newRun() *run {
	n := len(s.free)
	if n == 0 {
		return &run{last: make(chan struct{}, 1)}
	}
	r := s.free[n-1]
	s.free = s.free[:n-1]
	return r
}

// finish lets no helper in any more, waits for those inside and recycles r.
func (s *state) finish(r *run) error {
	s.mu.Lock()
	for i, a := range s.active {
		if a == r {
			last := len(s.active) - 1
			s.active[i] = s.active[last]
			s.active[last] = nil
			s.active = s.active[:last]
			break
		}
	}
	s.mu.Unlock()

	for i := 0; i < spins && r.inside.Load() > 0; i++ {
		pause(i)
	}
	s.mu.Lock()
	if r.inside.Load() > 0 {
		r.waiting = true
		s.mu.Unlock()
		<-r.last
		s.mu.Lock()
	}
	defer s.mu.Unlock()
	err := r.err
	r.ctx, r.task, r.hook, r.err, r.waiting = nil, nil, nil, nil, false
	r.next.Store(0)
	r.stop.Store(false)
	s.free = append(s.free, r)
	s.running--
	return err
}

// serve is the life of a goroutine. When a task ends the goroutine by
// runtime.Goexit, another takes its place.
func (s *state) serve(id int) {
	killed := true
	defer func() {
		if killed {
			go s.serve(id)
		} else {
			s.gone.Done()
		}
	}()
	for s.help(id) {
	}
	killed = false
}

// help waits for a run, joins it and works for it; false when the pool is closed.
func (s *state) help(id int) bool {
	r := s.join()
	if r == nil {
		return false
	}
	defer s.leave(r)
	r.work(id)
	return true
}

// join waits for a run that has items left and enters it; nil when the pool is
// closed.
func (s *state) join() *run {
	for {
		seen := s.started.Load()
		r, closed := s.enter()
		if r != nil || closed {
			return r
		}
		for i := 0; i < spins && s.started.Load() == seen; i++ {
			pause(i)
		}
		s.sleep(seen)
	}
}

// enter joins a run now if there is one to join.
func (s *state) enter() (r *run, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r = s.neediest(); r != nil {
		r.inside.Add(1)
	}
	return r, s.closed
}

// sleep waits until a run has started since seen was read, or the pool is closed.
func (s *state) sleep(seen uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started.Load() == seen && !s.closed {
		s.asleep++
		s.wake.Wait()
		s.asleep--
	}
}

// neediest returns the run with the fewest helpers among those with items left.
func (s *state) neediest() *run {
	var best *run
	for _, r := range s.active {
		if r.idle() && (best == nil || r.inside.Load() < best.inside.Load()) {
			best = r
		}
	}
	return best
}

// leave takes a helper out of a run and wakes its caller if it was the last.
func (s *state) leave(r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.inside.Add(-1) == 0 && r.waiting {
		r.last <- struct{}{}
	}
}

func (s *state) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running > 0 {
		return fmt.Errorf("%w: %d runs in progress", ErrBusy, s.running)
	}
	s.closed = true
	s.wake.Broadcast()
	return nil
}

// shut is close for a pool that nobody holds any more.
func (s *state) shut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wake.Broadcast()
}

// idle reports whether r has an item that nobody has started.
func (r *run) idle() bool {
	return !r.stop.Load() && r.next.Load() < int64(r.items)
}

// work runs items until none is left.
func (r *run) work(worker int) {
	item, done := 0, false
	defer func() {
		if !done {
			r.fail(item, panicError(item, recover()))
		}
	}()
	for !r.stop.Load() {
		item = int(r.next.Add(1) - 1)
		if item >= r.items {
			break
		}
		if r.hook != nil && !canceled(r.ctx) {
			(*r.hook)(worker, item)
		}
		if err := one(r.ctx, r.task, worker, item); err != nil {
			r.fail(item, err)
			break
		}
	}
	done = true
}

// inline is a run without a pool.
func inline(ctx context.Context, items int, t Task) (err error) {
	item, done := 0, false
	defer func() {
		if !done {
			err = panicError(item, recover())
		}
	}()
	for ; item < items && err == nil; item++ {
		err = one(ctx, t, 0, item)
	}
	done = true
	return err
}

func one(ctx context.Context, t Task, worker, item int) error {
	if canceled(ctx) {
		return ctx.Err()
	}
	return t.Do(worker, item)
}

func canceled(ctx context.Context) bool { return ctx != nil && ctx.Err() != nil }

// panicError is called while the stack of the panic still stands. A nil value
// means runtime.Goexit: panic(nil) has a value of its own.
func panicError(item int, value any) error {
	return &PanicError{Item: item, Value: value, Stack: debug.Stack()}
}

// fail stops the run and keeps the error of the lowest item. Items start in
// order, so every item below a failed one has started and has its say.
func (r *run) fail(item int, err error) {
	r.stop.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || item < r.errAt {
		r.err, r.errAt = err, item
	}
}

// spins bounds how long a goroutine looks for work, or for the end of a run,
// before it sleeps: about ten microseconds, the price of a sleep and a wake.
const spins = 1000

// pause is one turn of a spin. Now and then it offers the processor to others,
// which a machine with fewer processors than workers needs.
func pause(turn int) {
	if turn%32 == 31 {
		runtime.Gosched()
	}
}
