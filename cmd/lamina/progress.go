package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// bar draws on one line of a terminal how far something is; elsewhere nothing.
type bar struct {
	line  progress
	what  string
	drawn time.Time
}

// barWidth is the characters of a full bar, barPause the least time from one drawing to the
// next.
const (
	barWidth = 30
	barPause = 50 * time.Millisecond
)

func newBar(w io.Writer, what string) *bar {
	return &bar{line: progress{w: w, on: isTerminal(w)}, what: what}
}

// progress draws the bar at done of total, unless it has just been drawn.
func (b *bar) progress(done, total int64) {
	now := time.Now()
	if !b.line.on || total <= 0 || done < total && now.Sub(b.drawn) < barPause {
		return
	}
	b.drawn = now
	full := int(barWidth * min(done, total) / total)
	b.line.show(fmt.Sprintf("%s [%s%s] %3d%%", b.what, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*min(done, total)/total))
}

func (b *bar) clear() { b.line.clear() }
