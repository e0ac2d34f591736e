package report

import "fmt"

// DraftNote says what the distilled student is worth as a draft of its teacher, on held-out text: the part of its drawn
// tokens that speculative sampling keeps, Σ min(p, q), of its likeliest ones, and the control's. It is empty where the
// teacher was not compared, as in records of earlier versions. No rule keeps more drawn tokens; that of apr run --draft
// keeps at least (1−d)/(1+d), with d = 1 − Σ min(p, q).
func DraftNote(rows []Score) string {
	s := find(rows, distilledScore)
	if s == nil || !(s.Acceptance > 0) {
		return ""
	}
	text := fmt.Sprintf("As a draft of the teacher (apr run TEACHER --draft STUDENT) the student would be accepted up "+
		"to %s of the time where tokens are drawn, and %s where they are the likeliest",
		percent(s.Acceptance), percent(s.Top1))
	if c := find(rows, controlScore); c != nil && c.Acceptance > 0 {
		text += fmt.Sprintf("; the control %s and %s", percent(c.Acceptance), percent(c.Top1))
	}
	return text + "."
}
