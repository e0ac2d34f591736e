package distill

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/disk"
	"apr/internal/fault"
)

// recordedLosses are those of every step of both legs of examples/gosrc, as a run recorded them, rounded to four
// digits.
func recordedLosses(t *testing.T) (legs [2][]float64) {
	t.Helper()
	f, err := os.Open("testdata/losses-gosrc.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var a, b float64
		if _, err := fmt.Sscan(lines.Text(), &a, &b); err != nil {
			t.Fatal(err)
		}
		legs[0], legs[1] = append(legs[0], a), append(legs[1], b)
	}
	if err := lines.Err(); err != nil || len(legs[0]) != 2560 {
		t.Fatalf("%d steps, %v", len(legs[0]), err)
	}
	return legs
}

// diverging tells which steps of a curve diverge.
func diverging(losses []float64, factor, uniform float64) (bad []int) {
	var tr trend
	for k, loss := range losses {
		if limit := tr.limit(factor, uniform); limit > 0 && loss > limit {
			bad = append(bad, k)
			continue
		}
		tr.add(loss)
	}
	return bad
}

// No step of the example diverges, nor would with a factor of 2; where its loss blows up, the steps that do are found,
// early and late, and those after them are judged by what was before.
func TestDivergenceOfRecordedCurves(t *testing.T) {
	for i, losses := range recordedLosses(t) {
		for _, factor := range []float64{3, 2} {
			if bad := diverging(losses, factor, math.Log(4096)); bad != nil {
				t.Errorf("leg %d, factor %g: healthy steps %v diverge", i, factor, bad)
			}
			contracttest.Cases(t, len(losses))
		}
		for _, at := range []int{1, 50, 2000} {
			blown := slices.Clone(losses)
			var want []int
			for k := at; k < at+5; k++ {
				blown[k] = 38 + float64(k-at)
				want = append(want, k)
			}
			if bad := diverging(blown, 3, math.Log(4096)); !slices.Equal(bad, want) {
				t.Errorf("leg %d: steps %v diverge, want %v", i, bad, want)
			}
			if bad := diverging(blown, 0, math.Log(4096)); bad != nil {
				t.Errorf("switched off, steps %v diverge", bad)
			}
		}
	}
}

// The limit is a median and a distance from the first loss: neither an outlier nor a loss near 0 moves it far.
func TestDivergenceLimit(t *testing.T) {
	var tr trend
	if got := tr.limit(3, 0); got != 0 {
		t.Errorf("the first step has the limit %g", got)
	}
	tr.add(8)
	if got := tr.limit(0, 0); got != 0 {
		t.Errorf("switched off, the limit is %g", got)
	}
	if got := tr.limit(3, 0); got != 24 {
		t.Errorf("after one loss of 8: %g, want 24", got)
	}
	for range 100 {
		tr.add(0.01)
	}
	if got := tr.limit(3, 0); got != 9 || len(tr.Recent) != 100 {
		t.Errorf("after losses near 0: %g of %d, want 1 above the first", got, len(tr.Recent))
	}
	contracttest.Cases(t, 4)
	var rising trend
	for k := range 250 {
		rising.add(float64(k))
		last := min(k+1, 100) // the losses from k+1−last to k: their upper median
		if got, want := rising.limit(3, 0), max(3*float64(k+1-last+last/2), 1); got != want {
			t.Fatalf("after the losses 0 to %d the limit is %g, want %g: three times the median of the last %d", k, got, want, last)
		}
		contracttest.Cases(t, 1)
	}
	var uneven trend
	var all []float64
	for k := range 250 {
		all = append(all, float64(5+37*k*k%251))
		uneven.add(all[k])
		last := slices.Sorted(slices.Values(all[max(0, len(all)-100):]))
		if got, want := uneven.limit(3, 0), max(3*last[len(last)/2], 6); got != want {
			t.Fatalf("after %d uneven losses the limit is %g, want %g", k+1, got, want)
		}
		contracttest.Cases(t, 1)
	}
}

// Rows differ: an easy first one makes no divergence of those after it, as long as they are not above what knowing
// nothing costs, and a loss above that is found at once. Eight losses are a trend, by which the same loss is refused.
func TestDivergenceOfFewLosses(t *testing.T) {
	uniform := math.Log(4096) // 8.3
	for _, c := range []struct {
		losses []float64
		want   []int
	}{
		{[]float64{2.2, 6.8, 6.9, 8.5}, nil},
		{[]float64{2.2, 9.4, 9.3}, []int{1}},
		{[]float64{2, 2, 2, 2, 2, 2, 2, 6.8}, nil},
		{[]float64{2, 2, 2, 2, 2, 2, 2, 2, 6.8, 2}, []int{8}},
	} {
		contracttest.Cases(t, 1)
		if bad := diverging(c.losses, 3, uniform); !slices.Equal(bad, c.want) {
			t.Errorf("of %v steps %v diverge, want %v", c.losses, bad, c.want)
		}
	}
}

// trainingState returns weights and moments.
func trainingState(t *testing.T, tr *Trainer) map[string]map[string][]float32 {
	t.Helper()
	return map[string]map[string][]float32{
		"value":         get(t, tr, value),
		"first moment":  get(t, tr, func(p *device.Param) device.Tensor { return p.M }),
		"second moment": get(t, tr, func(p *device.Param) device.Tensor { return p.V }),
	}
}

// sameState compares two states bit by bit.
func sameState(t *testing.T, what string, got, want map[string]map[string][]float32) {
	t.Helper()
	for kind := range want {
		for name, was := range want[kind] {
			for i, x := range got[kind][name] {
				if math.Float32bits(x) != math.Float32bits(was[i]) {
					t.Errorf("%s: %s of %s: element %d is %g, want %g", what, kind, name, i, x, was[i])
					break
				}
			}
		}
	}
}

// A finite step above the limit leaves weights, moments, the count of updates and the trend as they were, however the
// step is cut into micro-batches; the step after it is that of a trainer which never saw it. A step just below the
// limit is applied.
func TestDivergingStepChangesNothing(t *testing.T) {
	b, next := unevenBatch(), randomBatch(8, 12, 320, 0.5)
	spec := device.LossSpec{Alpha: 0.5, Temperature: 2}
	for _, micro := range []int{8, 3, 1} {
		contracttest.Cases(t, 1)
		fresh := func() *Trainer {
			tr := tinyTrainer(t, b, spec)
			tr.MicroRows, tr.MaxLossRatio = micro, 1e-9 // what counts is the distance from the first loss
			apply(t, tr, b)
			return tr
		}
		tr := fresh()
		loss := apply(t, tr, next).Loss
		want := trainingState(t, tr)

		tr = fresh()
		before := trainingState(t, tr)
		first := loss - trendRoom - 1e-9
		tr.losses = trend{First: &first, Recent: slices.Repeat([]float64{first}, trendStart)}
		rec, err := tr.Apply(context.Background(), next)
		if !errors.Is(err, ErrDiverged) || !Refused(err) || !rec.Finite || !rec.Diverged || rec.Loss != loss || rec.Loss <= rec.MaxLoss || rec.Bad == "" {
			t.Fatalf("micro-batches of %d: record %+v, error %v; the loss was %g", micro, rec, err, loss)
		}
		sameState(t, "refused", trainingState(t, tr), before)
		if tr.Steps != 2 || tr.Optimizer.Applied != 1 || len(tr.losses.Recent) != trendStart || *tr.losses.First != first {
			t.Errorf("micro-batches of %d: %d steps, %d applied, trend %+v", micro, tr.Steps, tr.Optimizer.Applied, tr.losses)
		}
		tr.Steps, first = 1, loss-trendRoom+1e-9
		if rec := apply(t, tr, next); rec.Loss != loss || rec.Refused() || !(rec.MaxLoss > loss) {
			t.Errorf("micro-batches of %d: just below the limit: %+v", micro, rec)
		}
		sameState(t, "applied", trainingState(t, tr), want)
	}
}

// A run that refuses some steps and goes on has the same bits and records when it is stopped before, among or after
// them and resumed; one that gives up counts the refused steps before the stop in.
func TestResumeAmongRefusedSteps(t *testing.T) {
	c := tinyConfig(t)
	c.LR, c.Steps, c.WarmupSteps, c.MaxLossRatio, c.CheckpointEvery = 0.13, 16, 10, 1, 1
	_, want := mustRun(t, c, 0)
	steps := readSteps(t, c)
	var refused []int
	for k, s := range steps {
		if s["diverged"] == true {
			refused = append(refused, k)
		}
	}
	if !slices.Equal(refused, []int{9, 10}) {
		t.Fatalf("steps %v are refused: the test needs two in a row, and a run that goes on", refused)
	}
	resume := func(c Config, stop int) error {
		if _, _, err := runOnce(t, c, 0, stop); fault.KindOf(err) != fault.Stopped {
			t.Fatalf("error %v, want one of kind stopped", err)
		}
		c.Resume = ResumeAuto
		_, _, err := runOnce(t, c, 0, 0)
		return err
	}
	for _, stop := range []int{9, 10, 11, 12} {
		broken := in(t, c)
		if err := resume(broken, stop); err != nil {
			t.Fatal(err)
		}
		if string(studentBytes(t, broken)) != string(want) {
			t.Errorf("stopped after %d steps: the student differs", stop)
		}
		compareSteps(t, readSteps(t, broken), steps)
		contracttest.Cases(t, 1)
	}
	lost := in(t, c)
	lost.LR, lost.WarmupSteps = 3, 0
	if err := resume(lost, 3); fault.KindOf(err) != fault.Diverged {
		t.Fatalf("error %v, want one of kind diverged", err)
	}
	if n := len(readSteps(t, lost)); n != 1+maxRefused {
		t.Errorf("stopped and resumed among them, the run gives up after %d steps, want %d", n, 1+maxRefused)
	}
	other := in(t, c)
	if _, _, err := runOnce(t, other, 0, 3); fault.KindOf(err) != fault.Stopped {
		t.Fatal(err)
	}
	other.Resume, other.MaxLossRatio = ResumeAuto, 0
	if _, _, err := runOnce(t, other, 0, 0); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "max_loss_ratio was 1, is 0") {
		t.Errorf("error %v, want the changed limit", err)
	}
}

// newestState is that of the newest checkpoint in a folder of the run.
func newestState(t *testing.T, c Config, folder string) state {
	t.Helper()
	st, f, _, _, err := checkpoints{dir: c.Output + "/" + folder, disk: disk.OS{}}.newest()
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return st
}

// Each leg is judged by its own losses: the control's begin anew, and hold no loss of the student.
func TestEachLegHasItsTrend(t *testing.T) {
	c := tinyConfig(t)
	c.Control, c.MaxLossRatio = true, 3
	mustRun(t, c, 0)
	losses := map[string][]float64{}
	for _, s := range readSteps(t, c) {
		leg := s["leg"].(string)
		losses[leg] = append(losses[leg], s["loss"].(float64))
	}
	for folder, leg := range map[string]string{"checkpoints": LegStudent, "checkpoints-control": LegControl} {
		got, want := newestState(t, c, folder).Losses, losses[leg]
		if len(want) != c.Steps || got.First == nil || *got.First != want[0] || !slices.Equal(got.Recent, want) {
			t.Errorf("%s: trend %+v, losses %v", leg, got, want)
		}
		contracttest.Cases(t, 1)
	}
	if slices.Equal(losses[LegStudent], losses[LegControl]) {
		t.Error("the legs have the same losses: the test says nothing")
	}
}

// A learning rate that becomes absurd, with clipping, gives finite losses far above the median: three in a row are exit
// 21, each named by step, rows and tensor, and nothing is checkpointed among them. With the rule off the run goes on.
func TestFiniteDivergenceStopsTheRun(t *testing.T) {
	var c Config
	var q *quiet
	var err error
	last := 0
	for _, rate := range []float64{3, 4, 5, 6} { // when it gets worse is chaos: a processor has its own bits
		c = tinyConfig(t)
		c.LR, c.Steps, c.WarmupSteps, c.MaxLossRatio, c.CheckpointEvery = rate, 20, 20, 2, 1
		_, q, err = runOnce(t, c, 0, 0)
		if last = len(q.steps) - 1; err != nil && last+1-maxRefused > trendStart {
			break
		}
	}
	if fault.KindOf(err) != fault.Diverged || !errors.Is(err, ErrDiverged) {
		t.Fatalf("error %v, want one of kind diverged that was finite", err)
	}
	if last+1-maxRefused <= trendStart {
		t.Errorf("refused after %d steps: the median does not decide yet", last+1-maxRefused)
	}
	for _, s := range q.steps {
		if !s.Finite || s.Diverged != (s.Step > last-maxRefused) {
			t.Errorf("step %d of %d: finite %v, diverged %v; want the last %d", s.Step, last+1, s.Finite, s.Diverged, maxRefused)
		}
	}
	events, err := os.ReadFile(c.Output + "/events.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(events)) {
		if strings.Contains(line, `"name":"diverging step"`) {
			named++
			for _, want := range []string{`"rows":[`, `"tensor":"`, `"limit":`, `"step":`} {
				if !strings.Contains(line, want) {
					t.Errorf("the event does not hold %s: %s", want, line)
				}
			}
		}
	}
	if named != maxRefused {
		t.Errorf("%d steps are named, want %d", named, maxRefused)
	}
	all, err := os.ReadDir(c.Output + "/checkpoints")
	if err != nil || len(all) == 0 {
		t.Fatalf("checkpoints %v, %v", all, err)
	}
	if newest := all[len(all)-1].Name(); newest != fmt.Sprintf("step-%06d", last+1-maxRefused) {
		t.Errorf("newest checkpoint %s after %d steps, the last %d bad", newest, last+1, maxRefused)
	}
	c.Output, c.MaxLossRatio = t.TempDir()+"/off", 0
	if _, q, err := runOnce(t, c, 0, 0); err != nil || len(q.steps) != c.Steps {
		t.Errorf("switched off: %d steps, %v", len(q.steps), err)
	}
	contracttest.Cases(t, named)
}

// The rule alters no bit of a healthy run, and a run that is stopped and resumed has the trend of one that was not.
func TestDivergenceRuleChangesNothing(t *testing.T) {
	trendOf := func(c Config) trend { return newestState(t, c, "checkpoints").Losses }
	c := tinyConfig(t)
	c.MaxLossRatio = 3
	mustRun(t, c, 0)
	off, broken := c, c
	off.Output, off.MaxLossRatio, broken.Output = t.TempDir()+"/off", 0, t.TempDir()+"/broken"
	mustRun(t, off, 0)
	if string(studentBytes(t, off)) != string(studentBytes(t, c)) {
		t.Error("the student differs without the rule")
	}
	if _, _, err := runOnce(t, broken, 0, 4); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("error %v, want one of kind stopped", err)
	}
	broken.Resume = ResumeAuto
	mustRun(t, broken, 0)
	if got, want := trendOf(broken), trendOf(c); want.First == nil || len(want.Recent) != c.Steps || *got.First != *want.First || !slices.Equal(got.Recent, want.Recent) {
		t.Errorf("after a resumption the trend is %+v, without %+v", got, want)
	}
	contracttest.Cases(t, c.Steps)
}
