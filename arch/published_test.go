package arch

import (
	"math"
	"testing"

	"apr/tensor"
)

// TestPublished compares the number of parameters with those that the models' authors give, in 1e9, where we know them.
func TestPublished(t *testing.T) {
	known := map[string]float64{
		"qwen2.5-0.5b": .494, "qwen2.5-1.5b": 1.54, "qwen2.5-7b": 7.62, "qwen3-0.6b": .596, "qwen3-8b": 8.19, "qwen3-30b-a3b": 30.5, "llama3.2-1b": 1.24,
		"llama3.2-3b": 3.21, "llama3.1-8b": 8.03, "mistral-7b": 7.25, "gemma2-2b": 2.61, "gemma3-1b": 1.0, "gemma4-e2b": 4.63, "gemma4-e4b": 7.46, "gemma4-31b": 30.7,
		"phi4-mini": 3.84, "phi4": 14.7, "gpt-oss-20b": 20.9, "qwen3.5-0.8b": .752, "qwen3.5-9b": 8.95, "smollm3-3b": 3.08, "olmo2-7b": 7.3, "olmo3-7b": 7.3, "gemma3-12b": 11.77,
		"qwen2.5-72b": 72.7, "llama3.1-70b": 70.6,
	}
	for _, name := range PublishedNames() {
		c, err := Published(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.BOS != -1 || c.EOS != nil || c.DType != tensor.BF16 {
			t.Errorf("%s: %d %v %s", name, c.BOS, c.EOS, c.DType)
		}
		want, ok := known[name]
		if got := float64(c.Parameters()) / 1e9; ok && !(math.Abs(got-want) <= 0.006*want) {
			t.Errorf("%s: %.3f, want %.3f", name, got, want)
		}
		delete(known, name)
	}
	for name := range known {
		t.Errorf("%s is not known", name)
	}
	if _, err := Published("qwen3-9b"); err == nil {
		t.Error("accepted")
	}
}
