package tokenizer

import (
	"bytes"
	"os"
	"testing"
)

// The fixture was written by Hugging Face tokenizers: reading and writing it gives the same bytes.
func TestMarshalTokenizer(t *testing.T) {
	want, err := os.ReadFile(gosrc + "/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	got := fixture(t).MarshalTokenizer()
	if !bytes.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		t.Fatalf("differs at byte %d of %d and %d: got %.60q, want %.60q", i, len(got), len(want), got[i:], want[i:])
	}
}
