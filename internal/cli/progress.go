package cli

import (
	"fmt"
	"io"
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
	progressBars
)

// lineEvery is the pause between two plain progress lines.
const lineEvery = 5 * time.Second

// Progress shows how far a long operation is, on stderr: a bar on a terminal, a line every few seconds elsewhere
// (with --no-progress=false), nothing with --no-progress. The nil Progress shows nothing. Safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	title string
	total int64
	done  int64
	show  func(int64) string
	note  string // what is worth knowing now, shown behind the amount

	out   io.Writer // plain lines
	last  time.Time
	begun time.Time
	from  int64 // units done before, by an earlier process

	bars *mpb.Progress
	bar  *mpb.Bar
}

// Progress starts the display of an operation of total units; show prints an amount, such as [Bytes] or [Count].
func (e *Env) Progress(title string, total int64, show func(int64) string) *Progress {
	p := &Progress{title: title, total: total, show: show, last: time.Now(), begun: time.Now()}
	switch e.progress {
	case progressOff:
		return nil
	case progressLines:
		p.out = e.Err
		return p
	}
	p.bars = mpb.New(mpb.WithOutput(e.Err), mpb.WithRefreshRate(120*time.Millisecond))
	p.bar = p.bars.AddBar(total,
		mpb.PrependDecorators(decor.Name(title+" ")),
		mpb.AppendDecorators(decor.Any(func(s decor.Statistics) string {
			return fmt.Sprintf(" %s / %s %s ", show(s.Current), show(s.Total), p.noted())
		}), decor.Any(func(s decor.Statistics) string { return p.left(s.Current) })))
	return p
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
	p.note = text
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
	if now := time.Now(); now.Sub(p.last) >= lineEvery {
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
	fmt.Fprintf(p.out, "%s: %s of %s (%.0f %%) %s\n", p.title, p.show(p.done), p.show(p.total), percent, p.note)
}

// Close ends the display; what is missing stays missing.
func (p *Progress) Close() {
	if p == nil {
		return
	}
	if p.bar != nil {
		p.bar.Abort(false) // no effect on a completed bar
		p.bars.Wait()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line()
}
