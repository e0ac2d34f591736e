package report

import (
	"strings"
	"testing"

	runlog "apr/run/log"
)

// A share of the gap is only told where there is one, and in words where it is none.
func TestGapText(t *testing.T) {
	score := func(nats float64) *Score { return &Score{NatsPerToken: runlog.Number(nats)} }
	for name, tt := range map[string]struct {
		untrained, distilled, teacher float64
		control                       float64 // 0: none
		want                          string
	}{
		"a part":               {8, 5, 2, 0, " The distilled student has closed 50 % of the gap between the untrained student and the teacher."},
		"beside a control":     {8, 5, 2, 6.5, " has closed 50 % of the gap between the untrained student and the teacher, the control 25 %."},
		"beyond the teacher":   {8, 1, 2, 0, " has closed all of the gap between the untrained student and the teacher, and scores better on this text than the teacher."},
		"both beyond":          {8, 1, 2, 1.5, " than the teacher; the control scores better than the teacher."},
		"worse than before":    {8, 9, 2, 8.5, " The distilled student scores worse than before training; the control scores worse than before training."},
		"the teacher in Q4_K":  {1.3773, 1.3774, 1.3771, 0, " There was hardly a gap to close: the untrained student and the teacher differ by 0.0002 nats per token."},
		"a student that knows": {2, 1.9, 3, 0, " The student was better on this text than the teacher before any training, by 1.0000 nats per token."},
	} {
		var control *Score
		if tt.control != 0 {
			control = score(tt.control)
		}
		got := gapOf(score(tt.untrained), score(tt.distilled), control, score(tt.teacher)).text() + noGap(score(tt.untrained), score(tt.teacher))
		if !strings.HasSuffix(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
