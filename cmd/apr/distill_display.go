package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"apr/device/cuda"
	"apr/distill"
	"apr/internal/cli"
	runlog "apr/run/log"
)

// distillDisplay shows a run on stderr: what it is, then one line that changes on a terminal; elsewhere the same line now and then.
type distillDisplay struct {
	e     *cli.Env
	every int // steps between lines where there is no terminal; 0: by time
	live  *cli.Live

	start   func(whole time.Duration) // says what the run is; nil: it was said
	begun   time.Time                 // of the first leg
	clock   *clock                    // nil: no run that is trained
	view    stepView
	printed time.Time     // of the last line where there is no terminal
	phase   string        // what goes on outside the steps
	beat    *heartbeat    // of phases, where there is no terminal
	monitor *cuda.Monitor // of the GPU; nil on the CPU
	use     utilisation
}

var _ distill.Observer = (*distillDisplay)(nil)

func newDistillDisplay(e *cli.Env, every int) *distillDisplay {
	d := &distillDisplay{e: e, every: every, live: e.Live()}
	if d.live == nil {
		d.beat = phases(e)
	}
	return d
}

// outline prints the lines about teacher, student and data before the first step. The line with the estimated time
// follows once it is known.
func (d *distillDisplay) outline(r *distill.Run) {
	o := r.Outline()
	d.clock = newClock(o, r.EvalEvery)
	columns := d.e.Columns()
	lines := startLines(o, nearby(r.Output), 0, columns)
	for _, line := range lines[:len(lines)-1] {
		d.e.Say(line)
	}
	d.start = func(whole time.Duration) {
		lines := startLines(o, nearby(r.Output), whole, columns)
		d.e.Say(lines[len(lines)-1])
		if what := unknown(o); what != "" {
			d.e.Explain(what)
		}
	}
}

func (d *distillDisplay) Phase(name string) {
	d.live.Clear()
	d.phase = name
	if d.clock != nil && name == distill.PhaseEvaluation {
		d.clock.finish()
	}
	if d.clock != nil && name == distill.PhaseContinuations {
		d.clock.finishWriting()
	}
	d.live.Show(func(int) string { return name + " …" })
	d.beat.doing(name + " …")
	d.e.Log.Debug(name)
}

func (d *distillDisplay) Advance(done, total int) {
	if d.live == nil {
		d.beat.doing(d.far(done, total))
		return
	}
	d.live.Show(func(int) string { return d.far(done, total) })
}

// far says how far a phase is; once there were steps, how far all of the run is.
func (d *distillDisplay) far(done, total int) string {
	percent, left := percentOf(done, total), time.Duration(0)
	if d.clock != nil {
		left = d.clock.say()
		percent = d.clock.percent(percent)
	}
	text := fmt.Sprintf("%s  %d %%", d.phase, percent)
	if left > 0 {
		text += fmt.Sprintf("  %s left", timeText(left))
	}
	return text
}

func (d *distillDisplay) Message(format string, args ...any) {
	d.note(fmt.Sprintf(format, args...))
}

// note says something that stays: above the changing line, or in the log with its time.
func (d *distillDisplay) note(text string) {
	if d.live == nil {
		warning, warns := strings.CutPrefix(text, "warning: ")
		if warns || strings.HasPrefix(text, "left out: ") {
			d.e.Log.Warn(warning) // the log says of which level it is
		} else {
			d.e.Log.Info(text)
		}
		return
	}
	d.e.Explain(text)
}

func (d *distillDisplay) Detail(format string, args ...any) {
	d.e.Log.Debug(fmt.Sprintf(format, args...))
}

func (d *distillDisplay) Leg(leg string, done, total int) {
	d.live.Clear()
	d.beat.doing("")
	d.view, d.printed = stepView{total: total}, time.Now()
	if d.begun.IsZero() {
		d.begun = time.Now()
	}
	if d.clock != nil {
		d.clock.begin(leg, done)
	}
}

func (d *distillDisplay) Step(leg string, s runlog.Step) {
	d.view.step, d.view.device = s, d.monitor.Last()
	d.view.use, _ = d.use.of(s)
	if d.clock != nil {
		d.clock.step(s)
		d.view.left = d.clock.say()
	}
	done := s.Step + 1
	if d.clock != nil && d.view.left == 0 && done == d.view.total {
		d.view.left = d.clock.left()
	}
	if d.view.percent = percentOf(done, d.view.total); d.clock != nil {
		d.view.percent = d.clock.percent(d.view.percent)
	}
	d.sayStart(done)
	view := d.view
	d.live.Show(view.line)
	if done == d.view.total {
		d.live.Keep()
	}
	due := time.Since(d.printed) >= cli.LogPause
	if d.every > 0 {
		due = done%d.every == 0
	}
	if d.live == nil && (due || done == d.view.total) {
		d.e.Log.Info(view.line(d.e.Columns()))
		d.printed = time.Now()
	}
}

// sayStart says how long the whole run takes, once that can be told.
func (d *distillDisplay) sayStart(done int) {
	if d.start == nil || d.view.left == 0 && done < d.view.total {
		return
	}
	d.start(time.Since(d.begun) + d.view.left)
	d.start = nil
}

func (d *distillDisplay) Evaluated(leg string, step int, nats float64) {
	d.view.held = nats
	if d.clock != nil {
		d.clock.evaluated()
	}
	d.note(fmt.Sprintf("%s after step %s: held-out %.4f nats/token", leg, cli.Count(int64(step)), nats))
}

// close ends the display. A run that ended before its time could be told says where it is.
func (d *distillDisplay) close() {
	d.live.Clear()
	d.beat.close()
	if d.start != nil && !d.begun.IsZero() {
		d.start(0)
		d.start = nil
	}
}

// describeActivity is the state of a GPU in the report of a stall: what was seen last, for it is not asked again.
func describeActivity(operation string, a cuda.Activity) string {
	s := activity(a)
	if s == "" {
		s = "  GPU: NVML tells nothing"
	}
	return "cuda, last operation " + operation + "," + s
}

// activity renders what a GPU does, as far as it is known.
func activity(a cuda.Activity) string {
	var parts []string
	if a.Utilisation != nil {
		parts = append(parts, fmt.Sprintf("%d %%", *a.Utilisation))
	}
	if a.Memory != nil {
		parts = append(parts, cli.Bytes(*a.Memory))
	}
	if a.Power != nil {
		parts = append(parts, fmt.Sprintf("%.0f W", *a.Power))
	}
	if len(parts) == 0 {
		return ""
	}
	return "  GPU " + strings.Join(parts, " ")
}

// peakResident returns the process's largest resident set in bytes (VmHWM), 0 where the system does not tell.
func peakResident() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		var kb int64
		if n, _ := fmt.Sscanf(line, "VmHWM: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
