package cli

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progressMode is how progress shows.
type progressMode int

const (
	progressOff progressMode = iota
	progressLines
	progressLogged
	progressBars
)

// lineEvery is the pause between two plain progress lines that were asked for.
const lineEvery = 5 * time.Second

// LogPause is the pause between two lines of the log that say how far a long operation is, where no terminal shows it.
const LogPause = 10 * time.Second

// Progress shows how far a long operation is, on stderr: a bar on a terminal; elsewhere a line of the log every
// [LogPause], or a plain line every few seconds with --no-progress=false; nothing with --no-progress. The nil Progress
// shows nothing. Safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	title string
	total int64
	done  int64
	show  func(int64) string
	note  string // what is worth knowing now, shown behind the amount

	out   io.Writer    // plain lines
	log   *slog.Logger // lines of the log; nil: plain ones
	last  time.Time
	begun time.Time
	from  int64 // units done before, by an earlier process

	bars *mpb.Progress // its own display; nil in a Group
	bar  *mpb.Bar
}

// Progress starts the display of an operation of total units; show prints an amount, such as [Bytes] or [Count].
func (e *Env) Progress(title string, total int64, show func(int64) string) *Progress {
	p := &Progress{title: Escape(title), total: total, show: show, last: time.Now(), begun: time.Now()}
	switch e.progress {
	case progressOff:
		return nil
	case progressLines:
		p.out = e.Err
		return p
	case progressLogged:
		p.log = e.Log
		return p
	}
	p.bars = e.bars()
	p.bar = p.add(p.bars, decor.WC{})
	return p
}

// bars makes a display of bars. It moves the cursor, so it writes to stderr itself; what it shows of others is escaped.
func (e *Env) bars() *mpb.Progress {
	out := e.Err
	if t, ok := out.(textWriter); ok {
		out = t.w
	}
	if s, ok := out.(*screen); ok {
		out = s.w
	}
	return mpb.New(mpb.WithOutput(out), mpb.WithRefreshRate(120*time.Millisecond))
}

// add adds the operation's bar to a display.
func (p *Progress) add(bars *mpb.Progress, name decor.WC) *mpb.Bar {
	return bars.AddBar(p.total,
		mpb.PrependDecorators(decor.Name(p.title+" ", name)),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return fmt.Sprintf(" %s / %s %s ", p.show(s.Current), p.show(s.Total), p.noted())
		}), decor.Any(func(s decor.Statistics) string { return p.left(s.Current) })))
}

// Group shows several operations at once, below each other. Close it when all of them are closed. Safe for concurrent
// use.
type Group struct {
	env  *Env
	mu   sync.Mutex
	bars *mpb.Progress // made with the first operation
}

// Group starts a display of several operations.
func (e *Env) Group() *Group { return &Group{env: e} }

// Progress adds an operation; see Env.Progress.
func (g *Group) Progress(title string, total int64, show func(int64) string) *Progress {
	if g.env.progress != progressBars {
		return g.env.Progress(title, total, show)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bars == nil {
		g.bars = g.env.bars()
	}
	p := &Progress{title: Escape(title), total: total, show: show, begun: time.Now()}
	p.bar = p.add(g.bars, decor.WCSyncSpaceR)
	return p
}

// Close ends the display.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bars != nil {
		g.bars.Wait()
	}
}

// Resume says that n units were done before; the time left is then judged by the others.
func (p *Progress) Resume(n int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.from, p.begun = n, time.Now()
	p.mu.Unlock()
	p.Add(n)
}

// left is the time that the rest will take at the rate so far, empty while nothing or everything is done.
func (p *Progress) left(done int64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leftOf(done)
}

// leftOf is left for who holds the lock.
func (p *Progress) leftOf(done int64) string {
	if done <= p.from || done >= p.total {
		return ""
	}
	d := time.Duration(float64(time.Since(p.begun)) / float64(done-p.from) * float64(p.total-done))
	return d.Round(time.Second).String()
}

// Note sets a text that is shown behind the amount, such as the loss of a training.
func (p *Progress) Note(text string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.note = Escape(text)
}

func (p *Progress) noted() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.note
}

// Add records n more units.
func (p *Progress) Add(n int64) {
	if p == nil {
		return
	}
	if p.bar != nil {
		p.bar.IncrInt64(n)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	pause := lineEvery
	if p.log != nil {
		pause = LogPause
	}
	if now := time.Now(); now.Sub(p.last) >= pause {
		p.last = now
		p.line()
	}
}

// line prints the state as text.
func (p *Progress) line() {
	percent := 100.0
	if p.total > 0 {
		percent = 100 * float64(p.done) / float64(p.total)
	}
	text := fmt.Sprintf("%s: %s of %s (%.0f %%)", p.title, p.show(p.done), p.show(p.total), percent)
	if p.log == nil {
		fmt.Fprintf(p.out, "%s %s\n", text, p.note)
		return
	}
	if p.note != "" {
		text += " " + p.note
	}
	if left := p.leftOf(p.done); left != "" {
		text += ", " + left + " left"
	}
	p.log.Info(text)
}

// Close ends the display; what is missing stays missing.
func (p *Progress) Close() {
	if p == nil {
		return
	}
	if p.bar != nil {
		p.bar.Abort(false) // no effect on a completed bar
		if p.bars != nil {
			p.bars.Wait()
		}
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.log == nil { // a log has the results of the command behind it
		p.line()
	}
}
