package align

import (
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/tokenizer"
)

// TestSpans: in every pair of tokenizers, a span's tokens of both stand for the same bytes, spans follow each other
// without overlap, and texts that both read whole are in spans but for what comes before the first common place.
func TestSpans(t *testing.T) {
	all := names(t)
	for _, mine := range all {
		for _, theirs := range all {
			if mine > theirs && mine != "gosrc" { // each pair once: the other way round is alike
				continue
			}
			p := pair(t, load(t, mine), load(t, theirs))
			a := p.NewAligner()
			for _, s := range samples {
				ids := document(t, p.Student, s)
				row, err := a.Align(ids, true, 0)
				if err != nil {
					t.Fatal(err)
				}
				checkSpans(t, p, ids, row, mine+" ← "+theirs+": "+s)
				contracttest.Cases(t, 1)
			}
		}
	}
}

func checkSpans(t *testing.T, p *Pair, ids []int32, row *Row, what string) {
	t.Helper()
	read := func(tok *tokenizer.Tokenizer, ids []int32) string {
		var b strings.Builder
		for _, id := range ids {
			if tok.Kind(id) == tokenizer.Control {
				b.WriteString("\x00")
				continue
			}
			s, _ := tok.Bytes(id)
			b.WriteString(s)
		}
		return b.String()
	}
	last, covered := Span{}, int32(0)
	for _, s := range row.Spans {
		if s.From < last.To || s.TeacherFrom < last.TeacherTo || s.To <= s.From || s.TeacherTo <= s.TeacherFrom {
			t.Fatalf("%q: span %v behind %v", what, s, last)
		}
		// Position i predicts token i+1.
		x, y := read(p.Student, ids[s.From+1:s.To+1]), read(p.Teacher, row.IDs[s.TeacherFrom+1:s.TeacherTo+1])
		if x != y && strings.TrimPrefix(x, " ") != strings.TrimPrefix(y, " ") {
			t.Errorf("%q: span %v is %q, of the teacher %q", what, s, x, y)
		}
		covered += s.To - s.From
		last = s
	}
	if row.Common > 1 && covered == 0 && len(row.Lost) == 0 {
		t.Errorf("%q: %d common places and no span", what, row.Common)
	}
}

// TestSpansOfACutRow: spans end at the last common place of what the teacher has positions for.
func TestSpansOfACutRow(t *testing.T) {
	p := pair(t, load(t, "gosrc"), load(t, "gemma"))
	ids := document(t, p.Student, samples[0])
	for most := 1; most < 40; most++ {
		row, err := p.NewAligner().Align(ids, true, most)
		if err != nil {
			t.Fatal(err)
		}
		checkSpans(t, p, ids, row, samples[0])
		for _, s := range row.Spans {
			if int(s.TeacherTo) >= len(row.IDs) {
				t.Errorf("%d positions: span %v of %d", most, s, len(row.IDs))
			}
		}
		contracttest.Cases(t, 1)
	}
}
