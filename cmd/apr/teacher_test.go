package main

import (
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// TestTeacherIsWhatTheCommandMakes keeps examples/gosrc/teacher.apr what its README says: tensors, configuration and
// tokenizer that apr quantize makes of the shared model, bit for bit on every processor.
func TestTeacherIsWhatTheCommandMakes(t *testing.T) {
	const committed = "../../examples/gosrc/teacher.apr"
	out := filepath.Join(t.TempDir(), "teacher.apr")
	var text strings.Builder
	args := []string{"quantize", "../../testdata/models/gosrc", "-s", "q4_k_m", "-o", out}
	if code := run(args, strings.NewReader(""), io.Discard, &text, nil); code != 0 {
		t.Fatalf("exit %d: %s", code, text.String())
	}
	text.Reset()
	if code := run([]string{"diff", committed, out, "--json"}, strings.NewReader(""), &text, io.Discard, nil); code != 0 {
		t.Fatalf("diff: exit %d: %s", code, text.String())
	}
	var diff struct {
		Identical bool
		Compared  int
	}
	if err := json.Unmarshal([]byte(text.String()), &diff); err != nil {
		t.Fatal(err)
	}
	if !diff.Identical || diff.Compared != 75 {
		t.Errorf("%s is not what %q makes: %s", committed, args[:4], text.String())
	}
}
