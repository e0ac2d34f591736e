package convert

import (
	"context"
	"path/filepath"
	"testing"
)

// A summary says what keeps a model from being computed, as its description does.
func TestSummaryNotComputed(t *testing.T) {
	for _, name := range []string{"llama", "gpt_oss", "qwen3_5_text"} {
		c, err := Open(filepath.Join("..", "testdata", "golden", "families", name))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		cfg, err := c.Config()
		if err != nil {
			t.Fatal(err)
		}
		s, err := Summarize(context.Background(), c, false)
		if err != nil || s.NotComputed != cfg.NotComputed() {
			t.Errorf("%s: %q, want %q, %v", name, s.NotComputed, cfg.NotComputed(), err)
		}
	}
}
