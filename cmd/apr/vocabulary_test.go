package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench"
	"apr/internal/contracttest"
)

// narrowModel writes a model with so many vocabulary rows and ids, and little else, into the working directory.
func narrowModel(t *testing.T, path string, rows, ids int) {
	t.Helper()
	c, err := bench.Shape("7b")
	if err != nil {
		t.Fatal(err)
	}
	s := c.Sizes()
	s.Hidden, s.Width, s.Heads, s.KVHeads, s.HeadDim, s.Layers, s.Vocab, s.Tied = 32, 48, 2, 1, 16, 1, rows, true
	c = arch.Qwen2(s)
	tok, err := filledTokenizer(ids)
	if err == nil {
		err = writeModel(path, bench.RandomModel(c, uint64(rows)), tok)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// distilPair runs one step with teacher.apr and student.apr of dir, with as many rows and ids as given, and returns the exit
// code, the answer and the record of the vocabulary.
func distilPair(t *testing.T, teacherRows, teacherIDs, studentRows, studentIDs int) (code int, answer map[string]any, events string) {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	narrowModel(t, path("teacher.apr"), teacherRows, teacherIDs)
	narrowModel(t, path("student.apr"), studentRows, studentIDs)
	if err := os.WriteFile(path("text.txt"), []byte(strings.Repeat("package main\n\nfunc main() { println(1, 2, 3) }\n", 8)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, answer = call(t, "distill", path("teacher.apr"), "--student", path("student.apr"), "-d", path("text.txt"), "--val-fraction", "0", "--steps", "1",
		"--batch-size", "1", "--seq-len", "8", "--backend", "cpu", "-o", path("run"))
	text, _ := os.ReadFile(path("run/events.jsonl")) // none after a refusal
	return code, answer, string(text)
}

// TestVocabularyIsReported: a teacher of 152,064 rows and a student of 151,936 share 151,936 ids, and that is what the run
// says, not the teacher's rows.
func TestVocabularyIsReported(t *testing.T) {
	code, answer, events := distilPair(t, 152064, 151936, 151936, 151936)
	if code != 0 {
		t.Fatalf("exit %d: %v", code, answer)
	}
	for _, want := range []string{`"effective_vocab":151936`, `"student_rows":151936`, `"teacher_rows":152064`} {
		contracttest.Cases(t, 1)
		if !strings.Contains(events, want) {
			t.Errorf("the events lack %s", want)
		}
	}
}

// TestVocabularyTooLarge: a student of 200,000 ids cannot be taught by a teacher of 152,064 rows; the error names both
// sizes, whether the teacher's tokenizer knows the ids or not.
func TestVocabularyTooLarge(t *testing.T) {
	for _, teacherIDs := range []int{151936, 200000} {
		t.Run(fmt.Sprint(teacherIDs), func(t *testing.T) {
			contracttest.Cases(t, 1)
			code, answer, _ := distilPair(t, 152064, teacherIDs, 200000, 200000)
			said := fmt.Sprint(answer["error"])
			if code == 0 || !strings.Contains(said, "152064") || !strings.Contains(said, "200000") {
				t.Errorf("exit %d: %s", code, said)
			}
		})
	}
}
