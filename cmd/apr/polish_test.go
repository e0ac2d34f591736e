package main

import (
	"strings"
	"testing"

	"apr/internal/fault"
)

// What is printed for ollama is a name that it takes, and paths are what a shell reads.
func TestOllamaNames(t *testing.T) {
	for file, want := range map[string]string{
		"student": "student", "My Model+x": "my-model-x", "-odd": "odd", "a:b/c": "a-b-c",
		"qwen2.5_q4": "qwen2.5_q4", "Größe": "gr-e",
		"...": "student", strings.Repeat("a", 79) + "-b": strings.Repeat("a", 79),
	} {
		if got := ollamaName(file); got != want {
			t.Errorf("%q is called %q, want %q", file, got, want)
		}
	}
	for path, want := range map[string]string{
		"a b.gguf": "'a b.gguf'", "-odd.gguf": "./-odd.gguf", "x/y.gguf": "x/y.gguf", "it's": `'it'\''s'`,
	} {
		if got := operand(path); got != want {
			t.Errorf("%q is written %s, want %s", path, got, want)
		}
	}
}

// A path that nobody can look at is not said to be missing.
func TestModelThatCannotBeLookedAt(t *testing.T) {
	long := "./" + strings.Repeat("a", 300)
	if err := noModel(long, "runs"); fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), "name too long") {
		t.Errorf("a name that no file can have: %v", err)
	}
	if err := noModel("./nothing", "runs"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a file that is not there: %v", err)
	}
}
