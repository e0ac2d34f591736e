package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// slowEncoder takes longer for shorter texts, so that workers finish out of order.
type slowEncoder struct{ byteEncoder }

func (e slowEncoder) AppendText(ids []int32, text string) []int32 {
	if len(text) < 100 {
		time.Sleep(100 * time.Microsecond)
	}
	return e.byteEncoder.AppendText(ids, text)
}

// TestLoadProperties: every document is there once, in order, with its end, whatever the number of workers.
func TestLoadProperties(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringN(0, 40, -1), 1, 20).Draw(t, "texts")
		var file strings.Builder
		var want []int32
		for i, s := range texts {
			s = strings.ReplaceAll(s, "\x00", " ") // such records are bad
			texts[i] = s
			line, _ := json.Marshal(map[string]string{"text": s})
			file.Write(append(line, '\n'))
			want = append(byteEncoder{}.AppendText(want, s), eos)
		}
		path := filepath.Join(dir, "f.jsonl")
		if err := os.WriteFile(path, []byte(file.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		opt := options
		opt.Workers = rapid.IntRange(1, 5).Draw(t, "workers")
		k, rep, err := Load(context.Background(), []string{path}, byteEncoder{}, opt)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(k.IDs, want) || len(k.Docs) != len(texts) || k.Mask != nil || k.TextBytes() != rep.Bytes || rep.Bytes != int64(len(want)-len(texts)) {
			t.Fatalf("ids %v of %q, %d documents, %d bytes", k.IDs, texts, len(k.Docs), rep.Bytes)
		}
	})
}

// manyLines writes n records of about 1.2 kB and returns the path.
func manyLines(t testing.TB, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"text\": \"%d %s\"}\n", i, strings.Repeat("x", (i*37)%2400))
	}
	return put(t, "f.jsonl", []byte(b.String()))
}

func TestLoadIsDeterministic(t *testing.T) {
	path := manyLines(t, 3000)
	var first *Tokens
	for _, workers := range []int{1, 2, 7} {
		opt := options
		opt.Workers = workers
		k, _, err := Load(context.Background(), []string{path}, slowEncoder{}, opt)
		must(t, err)
		if first == nil {
			first = k
		}
		if !reflect.DeepEqual(k, first) {
			t.Errorf("%d workers give other tokens than 1", workers)
		}
	}
	if len(first.SHA256()) != 64 || first.SHA256() == (&Tokens{}).SHA256() {
		t.Errorf("sha256 %s", first.SHA256())
	}
}

func TestConversations(t *testing.T) {
	path := put(t, "f.jsonl", []byte(`{"text": "ab"}
{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "rs"}]}
{"text": "c"}`))
	k, rep, err := Load(context.Background(), []string{path}, byteEncoder{}, options)
	must(t, err)
	wantIDs := []int32{'a', 'b', eos, 256, 'q', 258, 257, 'r', 's', 258, eos, 'c', eos}
	wantMask := []uint8{1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1}
	if !slices.Equal(k.IDs, wantIDs) || !slices.Equal(k.Mask, wantMask) || rep.Bytes != 6 {
		t.Errorf("ids %v mask %v, %d bytes", k.IDs, k.Mask, rep.Bytes)
	}
	opt := options
	opt.Turns = AllTurns
	k, _, err = Load(context.Background(), []string{path}, byteEncoder{}, opt)
	must(t, err)
	if !slices.Equal(k.IDs, wantIDs) || k.Mask != nil {
		t.Errorf("all turns: ids %v mask %v", k.IDs, k.Mask)
	}
	must(t, rep.Idle([]string{"--assistant-only"}, []string{"--text-field"}))
	text := put(t, "a.txt", []byte("a"))
	_, rep, err = Load(context.Background(), []string{text}, byteEncoder{}, opt)
	must(t, err)
	wantError(t, rep.Idle([]string{"--assistant-only"}, nil), "", "--assistant-only: has no effect: the data holds no conversation [E-CORPUS-060]", fault.Invalid)
	wantError(t, rep.Idle(nil, []string{"--text-field"}), "", "--text-field: has no effect: the data holds no records with fields, only plain text [E-CORPUS-063]", fault.Invalid)
	must(t, rep.Idle(nil, nil))
}

// TestFirstError: of several errors the first in data order is reported, however the workers race.
func TestFirstError(t *testing.T) {
	path := put(t, "f.jsonl", []byte(strings.Repeat("{\"text\": \"a\"}\n", 600)+
		`{"messages": [{"role": "pirate", "content": "q"}]}`+"\n"+strings.Repeat("{\"text\": \"a\"}\n", 600)+
		`{"messages": [{"role": "ninja", "content": "q"}]}`+"\n{}\n{}\n{}\n"))
	for range 3 {
		_, rep, err := Load(context.Background(), []string{path}, slowEncoder{}, options)
		wantError(t, err, filepath.Dir(path), `$/f.jsonl: record 601: the conversation cannot be encoded: role "pirate" [E-CORPUS-061]`, fault.Invalid)
		if rep == nil {
			t.Fatal("no report")
		}
	}
	small := options
	small.Vocab = 'b'
	path = put(t, "f.jsonl", []byte(`{"text": "aab"}`))
	_, _, err := Load(context.Background(), []string{path}, byteEncoder{}, small)
	wantError(t, err, filepath.Dir(path), "$/f.jsonl: record 1: token 3 has id 98, the vocabulary only 98 [E-CORPUS-062]", fault.Invalid)
}

func TestDocumentHash(t *testing.T) {
	docs := []Document{
		{Text: ""}, {Text: "a"}, {Messages: []Message{}}, {Messages: []Message{{Role: "a", Content: "b"}}}, {Messages: []Message{{Role: "ab", Content: ""}}},
		{Messages: []Message{{Role: "", Content: "ab"}}}, {Messages: []Message{{Role: "a", Content: "b"}, {Role: "", Content: ""}}},
	}
	seen := map[Hash]int{}
	for i, d := range docs {
		if j, ok := seen[d.Hash()]; ok {
			t.Errorf("documents %d and %d have one hash", i, j)
		}
		seen[d.Hash()] = i
	}
	if h := docs[0].Hash(); fmt.Sprintf("%x", h[:4]) != "e3b0c442" { // SHA-256 of nothing, FIPS 180-4
		t.Errorf("hash of no text %x", h)
	}
}

// TestShards writes and reads back, and finds the documents again.
func TestShards(t *testing.T) {
	path := manyLines(t, 300)
	want, _, err := Load(context.Background(), []string{path}, byteEncoder{}, options)
	must(t, err)
	for _, size := range []int64{1000, 100_000, 0} {
		dir := filepath.Join(t.TempDir(), "out")
		rep, err := EncodeCorpus(context.Background(), []string{path}, dir, byteEncoder{}, ShardOptions{Encode: options, ShardTokens: size})
		must(t, err)
		got, files, err := ReadShards(dir, vocab, eos)
		must(t, err)
		if !slices.Equal(got.IDs, want.IDs) || len(got.Docs) != len(want.Docs) || rep.TotalTokens != int64(len(want.IDs)-1) || len(files) != len(rep.Shards) {
			t.Errorf("shards of %d: %d ids in %d documents, want %d in %d", size, len(got.IDs), len(got.Docs), len(want.IDs), len(want.Docs))
		}
		for i, s := range rep.Shards {
			if s.SHA256 != files[i].SHA256 || s.Tokens*4 != files[i].Bytes || i < len(rep.Shards)-1 && size > 0 && s.Tokens != size {
				t.Errorf("shard %+v is file %+v", s, files[i])
			}
		}
		if rep.SHA256 != idsSHA256(want.IDs[:len(want.IDs)-1]) {
			t.Errorf("sha256 %s is not that of all ids", rep.SHA256)
		}
		_, err = EncodeCorpus(context.Background(), []string{path}, dir, byteEncoder{}, ShardOptions{Encode: options})
		wantError(t, err, dir, `$: holds "manifest.json" already [E-SHARD-010]`, fault.Invalid)
		none, err := EncodeCorpus(context.Background(), []string{path}, dir, byteEncoder{}, ShardOptions{Encode: options, EOSPolicy: EOSNone, Force: true})
		must(t, err)
		if none.TotalTokens != rep.TotalTokens-299 {
			t.Errorf("without end-of-text %d tokens, with it %d", none.TotalTokens, rep.TotalTokens)
		}
		whole, _, err := ReadShards(dir, vocab, eos)
		must(t, err)
		if len(whole.Docs) != 1 {
			t.Errorf("%d documents without end-of-text", len(whole.Docs))
		}
	}
}

// idsSHA256 hashes ids as little-endian u32.
func idsSHA256(ids []int32) string {
	h := sha256.New()
	_ = binary.Write(h, binary.LittleEndian, ids) // a hash takes everything
	return hex.EncodeToString(h.Sum(nil))
}

func TestShardsRefused(t *testing.T) {
	one := sha256.Sum256([]byte("\x01\x00\x00\x00"))
	oneSum := hex.EncodeToString(one[:])
	oneShard := `{"name": "a.bin", "sha256": "` + oneSum + `"}`
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
		kind  fault.Kind
	}{
		{"none", map[string]string{"a.txt": ""}, "$: no .bin file in it [E-SHARD-004]", fault.NotFound},
		{"length", map[string]string{"a.bin": "\x01\x00\x00\x00\x01"}, "$/a.bin: the length 5 is not a multiple of 4 [E-SHARD-001]", fault.Format},
		{"id", map[string]string{"a.bin": "\x01\x00\x00\x00", "b.bin": "\x02\x00\x00\x00\x04\x01\x00\x00"}, "$/b.bin: offset 4: id 260 is not below the vocabulary's 260 [E-SHARD-002]", fault.Invalid},
		{"id over 2^31", map[string]string{"a.bin": "\xff\xff\xff\xff"}, "$/a.bin: offset 0: id 4294967295 is not below the vocabulary's 260 [E-SHARD-002]", fault.Invalid},
		{"empty", map[string]string{"a.bin": ""}, "$: the shards hold no token [E-SHARD-003]", fault.Invalid},
		{"missing", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"shards": [{"name": "b.bin", "sha256": ""}]}`}, `$/manifest.json: shard 1, "b.bin", is missing or has changed since it was written [E-SHARD-005]`, fault.Invalid},
		{"changed", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"shards": [{"name": "a.bin", "sha256": "00"}]}`}, `$/manifest.json: shard 1, "a.bin", is missing or has changed since it was written [E-SHARD-005]`, fault.Invalid},
		{"too many", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"shards": []}`}, `$/manifest.json: lists 0 shards, the folder holds 1 [E-SHARD-005]`, fault.Invalid},
		{"another schema", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"schema": "x", "shards": [` + oneShard + `]}`}, `$/manifest.json: key "schema": is "x", not "apr.token-shards/1" [E-SHARD-014]`, fault.Format},
		{"tokens of a shard", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"shards": [` + strings.Replace(oneShard, "{", `{"tokens": 2, `, 1) + `]}`}, `$/manifest.json: shard 1, "a.bin", has 1 tokens, not 2 [E-SHARD-014]`, fault.Format},
		{"all tokens", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"total_tokens": 2, "shards": [` + oneShard + `]}`}, `$/manifest.json: key "total_tokens": is 2, and the shards have 1 [E-SHARD-014]`, fault.Format},
		{"hash of all", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"sha256": "00", "shards": [` + oneShard + `]}`}, `$/manifest.json: key "sha256": is 00, and the shards have ` + oneSum + ` [E-SHARD-014]`, fault.Format},
		{"manifest", map[string]string{"a.bin": "\x01\x00\x00\x00", "manifest.json": `{"shards": [{"name": 1}]}`}, `$/manifest.json: line 1, column 22: key "name": expected a string, found 1 [E-JSON-007]`, fault.Format},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			dir := t.TempDir()
			for name, s := range c.files {
				must(t, os.WriteFile(filepath.Join(dir, name), []byte(s), 0o600))
			}
			_, _, err := ReadShards(dir, vocab, eos)
			wantError(t, err, dir, c.want, c.kind)
		})
	}
	path := manyLines(t, 1)
	_, err := EncodeCorpus(context.Background(), []string{path}, t.TempDir(), byteEncoder{}, ShardOptions{Encode: options, EOSPolicy: "after"})
	wantError(t, err, "", `--eos-policy: "after" is not between or none [E-SHARD-008]`, fault.Usage)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/thesis.txt", []byte("dear"), 0o600))
	_, err = EncodeCorpus(context.Background(), []string{path}, dir, byteEncoder{}, ShardOptions{Encode: options, Force: true})
	wantError(t, err, dir, `$: holds "thesis.txt" already [E-SHARD-010]`, fault.Invalid)
	bad := put(t, "f.jsonl", []byte(`{"text": "a"`))
	out := t.TempDir()
	if _, err = EncodeCorpus(context.Background(), []string{bad}, out, byteEncoder{}, ShardOptions{Encode: options}); err == nil {
		t.Error("bad data encoded")
	}
	if left, _ := os.ReadDir(out); len(left) != 0 {
		t.Errorf("a failed encoding leaves %v", left)
	}
}

func TestNFC(t *testing.T) {
	path := put(t, "f.jsonl", []byte(`{"text": "e\u0301"}`))
	for nfc, want := range map[bool]string{false: "e\u0301", true: "\u00e9"} {
		opt := options
		opt.NFC = nfc
		k, _, err := Load(context.Background(), []string{path}, byteEncoder{}, opt)
		must(t, err)
		if d := (Document{Text: "e\u0301"}); !slices.Equal(k.IDs, append(byteEncoder{}.AppendText(nil, want), eos)) || k.Docs[0].Hash != d.Hash() || k.TextBytes() != 3 {
			t.Errorf("NFC %v: %v, %d bytes", nfc, k.IDs, k.TextBytes())
		}
	}
}

// Shards that cannot be exchanged leave the old ones as they were.
func TestExchangeUndone(t *testing.T) {
	dir := t.TempDir()
	tmp := filepath.Join(dir, "tmp")
	must(t, os.Mkdir(tmp, 0o700))
	for _, name := range []string{"manifest.json", "shard-00000.bin", "tmp/shard-00000.bin"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600))
	}
	err := exchange(dir, tmp, []string{"manifest.json", "shard-00000.bin"}, []Shard{{Name: "shard-00000.bin"}, {Name: "shard-00001.bin"}})
	if fault.KindOf(err) != fault.IO {
		t.Fatalf("a shard that is missing: %v", err)
	}
	for _, name := range []string{"manifest.json", "shard-00000.bin", "tmp/shard-00000.bin"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(text) != name {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	contracttest.Cases(t, 1)
}
