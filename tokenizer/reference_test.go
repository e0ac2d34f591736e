package tokenizer

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// gosrc holds the tokenizer of the gosrc model and what Hugging Face's libraries say about it.
const gosrc = "../testdata/models/gosrc"

// fixture is the tokenizer of the gosrc model: 4093 byte-level tokens trained on Go source and three special ones.
func fixture(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Load(gosrc)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// reference.json was written by Hugging Face tokenizers and transformers for the same files.
type reference struct {
	TokenizerCases []struct {
		Text    string  `json:"text"`
		IDs     []int32 `json:"ids"`
		Decoded string  `json:"decoded"`
	} `json:"tokenizer_cases"`
	Greedy []struct {
		Prompt    string  `json:"prompt"`
		PromptIDs []int32 `json:"prompt_ids"`
		GreedyIDs []int32 `json:"greedy_ids"`
		Text      string  `json:"text"`
	} `json:"greedy"`
}

func references(t testing.TB) reference {
	t.Helper()
	b, err := os.ReadFile(gosrc + "/reference.json")
	if err != nil {
		t.Fatal(err)
	}
	var r reference
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if len(r.TokenizerCases) != 44 || len(r.Greedy) != 5 {
		t.Fatalf("reference.json has %d cases and %d prompts, not 44 and 5", len(r.TokenizerCases), len(r.Greedy))
	}
	return r
}

func TestReference(t *testing.T) {
	tok := fixture(t)
	r := references(t)
	for _, c := range r.TokenizerCases {
		checkIDs(t, tok, c.Text, c.IDs)
		checkText(t, tok, c.IDs, c.Decoded)
	}
	for _, c := range r.Greedy {
		checkIDs(t, tok, c.Prompt, c.PromptIDs)
		checkText(t, tok, c.GreedyIDs, c.Text)
	}
}

func checkIDs(t *testing.T, tok *Tokenizer, text string, want []int32) {
	t.Helper()
	if got := tok.Encode(text, Recognise); !slices.Equal(got, want) {
		t.Errorf("Encode(%.80q)\n got %v\nwant %v", text, got, want)
	}
}

func checkText(t *testing.T, tok *Tokenizer, ids []int32, want string) {
	t.Helper()
	got, err := tok.Decode(ids)
	if err != nil || got != want {
		t.Errorf("Decode(%v) = %.80q, %v; want %.80q", ids, got, err, want)
	}
}
