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

// distillDisplay shows a run on stderr: a bar on a terminal, a line every --log-every steps elsewhere.
type distillDisplay struct {
	e     *cli.Env
	every int
	bar   *cli.Progress
	total int
	start time.Time
	from  int
	held  string // the last held-out loss, for the bar
	phase string // what goes on outside the steps
	done  int    // how far it is

	monitor *cuda.Monitor // of the GPU; nil on the CPU
	use     utilisation
}

var _ distill.Observer = (*distillDisplay)(nil)

func newDistillDisplay(e *cli.Env, every int) *distillDisplay {
	return &distillDisplay{e: e, every: every}
}

func (d *distillDisplay) Phase(name string) {
	d.close()
	d.phase, d.done = name, 0
	d.e.Log.Debug(name)
}

func (d *distillDisplay) Advance(done, total int) {
	if d.done == 0 {
		d.bar = d.e.Progress(d.phase, int64(total), cli.Count)
	}
	d.bar.Add(int64(done - d.done))
	d.done = done
}

func (d *distillDisplay) Message(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if strings.HasPrefix(text, "warning: ") || strings.HasPrefix(text, "left out: ") {
		d.e.Log.Warn(text)
		return
	}
	d.e.Log.Info(text)
}

func (d *distillDisplay) Leg(leg string, done, total int) {
	d.close()
	d.total, d.from, d.start, d.held = total, done, time.Now(), ""
	title := "distil"
	if leg == distill.LegControl {
		title = "control"
	}
	d.bar = d.e.Progress(title, int64(total), cli.Count)
	d.bar.Resume(int64(done))
}

func (d *distillDisplay) Step(leg string, s runlog.Step) {
	done := s.Step + 1
	left := time.Duration(float64(time.Since(d.start)) / float64(done-d.from) * float64(d.total-done)).Round(time.Second)
	terms := fmt.Sprintf("loss %.3f  KL %.3f  CE %.3f", s.Loss, s.KL, s.CE)
	if leg == distill.LegControl {
		terms = fmt.Sprintf("CE %.3f", s.CE)
	}
	note := fmt.Sprintf("%s  |g| %.2f  lr %.2g  %.0f tokens/s", terms, s.GradNorm, s.LR, s.TokensPerSecond)
	if u, ok := d.use.of(s); ok {
		note += fmt.Sprintf("  MFU %.0f %%", 100*u)
	}
	note += fmt.Sprintf("  %s", cli.Bytes(s.MemoryBytes)) + d.held + activity(d.monitor.Last())
	d.bar.Note(note)
	d.bar.Add(1)
	if d.bar == nil && (done%d.every == 0 || done == d.total) {
		d.e.Log.Info(fmt.Sprintf("%s step %d/%d  %s  %s left", leg, done, d.total, note, left))
	}
}

// describeActivity is the state of a GPU in the report of a stall: what was seen last, for it is not asked again.
func describeActivity(operation string, a cuda.Activity) string {
	s := activity(a)
	if s == "" {
		s = "  GPU: NVML tells nothing"
	}
	return "last operation " + operation + "," + s
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

func (d *distillDisplay) Evaluated(leg string, step int, nats float64) {
	d.held = fmt.Sprintf("  held-out %.2f", nats)
	if d.bar == nil {
		d.e.Log.Info(fmt.Sprintf("%s step %d  held-out %.4f nats/token", leg, step, nats))
	}
}

func (d *distillDisplay) close() {
	d.bar.Close()
	d.bar = nil
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
