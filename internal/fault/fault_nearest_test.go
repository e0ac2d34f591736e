package fault_test

import (
	"testing"

	"apr/internal/fault"
)

func TestNearest(t *testing.T) {
	flags := []string{"lr", "temperature", "help", "max-tokens", "max-seq-len", "alpha", "out"}
	for word, want := range map[string]string{
		"lrate": "lr", "temp": "temperature", "Temprature": "temperature", "hlep": "help", "max": "max-tokens", "l": "lr", "alhpa": "alpha", "output": "out", "zzz": "", "ou": "out",
		"tempuretore": "temperature", "tampuretore": "", "beta": "", "sleep": "",
	} {
		if got := fault.Nearest(word, flags); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	for word, want := range map[string]string{"q4km": "q4_k_m", "Q4-K-M": "q4_k_m", "q4k": "q4k", "q40": "q4_0"} {
		if got := fault.Nearest(word, []string{"q4k", "q4_0", "q4_k_m"}); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
	for word, want := range map[string]string{"rnu": "run", "gup": "gpu", "eavl": "eval", "plna": "plan", "urns": "runs"} {
		if got := fault.Nearest(word, []string{"gpu", "plan", "runs", "run", "eval", "pull"}); got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}
