package workpool

import (
	"sync"
	"time"
)

// Meet makes a test sure that work is shared: with pool.SetHook(meet.Wait) the
// worker that starts item 0 of a run is held until item 1 has started, and the
// other way round. Two items held at the same time are held by two workers, so
// none takes a second item before two have taken one. The zero value is ready.
type Meet struct {
	// Limit bounds the wait for a second worker, which never comes when a run
	// is cancelled after its first item or a run inside a run keeps every
	// worker busy: then the Meet stops holding workers for good and only
	// counts. 0 means five seconds.
	Limit time.Duration

	mu      sync.Mutex
	workers map[int]bool
	started [2]int // items 0 and items 1 started so far
	over    bool
}

// Wait is the hook.
func (m *Meet) Wait(worker, item int) {
	turn := m.start(worker, item)
	if item > 1 {
		return
	}
	limit := m.Limit
	if limit == 0 {
		limit = 5 * time.Second
	}
	for begin := time.Now(); !m.met(1-item, turn); {
		if time.Since(begin) > limit {
			m.giveUp()
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// Workers returns how many different workers have started an item.
func (m *Meet) Workers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.workers)
}

// start counts an item and returns which item of its number it is.
func (m *Meet) start(worker, item int) (turn int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.workers == nil {
		m.workers = make(map[int]bool)
	}
	m.workers[worker] = true
	if item > 1 {
		return 0
	}
	m.started[item]++
	return m.started[item]
}

// met reports whether as many of the other item have started.
func (m *Meet) met(other, turn int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.over || m.started[other] >= turn
}

func (m *Meet) giveUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.over = true
}
