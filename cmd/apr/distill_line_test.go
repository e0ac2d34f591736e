package main

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"apr/device/cuda"
	"apr/distill"
	runlog "apr/run/log"
)

// TestStepLine: 80 columns have what matters, wider terminals more, and no line is wider than its terminal.
func TestStepLine(t *testing.T) {
	percent, bytes, watts := 97, int64(28_100_000_000), 612.4
	v := stepView{step: runlog.Step{Leg: distill.LegStudent, Step: 299, Loss: 4.137, KL: 3.9, CE: 4.5, GradNorm: 1.23, LR: 3e-4, TokensPerSecond: 3494.4},
		total: 2560, percent: 12, left: 5*time.Minute + 55*time.Second, held: 4.25, use: 0.41,
		device: cuda.Activity{Utilisation: &percent, Memory: &bytes, Power: &watts}}
	control := v
	control.step.Leg, control.step.KL, control.device = distill.LegControl, runlog.Number(math.NaN()), cuda.Activity{}
	first := stepView{step: runlog.Step{Leg: distill.LegStudent, Loss: 8, KL: 7, CE: 9}, total: 2560}
	for _, c := range []struct {
		v       stepView
		columns int
		want    string
	}{
		{v, 80, "12 % step 300/2,560  loss 4.14  3,494 tok/s  5m55s left"},
		{v, 100, "12 % step 300/2,560  loss 4.14  KL 3.90  CE 4.50  |g| 1.23  lr 3.0e-04  3,494 tok/s  5m55s left"},
		{v, 120, "12 % step 300/2,560  loss 4.14  KL 3.90  CE 4.50  |g| 1.23  lr 3.0e-04  GPU 97 %  held-out 4.25  3,494 tok/s  5m55s left"},
		{v, 200, "12 % step 300/2,560  loss 4.14  KL 3.90  CE 4.50  |g| 1.23  lr 3.0e-04  GPU 97 %  held-out 4.25  MFU 41 %  28.1 GB  612 W  3,494 tok/s  5m55s left"},
		{control, 80, "12 % control 300/2,560  loss 4.14  3,494 tok/s  5m55s left"},
		{control, 120, "12 % control 300/2,560  loss 4.14  |g| 1.23  lr 3.0e-04  held-out 4.25  MFU 41 %  3,494 tok/s  5m55s left"},
		{first, 80, "0 % step 1/2,560  loss 8.00  0 tok/s"},
	} {
		got := c.v.line(c.columns)
		if got != c.want || utf8.RuneCountInString(got) > c.columns {
			t.Errorf("%d columns: %q, want %q", c.columns, got, c.want)
		}
	}
}

func TestTimeText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 400 * time.Millisecond: "0s", 600 * time.Millisecond: "1s", 59*time.Second + 600*time.Millisecond: "1m00s", 355 * time.Second: "5m55s",
		3600 * time.Second: "1h00m", 99*time.Hour + 59*time.Minute: "99h59m", 103 * time.Hour: "4d07h",
	} {
		if got := timeText(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestAmount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1k", 40_123: "40.1k", 999_499: "999k", 999_600: "1000k", 9_830_400: "9.83M", 7_615_616_512: "7.62B"} {
		if got := amount(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

// TestStartLines: four lines of at most 80 columns, whatever the names and numbers.
func TestStartLines(t *testing.T) {
	o := distill.Outline{
		Teacher: distill.ModelOutline{Path: "/a/very/long/path/of/a/folder/with/models/Qwen2.5-7B-Instruct-Q4_K_M.gguf", Family: "qwen2", Parameters: 7_615_616_512, Type: "q4_k", Bytes: 4_683_073_536},
		Student: distill.ModelOutline{Path: "config.json", Family: "qwen2", Parameters: 494_032_768, New: true, Type: "f32", Bytes: 1_976_131_072},
		Files:   1234, Documents: 123_456, Tokens: 1_310_000_000, HeldDocuments: 1200, HeldTokens: 13_100_000, Steps: 25_600, StepTokens: 65536, Epochs: 1.28,
		Control: distill.ControlChoice{On: true},
	}
	want := []string{
		"teacher  qwen2, 7.62B parameters, q4_k, 4.7 GB  …2.5-7B-Instruct-Q4_K_M.gguf",
		"student  qwen2, 494M parameters, f32, 2.0 GB, new  config.json",
		"data     123,456 docs, 1.31B tokens; 25,600 steps, 1.28 epochs; 13.1M held out",
		"run      runs/mine  about 3h05m with control and evaluation",
	}
	got := startLines(o, "runs/mine", 3*time.Hour+5*time.Minute, 80)
	for i, line := range got {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
		if i != 0 && line != want[i] || i == 0 && (!strings.HasPrefix(line, "teacher  qwen2, 7.62B parameters, q4_k, 4.7 GB  …") || !strings.HasSuffix(line, "Q4_K_M.gguf")) {
			t.Errorf("%q, want %q", line, want[i])
		}
	}
	if len(got) != 4 {
		t.Errorf("%d lines", len(got))
	}
	for _, c := range []struct {
		o    distill.Outline
		want string
	}{
		{distill.Outline{HeldTokens: 1, Control: distill.ControlChoice{On: true}}, ""},
		{distill.Outline{HeldTokens: 1, Control: distill.ControlChoice{Reason: "because"}}, "no control (because): what the teacher is worth will not be known; --control ce"},
		{distill.Outline{Control: distill.ControlChoice{On: true}}, "no text is held out: how good the student becomes will not be known; --val-fraction or --eval-data"},
	} {
		if got := unknown(c.o); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestClock: the time left is that of all steps, of the control, and of all evaluations, and what was measured counts.
func TestClock(t *testing.T) {
	now := time.Unix(0, 0)
	c := newClock(distill.Outline{Steps: 100, StepTokens: 1000, HeldTokens: 10_000, Control: distill.ControlChoice{On: true}}, 25)
	c.now = func() time.Time { return now }
	step := func(leg string, k int, total, teacher float64) {
		now = now.Add(time.Duration(total * float64(time.Second)))
		c.step(runlog.Step{Leg: leg, Step: k, MS: runlog.Milliseconds{Total: 1e3 * total, Teacher: 1e3 * teacher, Student: 900, Loss: 0}})
	}
	left := func(want float64) {
		t.Helper()
		if got := c.left().Seconds(); !(math.Abs(got-want) < 1e-6) {
			t.Errorf("%.3f s left, want %.3f", got, want)
		}
	}
	c.begin(distill.LegStudent, 0)
	left(0)
	step(distill.LegStudent, 0, 9, 6) // the first is slow
	for k := 1; k < 25; k++ {
		step(distill.LegStudent, k, 3, 2)
	}
	// 75 steps of 3 s, 100 of 1 s; an evaluation is 10 steps of 0.3 s: two more of this leg and three of the control, five at the end, and the
	// teacher's 20 s.
	left(75*3 + 100*1 + (2+3+5)*3.0 + 20)
	now = now.Add(6 * time.Second)
	c.evaluated() // it takes 6 s, not 3
	left(75*3 + 100*1 + (2+3+5)*6.0 + 20)
	step(distill.LegStudent, 25, 3, 2)
	left(74*3 + 100*1 + (2+3+5)*6.0 + 20)
	c.begin(distill.LegControl, 0)
	left(100*1 + (3+5)*6.0 + 20) // as the student's steps were, without the teacher
	step(distill.LegControl, 0, 1, 0)
	step(distill.LegControl, 1, 2, 0)
	left(98*2 + (3+5)*6.0 + 20)
	c.finish()
	left(5*6 + 20)
	now = now.Add(30 * time.Second)
	left(20)
	now = now.Add(time.Hour)
	left(0)

	c = newClock(distill.Outline{Steps: 100, StepTokens: 1000}, 25)
	c.now = func() time.Time { return now }
	c.begin(distill.LegStudent, 10)
	step(distill.LegStudent, 10, 2, 1)
	left(89 * 2) // nothing is held out, and there is no control
}

// TestTimeLeftDoesNotJump: the time left is not said before the time of a step is known, and then follows what is left
// without jumps, whatever the first steps, checkpoints and evaluations take.
func TestTimeLeftDoesNotJump(t *testing.T) {
	for _, tt := range []struct {
		name  string
		first []float64 // seconds of the first steps
		every float64   // of the others
		slow  map[int]float64
		begin int // before how many steps nothing is said
	}{
		{"loading and compiling", []float64{20, 5, 2}, 1, nil, 3},
		{"a fast card", []float64{8, 3, 0.2}, 0.05, nil, 3},
		{"as fast as ever", nil, 0.001, nil, 2000},
		{"slow steps", []float64{90, 60}, 20, nil, 2},
		{"very slow ones", []float64{300}, 60, nil, 2},
		{"slower and slower", []float64{0.5, 0.6, 0.7, 0.8}, 1, nil, 4},
		{"checkpoints", []float64{3}, 1, map[int]float64{10: 30, 200: 30, 400: 30}, 4},
		{"a long checkpoint of short steps", []float64{3}, 0.01, map[int]float64{10: 20}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const steps = 3000
			now := time.Unix(0, 0)
			c := newClock(distill.Outline{Steps: steps, StepTokens: 1000}, 0)
			c.now = func() time.Time { return now }
			c.begin(distill.LegStudent, 0)
			before, at, said := 0.0, now, 0
			for k := range steps {
				took := tt.every
				if k < len(tt.first) {
					took = tt.first[k]
				}
				took += tt.slow[k]
				now = now.Add(time.Duration(took * float64(time.Second)))
				c.step(runlog.Step{Leg: distill.LegStudent, Step: k, MS: runlog.Milliseconds{Total: 1e3 * took}})
				left := c.say().Seconds()
				if (left > 0) != (k+1 >= tt.begin) && k+1 < steps {
					t.Fatalf("step %d: %g s left", k+1, left)
				}
				if left == 0 {
					continue
				}
				if expected := before - now.Sub(at).Seconds(); said > 0 && now.Sub(at) > 0 {
					share := min(1, now.Sub(at).Seconds())
					if !(left <= max(expected*math.Exp2(share), expected+2*share, 2)+1e-6 && left >= min(expected/math.Exp2(share), expected-2*share)-1e-6) {
						t.Fatalf("step %d: from %g s to %g s in %v", k+1, before, left, now.Sub(at))
					}
				}
				said++
				before, at = left, now
				if k == 100 { // a hundred steps are enough to know what is left
					if want := tt.every * (steps - 101); !(left > want/1.5 && left < 1.5*want+4) && tt.slow == nil {
						t.Errorf("step %d: %g s left, want about %g", k+1, left, want)
					}
				}
			}
		})
	}
}

// TestPercentOfEverything: the percentage is of all that the run does, so that the last step of a run whose scores and
// samples take as long is at half of it; it does not fall, and a resumed run begins where it was.
func TestPercentOfEverything(t *testing.T) {
	now := time.Unix(0, 0)
	run := func(o distill.Outline, leg string, from int) *clock {
		c := newClock(o, 0)
		c.now = func() time.Time { return now }
		c.begin(leg, from)
		for k := from; k < o.Steps; k++ {
			now = now.Add(time.Second)
			c.step(runlog.Step{Leg: leg, Step: k, MS: runlog.Milliseconds{Total: 1e3, Teacher: 400, Student: 540, Loss: 60}})
		}
		return c
	}
	want := func(name string, got, want int) {
		t.Helper()
		if got < want-1 || got > want+1 {
			t.Errorf("%s: %d %%, want %d", name, got, want)
		}
	}
	// 10 s of steps; at the end 10 × 0.42 s of the teacher and 4 × 10 × 0.2 s of students
	c := run(distill.Outline{Steps: 10, StepTokens: 1000, HeldTokens: 10_000}, distill.LegStudent, 0)
	want("the last step", c.percent(100), 45)
	c.finish()
	now = now.Add(6 * time.Second)
	want("in the evaluation", c.percent(0), 72)
	now = now.Add(time.Hour)
	want("late", c.percent(0), 100)
	c = run(distill.Outline{Steps: 10, StepTokens: 1000, HeldTokens: 10_000}, distill.LegStudent, 8)
	want("resumed", c.percent(100), 45)
	c = run(distill.Outline{Steps: 10, StepTokens: 1000, Control: distill.ControlChoice{On: true}}, distill.LegControl, 5)
	want("resumed in the control", c.percent(100), 100)
	// the control is as fast as a student whose teacher has twice its weights: then 10 × 0.38 s and 5 × 10 × 0.2 s
	c = run(distill.Outline{Steps: 10, StepTokens: 1000, HeldTokens: 10_000, Control: distill.ControlChoice{On: true},
		Teacher: distill.ModelOutline{Parameters: 20}, Student: distill.ModelOutline{Parameters: 10}}, distill.LegControl, 5)
	want("resumed in the control, with an evaluation to come", c.percent(100), 59)
	// 10 s of steps; two models write 1,000 tokens in at least a second each, the teacher in 2.4
	c = run(distill.Outline{Steps: 10, StepTokens: 1000, Writes: 1000, WritesFor: 15 * time.Second, OutputBytes: 300e6},
		distill.LegStudent, 0)
	want("before writing", c.percent(100), 69)
	if got := newClock(distill.Outline{Steps: 10}, 0).percent(7); got != 7 {
		t.Errorf("nothing is known, and it says %d %%", got)
	}
}

// TestHeartbeat: what goes on is said each time that the pause is over, and not where it shows by itself.
func TestHeartbeat(t *testing.T) {
	var said []string
	h := &heartbeat{say: func(text string) { said = append(said, text) }, stop: make(chan struct{}), last: time.Unix(0, 0)}
	h.doing("hashing …")
	h.last = time.Unix(0, 0)
	for second := range 25 {
		h.beat(time.Unix(int64(second), 0))
	}
	if len(said) != 2 || said[0] != "hashing …" {
		t.Errorf("it says %q", said)
	}
	var none *heartbeat
	none.doing("nothing")
	none.close()
}
