package tokenizer

import (
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fixtureKinds are the tokenizers that make.py trains; the folder holds these and no others.
var fixtureKinds = []string{
	"dbrx", "gemma", "gpt-2", "gpt-4o", "llama-bpe", "metaspace-always", "metaspace-first", "metaspace-never", "mistral", "mistral-scores",
	"phi3", "qwen2", "qwen2-plain", "qwen35", "refact", "tekken", "unknown", "unknown-apart",
}

const fixtures = "../testdata/tokenizers"

// fixtureFile is KIND/cases.json.gz: what Hugging Face's library says of KIND/tokenizer.json.
type fixtureFile struct {
	Origin string
	Cases  []struct {
		Text    string
		IDs     []int32
		Special []int32
		Decoded string
	}
	Decode []struct {
		IDs  []int32
		Text string
	}
}

func readFixture(t *testing.T, kind string) (f fixtureFile) {
	t.Helper()
	file, err := os.Open(filepath.Join(fixtures, kind, "cases.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.NewDecoder(z).Decode(&f); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(f.Origin, "tokenizers 0.") {
		t.Fatalf("origin %q is not Hugging Face's library", f.Origin)
	}
	if len(f.Cases) < 300 || len(f.Decode) < 50 {
		t.Fatalf("%d cases and %d to decode", len(f.Cases), len(f.Decode))
	}
	return f
}

func TestFixtureKinds(t *testing.T) {
	entries, err := os.ReadDir(fixtures)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		if e.IsDir() {
			found = append(found, e.Name())
		}
	}
	if !slices.Equal(found, fixtureKinds) {
		t.Errorf("folders %q, want %q", found, fixtureKinds)
	}
}

// Every kind gives the ids and texts of Hugging Face's library: as read from tokenizer.json, and after each stored form.
func TestFixtures(t *testing.T) {
	for _, kind := range fixtureKinds {
		t.Run(kind, func(t *testing.T) {
			f := readFixture(t, kind)
			tok, err := Load(filepath.Join(fixtures, kind))
			if err != nil {
				t.Fatal(err)
			}
			ways := storedWays(t, tok)
			ways["tokenizer.json"] = tok
			if kind == "mistral-scores" {
				ways["scores alone"] = scoresAlone(t, tok)
			}
			for name, tok := range ways {
				t.Run(name, func(t *testing.T) { checkFixture(t, tok, f) })
			}
		})
	}
}

func checkFixture(t *testing.T, tok *Tokenizer, f fixtureFile) {
	for _, c := range f.Cases {
		checkIDs(t, tok, c.Text, c.IDs)
		checkText(t, tok, c.IDs, c.Decoded)
		if got := around(tok, tok.Encode(c.Text, Recognise)); !slices.Equal(got, c.Special) {
			t.Errorf("%.80q with special tokens\n got %v\nwant %v", c.Text, got, c.Special)
		}
	}
	for _, c := range f.Decode {
		checkText(t, tok, c.IDs, c.Text)
	}
}

// around adds what AddBOS and AddEOS say.
func around(tok *Tokenizer, ids []int32) []int32 {
	if tok.AddBOS() {
		ids = slices.Insert(ids, 0, tok.BOS())
	}
	if tok.AddEOS() {
		ids = append(ids, tok.EOS())
	}
	return ids
}
