package distill

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/corpus"
	"apr/generate"
	"apr/internal/contracttest"
)

// An answer that no reader of JSON Lines would take, with NUL or bytes that are no text, is left out and counted, also
// by a call that goes on: every line that is written can be read with its sum.
func TestUnreadableAnswersAreLeftOut(t *testing.T) {
	answers := []string{"good", "a\x00b", "\xff", "two\nlines\u2028\x1b"}
	job := TextJob{Output: filepath.Join(t.TempDir(), "out.jsonl"), Writer: "w", Samples: len(answers), MinTokens: 1,
		Decode: func(ids []int32) (string, error) { return answers[ids[0]], nil }}
	for round := range 2 {
		contracttest.Cases(t, 1)
		x := &texts{j: job, out: &Texts{}}
		x.list([]TextPrompt{{Prompt: "p"}})
		if err := x.open(); err != nil {
			t.Fatal(err)
		}
		if round == 1 && x.out.Resumed != len(answers) {
			t.Fatalf("%d answers are resumed", x.out.Resumed)
		}
		for i := range answers {
			if a := &x.answers[i]; a.at.bytes == 0 {
				if err := x.keep(a, generate.Result{IDs: []int32{int32(i)}}); err != nil {
					t.Fatal(err)
				}
			}
		}
		x.advance(nil)
		if round == 0 {
			if err := x.part.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := x.finish(); err != nil {
			t.Fatal(err)
		}
		if x.out.Written != 2 || x.out.Unreadable != 2 || x.out.Short != 0 || x.out.Tokens != 2 {
			t.Errorf("%+v", x.out)
		}
	}
	text, err := os.ReadFile(job.Output)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if err := corpus.CheckRecord(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// Records of other forms are told how to become prompts.
func TestPromptHint(t *testing.T) {
	for line, want := range map[string]string{
		`{"messages": []}`: ".messages[]", `{"prompt": "a", "id": 7}`: "'{prompt}'", `{"instruction": "a"}`: ".instruction",
		`{"text": "a"}`: "", `7`: "", `{`: "",
	} {
		if got := promptHint(line); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q", line, got)
		}
	}
}
