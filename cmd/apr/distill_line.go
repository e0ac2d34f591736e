package main

import (
	"fmt"
	"time"
	"unicode/utf8"

	"apr/device/cuda"
	"apr/distill"
	"apr/internal/cli"
	runlog "apr/run/log"
)

// narrow is the width that the line of a step always fits; wider ones show more.
const narrow = 80

// stepView is what the line of a step shows.
type stepView struct {
	step    runlog.Step
	total   int           // steps of the leg
	percent int           // of everything that the run does, by time
	left    time.Duration // until everything is done; 0: not known
	held    float64       // the last held-out loss; 0: none yet
	use     float64       // of the device's rate; 0: not known
	device  cuda.Activity
}

// line renders a step for so many columns: what matters, and as much more as fits.
func (v stepView) line(columns int) string {
	name := "step"
	if v.step.Leg == distill.LegControl {
		name = "control"
	}
	done := v.step.Step + 1
	head := fmt.Sprintf("%d %% %s %s/%s  loss %.2f",
		v.percent, name, cli.Count(int64(done)), cli.Count(int64(v.total)), v.step.Loss)
	tail := fmt.Sprintf("  %s tok/s", cli.Count(int64(v.step.TokensPerSecond)))
	if v.left > 0 || done == v.total {
		tail += fmt.Sprintf("  %s left", timeText(v.left))
	}
	if columns > narrow {
		room := columns - utf8.RuneCountInString(head+tail)
		for _, more := range v.more() {
			if n := utf8.RuneCountInString(more) + 2; n <= room {
				head, room = head+"  "+more, room-n
			}
		}
	}
	return head + tail
}

// percentOf rounds; 100 is all of it.
func percentOf(done, total int) int {
	if done >= total {
		return 100
	}
	return min(99, (200*done+total)/(2*total))
}

// more is what a wider line shows, the most useful first.
func (v stepView) more() (all []string) {
	s := v.step
	if s.KL.Finite() {
		all = append(all, fmt.Sprintf("KL %.2f", s.KL), fmt.Sprintf("CE %.2f", s.CE))
	}
	all = append(all, fmt.Sprintf("|g| %.2f", s.GradNorm), fmt.Sprintf("lr %.1e", s.LR))
	if v.device.Utilisation != nil {
		all = append(all, fmt.Sprintf("GPU %d %%", *v.device.Utilisation))
	}
	if v.held > 0 {
		all = append(all, fmt.Sprintf("held-out %.2f", v.held))
	}
	if v.use > 0 {
		all = append(all, fmt.Sprintf("MFU %.0f %%", 100*v.use))
	}
	if v.device.Memory != nil {
		all = append(all, cli.Bytes(*v.device.Memory))
	}
	if v.device.Power != nil {
		all = append(all, fmt.Sprintf("%.0f W", *v.device.Power))
	}
	return all
}

// timeText renders a time in at most six columns: 42s, 5m55s, 3h05m, 4d07h.
func timeText(d time.Duration) string {
	s := int64((max(0, d) + time.Second/2) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%ds", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", s/60, s%60)
	case s < 100*3600:
		return fmt.Sprintf("%dh%02dm", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%dd%02dh", s/86400, s%86400/3600)
}

// amount renders a count in few columns: 950, 40.1k, 9.8M, 1.31B.
func amount(n int64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}} {
		if f := float64(n) / u.size; f >= 1 {
			text := fmt.Sprintf("%.3g", f)
			if f >= 999.5 { // %.3g would make 1e+03 of it
				text = fmt.Sprintf("%.0f", f)
			}
			return text + u.name
		}
	}
	return fmt.Sprint(n)
}

// startLines say what a run is: teacher, student, data, and the run's directory with the time of the whole.
func startLines(o distill.Outline, dir string, whole time.Duration, columns int) []string {
	kind := func(m distill.ModelOutline) string {
		if m.Cache != "" {
			return fmt.Sprintf("%s, %s", m.Cache, cli.Bytes(m.Bytes))
		}
		text := fmt.Sprintf("%s, %s parameters, %s, %s", m.Family, amount(m.Parameters), m.Type, cli.Bytes(m.Bytes))
		if m.New {
			return text + ", new"
		}
		return text
	}
	model := func(m distill.ModelOutline) string {
		return kind(m) + "  " + cli.FitEnd(m.Path, columns-len(labelled("", ""))-2-len(kind(m)))
	}
	lines := []string{labelled("teacher", "none: the student learns from the text alone (--alpha 0)")}
	if !o.NoTeacher {
		lines[0] = labelled("teacher", model(o.Teacher))
	}
	for _, m := range o.More {
		lines = append(lines, labelled("", model(m)))
	}
	return append(lines, labelled("student", model(o.Student)), labelled("data", dataText(o, columns-len(labelled("", "")))),
		labelled("run", runText(o, dir, whole, columns)))
}

// labelled puts a label before text.
func labelled(label, text string) string { return fmt.Sprintf("%-8s %s", label, text) }

// dataText is what a run trains on and is judged by, in so many columns if it can be.
func dataText(o distill.Outline, columns int) string {
	held := "nothing held out"
	if o.HeldTokens > 0 {
		held = amount(o.HeldTokens) + " held out"
	}
	epochs := fmt.Sprintf("%.2f epochs", o.Epochs)
	if o.Epochs >= 10 {
		epochs = fmt.Sprintf("%.0f epochs", o.Epochs)
	}
	files, tokens := plural(o.Files, "file")+", ", amount(o.Tokens)+" tokens"
	if o.Files == 0 {
		files = ""
	}
	text := ""
	for _, text = range []string{
		fmt.Sprintf("%s%s, %s; %s, %s; %s", files, plural(o.Documents, "document"), tokens, plural(o.Steps, "step"), epochs, held),
		fmt.Sprintf("%s%s, %s; %s, %s; %s", files, plural(o.Documents, "doc"), tokens, plural(o.Steps, "step"), epochs, held),
		fmt.Sprintf("%s, %s; %s, %s; %s", plural(o.Documents, "doc"), tokens, plural(o.Steps, "step"), epochs, held),
	} {
		if utf8.RuneCountInString(text) <= columns {
			break
		}
	}
	return text
}

// plural counts things.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return cli.Count(int64(n)) + " " + one + "s"
}

// runText is where a run goes and how long all of it takes.
func runText(o distill.Outline, dir string, whole time.Duration, columns int) string {
	what := "about " + timeText(whole)
	switch {
	case whole == 0:
		return cli.FitEnd(dir, columns-len(labelled("", "")))
	case o.Control.On && o.HeldTokens > 0:
		what += " with control and evaluation"
	case o.Control.On:
		what += " with the control"
	case o.HeldTokens > 0:
		what += " with evaluation, no control"
	}
	return cli.FitEnd(dir, columns-len(labelled("", ""))-2-len(what)) + "  " + what
}

// unknown says what a run will not show, before it begins; empty: nothing is amiss.
func unknown(o distill.Outline) string {
	switch {
	case o.HeldTokens == 0:
		return "no text is held out: how good the student becomes will not be known; --val-fraction or --eval-data"
	case o.Control.Never:
		return "no control: " + o.Control.Reason
	case !o.Control.On:
		return "no control (" + o.Control.Reason + "): what the teacher is worth will not be known; --control ce"
	}
	return ""
}
