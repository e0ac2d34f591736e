package distill

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/corpus"
	"apr/device/cpu"
	"apr/internal/fault"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// continued runs c and returns its record.
func continued(t *testing.T, c Config) *runlog.Record {
	t.Helper()
	mustRun(t, c, 1)
	rec, err := runlog.Read(c.Output)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// sizesOf are the sizes that a run wrote down.
func sizesOf(t *testing.T, rec *runlog.Record) (all []runlog.ModelSize) {
	t.Helper()
	for _, e := range rec.Events {
		if e.Name != runlog.SizesEvent {
			continue
		}
		b, err := json.Marshal(e.Detail)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &all); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// A run ends with what teacher, student and control write after the same held-out prompts, the same each time, and with
// their sizes. Without prompts it ends as well, with the same student.
func TestContinuations(t *testing.T) {
	c := brief(t, tinyConfig(t))
	c.Control, c.ValFraction, c.Samples = true, 0.3, 2
	rec := continued(t, c)
	if rec.Status != runlog.Completed || rec.Samples == nil || len(rec.Samples.Continuations) != 2 {
		t.Fatalf("%s, %+v", rec.Status, rec.Samples)
	}
	for i, k := range rec.Samples.Continuations {
		var models []string
		for _, a := range k.Answers {
			models = append(models, a.Model)
			if a.Tokens < 1 || a.Tokens > newTokens || a.Finish == "length" && a.Tokens != newTokens {
				t.Errorf("prompt %d, %s: %d tokens, %s", i, a.Model, a.Tokens, a.Finish)
			}
		}
		if !slices.Equal(models, []string{nameTeacher, nameDistilled, nameControl}) || k.Prompt == "" || k.Text == "" {
			t.Errorf("prompt %d: %v, %q, %q", i, models, k.Prompt, k.Text)
		}
	}
	sizes := sizesOf(t, rec)
	st, err := os.Stat(filepath.Join(c.Output, "student.apr"))
	if err != nil {
		t.Fatal(err)
	}
	if len(sizes) != 2 || sizes[0].Name != nameTeacher || sizes[0].TokensPerSecond == nil || sizes[1].FileBytes != st.Size() || sizes[1].TokensPerSecond == nil {
		t.Errorf("sizes %+v", sizes)
	}

	again := in(t, c)
	if got := continued(t, again); !slices.EqualFunc(got.Samples.Continuations, rec.Samples.Continuations, func(a, b runlog.Continuation) bool {
		return a.Prompt == b.Prompt && slices.Equal(a.Answers, b.Answers)
	}) {
		t.Errorf("again: %+v\nfirst: %+v", got.Samples.Continuations, rec.Samples.Continuations)
	}

	off := in(t, c)
	off.Samples = 0
	got := continued(t, off)
	if len(got.Samples.Continuations) != 0 || len(got.Samples.Windows) == 0 || len(sizesOf(t, got)) != 2 || sizesOf(t, got)[0].TokensPerSecond != nil {
		t.Errorf("without prompts: %+v, %+v", got.Samples.Continuations, sizesOf(t, got))
	}
	if string(studentBytes(t, off)) != string(studentBytes(t, c)) {
		t.Error("what models write after training changes the student")
	}
}

// A model with no room for a prompt and its continuation costs the run its continuations alone.
func TestNoRoomForContinuations(t *testing.T) {
	c := brief(t, tinyConfig(t))
	c.ValFraction, c.Samples = 0.3, 2
	short := strings.Replace(tinyStudent, `"max_position_embeddings":256`, `"max_position_embeddings":64`, 1)
	if err := os.WriteFile(c.StudentConfig, []byte(short), 0o600); err != nil {
		t.Fatal(err)
	}
	if rec := continued(t, c); rec.Status != runlog.Completed || len(rec.Samples.Continuations) != 0 {
		t.Errorf("%s: %+v", rec.Status, rec.Samples.Continuations)
	}
}

// stopIn is an observer that stops the run in a phase.
type stopIn struct {
	*quiet
	phase string
}

func (s stopIn) Phase(name string) {
	if name == s.phase {
		s.stop()
	}
}

// A run that is stopped while the models write has its student, and says that it can go on.
func TestStopInContinuations(t *testing.T) {
	c := brief(t, tinyConfig(t))
	c.ValFraction, c.Samples = 0.3, 1
	d, err := cpu.New(cpu.Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := Start(ctx, c, d, stopIn{&quiet{stop: cancel}, "continuing held-out text"}, func(*runlog.Manifest) {})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Execute(ctx); fault.KindOf(err) != fault.Stopped {
		t.Fatalf("%v", err)
	}
	studentBytes(t, c)
}

// Prompts come from one document each: from the line at a place of plain text, and up to the first answer of a
// conversation.
func TestCutPrompt(t *testing.T) {
	ids := make([]int32, 400)
	for i := range ids {
		ids[i] = int32(i)
	}
	line := func(id int32) bool { return id%25 == 24 }
	plain := &corpus.Tokens{IDs: ids, Docs: []corpus.Doc{{End: 10}, {End: 300}, {End: 400}}}
	mask := make([]uint8, 400)
	for i := 350; i < 400; i++ {
		mask[i] = 1
	}
	talk := &corpus.Tokens{IDs: ids, Mask: mask, Docs: plain.Docs}
	turns := &corpus.Tokens{IDs: ids, Mask: slices.Clone(mask), Docs: plain.Docs} // the user's turn follows
	clear(turns.Mask[380:390])
	for _, c := range []struct {
		name       string
		t          *corpus.Tokens
		at, most   int
		from, to   int // of the prompt
		next, last int // the text after it
	}{
		{"a line", plain, 110, 256, 100, 140, 140, 204},
		{"near the end", plain, 290, 256, 175, 215, 215, 279},
		{"the beginning", plain, 20, 256, 10, 50, 50, 114},
		{"a short document", plain, 5, 256, 0, 9, 9, 10},
		{"a short prompt", plain, 110, 8, 100, 108, 108, 172},
		{"a conversation", talk, 360, 256, 300, 350, 350, 400},
		{"a conversation of turns", turns, 360, 256, 300, 350, 350, 380},
		{"a long conversation", talk, 360, 20, 0, 0, 0, 0},
		{"no room", plain, 110, 0, 0, 0, 0, 0},
	} {
		p := cutPrompt(c.t, c.at, c.most, line)
		if !slices.Equal(p.ids, ids[c.from:c.to]) || !slices.Equal(p.next, ids[c.next:c.last]) {
			t.Errorf("%s: prompt %v, then %v", c.name, p.ids, p.next)
		}
		last := tokenizer.None
		if c.t != plain {
			last = int32(c.last - 1)
		}
		if len(p.ids) > 0 && p.last != last {
			t.Errorf("%s: it ends with %d", c.name, p.last)
		}
	}
}

// An answer ends with the control token that ended the one of the text, as in apr run; a text, and an answer cut at an
// ordinary token, end as before.
func TestAnswersEndWithTheirTurn(t *testing.T) {
	tok, err := tokenizer.Load("../testdata/models/gosrc")
	if err != nil {
		t.Fatal(err)
	}
	turn, ok := tok.Special("<|im_end|>")
	if !ok || turn == tok.EOS() {
		t.Fatalf("<|im_end|> is %d, %v", turn, ok)
	}
	r := &Run{in: &inputs{tokenizer: tok, held: &corpus.Tokens{EOS: tok.EOS()}}}
	for _, c := range []struct {
		last int32
		want bool
	}{{turn, true}, {tokenizer.None, false}, {1, false}} {
		if got := slices.Contains(r.stops(prompt{last: c.last}), c.last); got != c.want {
			t.Errorf("an answer that ended with %d stops there: %v", c.last, got)
		}
	}
}
