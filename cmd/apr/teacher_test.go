package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTeacherIsWhatTheCommandMakes keeps examples/gosrc/teacher.apr what its README says: the bytes that apr quantize
// makes of the shared model, on every processor.
func TestTeacherIsWhatTheCommandMakes(t *testing.T) {
	const committed = "../../examples/gosrc/teacher.apr"
	out := filepath.Join(t.TempDir(), "teacher.apr")
	args := []string{"quantize", "../../testdata/models/gosrc", "-s", "q4_k_m", "-o", out}
	var messages strings.Builder
	if code := run(args, strings.NewReader(""), io.Discard, &messages, nil); code != 0 {
		t.Fatalf("exit %d: %s", code, messages.String())
	}
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s has other bytes than apr %s makes", committed, strings.Join(args[:4], " "))
	}
}
