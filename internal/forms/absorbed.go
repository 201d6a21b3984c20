package forms

import (
	"context"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/attend"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// absorbed is the state of the absorbed form. It takes the tokens in waves that fit the workspace.
type absorbed struct {
	wave       attend.Wave
	waveTokens int            // most tokens of a wave
	segs       []waveSegment  // of each segment of the wave
	lists      []compute.List // [segment][2]
	tok        []int32        // batch token of each wave token

	queryCuts, outputCuts int // pieces into which a head's product is cut
}

// waveSegment is where a segment's tokens stand.
type waveSegment struct {
	seq, token int // sequence and first token of the call
	wave       int // its first token in the wave
}

func (a *absorbed) carve(c *mem.Carver, w *Workspace, g Geometry) {
	l := g.Layer
	perToken := l.Heads * (l.width() + compute.Stride(l.Latent))
	a.waveTokens = min(max(waveFloats/perToken, 1), maxWave, g.Tokens)
	a.wave.Carve(c, &w.Workers, attend.WaveGeometry{
		K: l.width(), Cols: l.Latent, Rows: a.waveTokens * l.Heads,
		// A segment begins a panel.
		Panels: a.waveTokens * compute.Panels(l.Heads), Segments: a.waveTokens, Places: g.Context,
	})
	if len(a.tok) < a.waveTokens && c.Real() {
		a.tok, a.segs = make([]int32, a.waveTokens), make([]waveSegment, a.waveTokens)
		a.lists = make([]compute.List, 2*a.waveTokens)
	}
}

func (a *absorbed) forget() {
	clear(a.lists[:2*len(a.wave.Segments)])
	a.wave.Forget()
}

// runAbsorbed computes every sequence whose form is absorbed.
func (w *Workspace) runAbsorbed(ctx context.Context) error {
	a, c := &w.absorbed, w.call
	call := attend.Call{K: c.width(), Cols: c.Latent, Scale: c.Scale, Mask: c.Mask, Outputs: c.outputs()}
	if c.core() {
		call.Out, call.LD = c.Out, c.Latent
	}
	for seq, done := 0, 0; ; {
		seq, done = w.fillWave(seq, done)
		if len(a.wave.Segments) == 0 {
			return nil
		}
		if !c.core() {
			a.queryCuts = w.cuts(c.Heads, compute.Panels(c.Latent))
			a.outputCuts = w.cuts(c.Heads, compute.Panels(c.V))
			if err := w.pool.Run(ctx, c.Heads*a.queryCuts, (*queryStage)(w)); err != nil {
				return err
			}
		}
		if err := w.pool.Run(ctx, a.wave.Panels(), (*packStage)(w)); err != nil {
			return err
		}
		if err := a.wave.Run(ctx, w.pool, call); err != nil {
			return err
		}
		if c.core() {
			continue
		}
		if err := w.pool.Run(ctx, c.Heads*a.outputCuts, (*outputStage)(w)); err != nil {
			return err
		}
	}
}

// fillWave collects the next wave of tokens, from the token numbered done of sequence seq on, and
// says where the one after begins.
func (w *Workspace) fillWave(seq, done int) (int, int) {
	a, c := &w.absorbed, w.call
	clear(a.lists[:2*len(a.wave.Segments)])
	a.wave.Segments = a.wave.Segments[:0]
	tokens, panels := 0, 0
	for seq < len(c.Seqs) && tokens < a.waveTokens {
		s := &c.Seqs[seq]
		n := min(s.Tokens-done, a.waveTokens-tokens)
		if n == 0 || s.Expanded {
			seq, done = seq+1, 0 // empty, or ended by the last segment
			continue
		}
		if c.Sparse > 0 && !c.Shared {
			n = 1 // a list for each token
		}
		at, i := s.Token+done, len(a.wave.Segments)
		a.segs[i] = waveSegment{seq, at, tokens}
		g := attend.Segment{
			Tokens: n, Heads: c.Heads, Pos: s.Pos + done, Places: s.Keys,
			Row: tokens * c.Heads, Panel: panels, OutAt: at * c.Heads * c.Latent, LSEAt: c.lseAt(seq, at),
		}
		if c.Sparse == 0 {
			g.Keys[0].View = s.View
		} else {
			w.addLists(&g, i, seq, at)
		}
		a.wave.Segments = append(a.wave.Segments, g)
		for j := range n {
			a.tok[tokens+j] = int32(at + j)
		}
		tokens += n
		panels += compute.Panels(n * c.Heads)
		done += n
	}
	return seq, done
}

// addLists makes the keys of g, segment i, the lists of token t.
func (w *Workspace) addLists(g *attend.Segment, i, seq, t int) {
	a, c := &w.absorbed, w.call
	g.Lists = c.Sparse
	for k := range c.Sparse {
		from, l := &c.Lists[k], &a.lists[2*i+k]
		*l = compute.List{Entries: from.Of(t, seq), Width: c.width(), Rows: from.Rows, Pool: from.Pool, Plain: from.Plain}
		if from.Logical {
			l.View, l.Keys, l.Seen = c.Seqs[seq].View, c.Seqs[seq].Keys, g.Pos+g.Tokens
		}
		g.Keys[k].List = l
	}
}

// waveLen is the number of tokens in the wave.
func (a *absorbed) waveLen() int {
	i := len(a.wave.Segments) - 1
	return a.segs[i].wave + a.wave.Segments[i].Tokens
}

// queryStage computes the latent part of q' of one head, as rows where the sums of the wave will
// be: item = head*cuts + piece of R.
type queryStage Workspace

func (q *queryStage) Do(worker, item int) error {
	w := (*Workspace)(q)
	a, c, s := &w.absorbed, w.call, &w.scratch[worker]
	h, d, n := item/a.queryCuts, c.Nope+c.Rope, a.waveLen()
	n0, n1 := piece(item%a.queryCuts, a.queryCuts, c.Latent)
	rows := a.wave.Sums
	for i0 := 0; i0 < n; i0 += productTokens {
		m := min(productTokens, n-i0)
		for i := range m {
			c.Q.Widen(s.xs[i*c.Nope:], (int(a.tok[i0+i])*c.Heads+h)*d, c.Nope)
		}
		c.UK.Activate(&s.queryAct, s.xs, c.Nope, m)
		c.UK.MulPanels(h, rows.O[(i0*c.Heads+h)*rows.LD+n0:], c.Heads*rows.LD, &s.queryAct, m, n0, n1)
	}
	return nil
}

// packStage packs the queries of one panel: rows that the query stage and the rotation make, or
// those of the caller's q. item = panel.
type packStage Workspace

func (q *packStage) Do(worker, panel int) error {
	w := (*Workspace)(q)
	a, c, s := &w.absorbed, w.call, &w.scratch[worker]
	i, width := a.wave.SegmentOf(panel), c.width()
	seg := &a.wave.Segments[i]
	row := (panel - seg.Panel) * simd.Lanes
	n := min(simd.Lanes, seg.Tokens*c.Heads-row)
	dst := a.wave.Panel(width, panel)
	if c.core() {
		w.Worker(worker).Pack(dst, c.Q, (a.segs[i].token*c.Heads+row)*width, width, n, width)
		return nil
	}
	latent, d := a.wave.Sums, c.Nope+c.Rope
	for j := range n {
		r := row + j
		x := s.rows[j*width:][:width]
		copy(x[:c.Latent], latent.O[(seg.Row+r)*latent.LD:])
		if c.Rope > 0 {
			c.Q.Widen(x[c.Latent:], (a.segs[i].token*c.Heads+r)*d+c.Nope, c.Rope)
			w.rotate(s, x[c.Latent:], seg.Pos+r/c.Heads)
		}
	}
	w.Worker(worker).Pack(dst, fp8.RowsF32(s.rows), 0, width, n, width)
	return nil
}

// outputStage applies w_uv of one head: item = head*cuts + piece of V.
type outputStage Workspace

func (q *outputStage) Do(worker, item int) error {
	w := (*Workspace)(q)
	a, c, s := &w.absorbed, w.call, &w.scratch[worker]
	h, n := item/a.outputCuts, a.waveLen()
	n0, n1 := piece(item%a.outputCuts, a.outputCuts, c.V)
	o := a.wave.Sums
	for i0 := 0; i0 < n; i0 += productTokens {
		m := min(productTokens, n-i0)
		c.UV.Activate(&s.latentAct, o.O[(i0*c.Heads+h)*o.LD:], c.Heads*o.LD, m)
		c.UV.MulPanels(h, s.ys, n1-n0, &s.latentAct, m, n0, n1)
		for i := range m {
			y := s.ys[i*(n1-n0) : (i+1)*(n1-n0)]
			if o.M[(i0+i)*c.Heads+h] == compute.NegInf {
				clear(y) // a row that saw nothing is 0, whatever w_uv holds
			}
			c.Out.Narrow((int(a.tok[i0+i])*c.Heads+h)*c.V+n0, y)
		}
	}
	return nil
}
