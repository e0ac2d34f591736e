package distill

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/disk"
	"apr/internal/fault"
)

// recordedLosses are those of every step of both legs of examples/gosrc, as a run recorded them, rounded to four digits.
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
func diverging(losses []float64, factor float64) (bad []int) {
	var tr trend
	for k, loss := range losses {
		if _, ok := tr.add(loss, factor); !ok {
			bad = append(bad, k)
		}
	}
	return bad
}

// No step of the example diverges, nor would with a factor of 2; where its loss blows up, the steps that do are found,
// early and late, and those after them are judged by what was before.
func TestDivergenceOfRecordedCurves(t *testing.T) {
	for i, losses := range recordedLosses(t) {
		for _, factor := range []float64{3, 2} {
			if bad := diverging(losses, factor); bad != nil {
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
			if bad := diverging(blown, 3); !slices.Equal(bad, want) {
				t.Errorf("leg %d: steps %v diverge, want %v", i, bad, want)
			}
			if bad := diverging(blown, 0); bad != nil {
				t.Errorf("switched off, steps %v diverge", bad)
			}
		}
	}
}

// The limit is a median and a distance from the first loss: neither an outlier nor a loss near 0 moves it far.
func TestDivergenceLimit(t *testing.T) {
	var tr trend
	if !math.IsInf(tr.limit(3), 1) {
		t.Error("the first step has a limit")
	}
	tr.add(8, 3)
	if got := tr.limit(3); got != 24 {
		t.Errorf("after one loss of 8: %g, want 24", got)
	}
	for range trendLength {
		tr.add(0.01, 3)
	}
	if got := tr.limit(3); got != 9 || len(tr.Recent) != trendLength {
		t.Errorf("after losses near 0: %g of %d, want 1 above the first", got, len(tr.Recent))
	}
	if _, ok := tr.add(9.5, 3); ok || tr.limit(3) != 9 {
		t.Error("a loss that diverges has become part of the trend")
	}
}

// A learning rate that is absurd, with clipping, gives finite losses far above the first: three in a row are exit 21,
// each named by step, rows and tensor, and nothing is checkpointed among them. With the rule off the run goes on.
func TestFiniteDivergenceStopsTheRun(t *testing.T) {
	c := tinyConfig(t)
	c.LR, c.Steps, c.WarmupSteps, c.MaxLossRatio, c.CheckpointEvery = 3, 12, 0, 3, 1
	_, q, err := runOnce(t, c, 0, 0)
	if fault.KindOf(err) != fault.Diverged || !errors.Is(err, ErrDiverged) {
		t.Fatalf("error %v, want one of kind diverged that was finite", err)
	}
	last := len(q.steps) - 1
	for _, s := range q.steps {
		if !s.Finite {
			t.Errorf("step %d is not finite: another rule", s.Step)
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
	if named != maxBad {
		t.Errorf("%d steps are named, want %d", named, maxBad)
	}
	all, err := os.ReadDir(c.Output + "/checkpoints")
	if err != nil || len(all) == 0 {
		t.Fatalf("checkpoints %v, %v", all, err)
	}
	if newest := all[len(all)-1].Name(); newest != fmt.Sprintf("step-%06d", last+1-maxBad) {
		t.Errorf("newest checkpoint %s after %d steps, the last %d bad", newest, last+1, maxBad)
	}
	c.Output, c.MaxLossRatio = t.TempDir()+"/off", 0
	if _, q, err := runOnce(t, c, 0, 0); err != nil || len(q.steps) != 12 {
		t.Errorf("switched off: %d steps, %v", len(q.steps), err)
	}
	contracttest.Cases(t, named)
}

// The rule alters no bit of a healthy run, and a run that is stopped and resumed has the trend of one that was not.
func TestDivergenceRuleChangesNothing(t *testing.T) {
	trendOf := func(c Config) trend {
		st, f, _, _, err := checkpoints{dir: c.Output + "/checkpoints", disk: disk.OS{}}.newest()
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		return st.Losses
	}
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
