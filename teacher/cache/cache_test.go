package cache

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"apr/internal/atomicfile"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
	"apr/tensor"
)

// tiny is the header of a cache of 3 draws from 10 ids at two positions.
func tiny() Header {
	return Header{Kind: Draws, Teacher: "t", TeacherConfig: "c", Tokenizer: "k", Template: "none", Packing: "packed", SeqLen: 2, Vocab: 10, ShardRows: 2,
		Device: "cpu avx2", Algorithms: "as stored", PassRows: 1, ChunkRows: 512, Temperature: 1, Draws: 3, Seed: 7, Entropy: true}
}

func tinyRows(t *testing.T, h Header) (keys []Key, rows [][]byte) {
	t.Helper()
	for i := range 3 {
		keys = append(keys, KeyOf([]int32{int32(i), 5}, nil))
		b, err := EncodeDraws(h, Drawn{From: []int32{0, 2, 3}, Entries: []Entry{{int32(1 + i), 2}, {9, 1}, {4, 3}}, Entropy: []float32{1.5, 0.25}})
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, b)
	}
	return keys, rows
}

// write makes the tiny cache.
func write(t *testing.T, dir string) Header {
	t.Helper()
	h := tiny()
	keys, rows := tinyRows(t, h)
	w, err := Create(dir, h, keys)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range w.Shards() {
		if err := w.Write(s, rows[s.Lo:s.Hi]); err != nil {
			t.Fatal(err)
		}
	}
	stray := filepath.Join(dir, ".a"+shardExt+atomicfile.TempMark) // "old" of a process that was killed, "new" of one at work
	for _, age := range []string{"old", "new"} {
		if err := os.WriteFile(stray+age, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-2 * abandoned)
	if err := os.Chtimes(stray+"old", long, long); err != nil {
		t.Fatal(err)
	}
	if missing, err := w.Seal(); len(missing) != 0 || err != nil {
		t.Fatal(missing, err)
	}
	if _, err := os.Lstat(stray + "old"); !os.IsNotExist(err) {
		t.Error("what a killed process left is still there")
	}
	if err := os.Remove(stray + "new"); err != nil {
		t.Error("what another process writes is gone:", err)
	}
	return w.header
}

// TestGoldenBytes: docs/cache-format.md labels every byte of the last shard of the tiny cache, and header.json and
// manifest.json.
func TestGoldenBytes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h := write(t, dir)
	doc, err := os.ReadFile("../../docs/cache-format.md")
	if err != nil {
		t.Fatal(err)
	}
	var golden []byte
	labelled := false
	for line := range strings.Lines(string(doc)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "```") {
			labelled = line == "```bytes"
			continue
		}
		if !labelled || line == "" {
			continue
		}
		text, label, ok := strings.Cut(line, "|")
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil || !ok || strings.TrimSpace(label) == "" {
			t.Fatalf("%q: %v", line, err)
		}
		golden = append(golden, b...)
	}
	keys, rows := tinyRows(t, h)
	last := shardsOf(h, keys)[1]
	got, err := os.ReadFile(filepath.Join(dir, last.Name))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(golden, got) {
		t.Errorf("the document has\n%x\nthe shard is\n%x", golden, got)
	}
	if !strings.Contains(string(doc), string(h.JSON())) {
		t.Errorf("the document lacks\n%s", h.JSON())
	}
	m, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil || !strings.Contains(string(doc), string(m)) {
		t.Errorf("the document lacks\n%s", m)
	}
	if !bytes.Equal(rows[2], got[len(got)-len(rows[2]):]) {
		t.Error("the last row is not at the end")
	}
	contracttest.Cases(t, 3)
}

// TestDamage: every prefix and every changed byte of each file is refused when the cache is opened or read, never
// believed.
func TestDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h := write(t, dir)
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) != 5 {
		t.Fatal(all, err)
	}
	n := 0
	for _, path := range all {
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n += hostile.EachDamage(t, good, func(name string, b []byte) {
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Open(dir)
			if err == nil {
				err = r.Verify()
			}
			if kind := fault.KindOf(err); err == nil && !harmless(r, h, path, b) || err != nil && kind != fault.Format && kind != fault.Invalid && kind != fault.NotFound && kind != fault.UnsafePath {
				t.Errorf("%s, %s: %v", filepath.Base(path), name, err)
			}
		})
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	contracttest.Cases(t, n)
}

// harmless reports whether damage changed only white space of a JSON file.
func harmless(r *Reader, h Header, path string, b []byte) bool {
	return r.JSON() != nil && bytes.Equal(r.JSON(), h.JSON()) && strings.HasSuffix(path, ".json") && len(b) > 0
}

// forge rewrites the shard of these keys with other rows, whose checksums are right, and returns its name.
func forge(t *testing.T, dir string, h Header, keys []Key, rows [][]byte) string {
	t.Helper()
	name := nameOf(h.Digest(), keys)
	path := filepath.Join(dir, name)
	b := encodeShard(h, keys, rows)
	if st, err := os.Stat(path); err != nil || st.Size() != int64(len(b)) {
		t.Fatal("the forged shard has another size", err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestPin: a shard that was changed together with its checksums is read where the cache is not pinned, and refused by
// name where it is, by every way to its rows and each time; another shard is read on. Another manifest is no match.
func TestPin(t *testing.T) {
	for _, kind := range []string{Draws, Hidden} {
		dir := filepath.Join(t.TempDir(), "cache")
		h := tiny()
		keys, rows := tinyRows(t, h)
		if kind == Hidden {
			h.Kind, h.Width, h.DType = Hidden, 2, "bf16"
			for i := range rows {
				rows[i] = bytes.Repeat([]byte{0, 0x3f}, h.SeqLen*h.Width) // 0.5
			}
		}
		w, err := Create(dir, h, keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range w.Shards() {
			if err := w.Write(s, rows[s.Lo:s.Hi]); err != nil {
				t.Fatal(err)
			}
		}
		if missing, err := w.Seal(); len(missing) != 0 || err != nil {
			t.Fatal(missing, err)
		}
		other := bytes.Clone(rows[0])
		other[len(other)-1] = 0x40 // another value of the last position, or one bit of the last count
		if kind == Draws {
			if other, err = EncodeDraws(h, Drawn{From: []int32{0, 2, 3}, Entries: []Entry{{1, 1}, {9, 2}, {4, 3}},
				Entropy: []float32{1.5, 0.25}}); err != nil {
				t.Fatal(err)
			}
		}
		name := forge(t, dir, w.header, keys[:2], [][]byte{other, rows[1]})
		read := func(r *Reader, k Key) error {
			if kind == Draws {
				_, err := r.Drawn(k)
				return err
			}
			if err := r.HiddenBytes(k, make([]byte, h.RowLimit())); err != nil {
				return err
			}
			return r.Hidden(k, make([]float32, h.SeqLen*h.Width))
		}
		r, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := r.Row(keys[0]); err != nil || !bytes.Equal(b, other) || read(r, keys[0]) != nil {
			t.Errorf("%s, not pinned: %x, %v", kind, b, err)
		}
		if err := r.Pin(strings.Repeat("0", 64)); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%s, another manifest: %v", kind, err)
		}
		if err := r.Pin(r.SHA256); err != nil {
			t.Fatal(err)
		}
		for _, k := range []Key{keys[0], keys[1], keys[0]} {
			_, err := r.Row(k)
			for _, err := range []error{err, read(r, k)} {
				if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), name+": its SHA-256 is") {
					t.Errorf("%s, pinned: %v", kind, err)
				}
				contracttest.Cases(t, 1)
			}
		}
		if err := read(r, keys[2]); err != nil {
			t.Errorf("%s, another shard: %v", kind, err)
		}
	}
}

// TestMissing: what is not there is named.
func TestMissing(t *testing.T) {
	for _, tt := range []struct {
		name, remove string
		kind         fault.Kind
		want         string
	}{
		{"a shard", "*" + shardExt, fault.NotFound, "a file of the cache is missing"},
		{"the manifest", manifestFile, fault.Invalid, "not sealed: 2 of 2 shards"},
		{"the header", headerFile, fault.NotFound, headerFile},
	} {
		dir := filepath.Join(t.TempDir(), "cache")
		write(t, dir)
		found, err := filepath.Glob(filepath.Join(dir, tt.remove))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(found[0]); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("without %s: %v", tt.name, err)
		}
		contracttest.Cases(t, 1)
	}
}

// TestSame: every field that differs is named, with both values.
func TestSame(t *testing.T) {
	h := tiny()
	h.Rows, h.RowsSHA256, h.Width, h.DType = 3, "r", 4, "bf16"
	for i, f := range h.fields() {
		other := h
		was := h.Text(f.name)
		switch at := other.fields()[i].at.(type) {
		case *string:
			*at += "x"
		case *int:
			*at++
		case *uint64:
			*at++
		case *float64:
			*at *= 1.5
		case *bool:
			*at = !*at
		}
		err := h.Same("cache", other)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), fmt.Sprintf("another %s: it has %s, asked for is %s", f.name, was, other.Text(f.name))) {
			t.Errorf("%s: %v", f.name, err)
		}
		if h.Digest() == other.Digest() {
			t.Errorf("%s is not in the digest", f.name)
		}
		contracttest.Cases(t, 1)
	}
}

// TestTooLarge: larger vocabularies and counts are refused, never cut.
func TestTooLarge(t *testing.T) {
	h := tiny()
	h.Rows = 1
	for name, change := range map[string]func(*Header){
		"vocab": func(h *Header) { h.Vocab = MaxVocab + 1 }, "draws": func(h *Header) { h.Draws = MaxDraws + 1 }, "temperature": func(h *Header) { h.Temperature = 0 },
		"kind": func(h *Header) { h.Kind = "top-k" }, "seq_len": func(h *Header) { h.SeqLen = 0 }, "width": func(h *Header) { h.Kind = Hidden },
	} {
		bad := h
		change(&bad)
		if err := bad.Check("cache"); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), name+" is ") {
			t.Errorf("%s: %v", name, err)
		}
		contracttest.Cases(t, 1)
	}
	good := Drawn{From: []int32{0, 1, 2}, Entries: []Entry{{1, 3}, {2, 3}}, Entropy: []float32{0, 0}}
	if _, err := EncodeDraws(h, good); err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]Drawn{
		"id 10":           {good.From, []Entry{{1, 3}, {10, 3}}, good.Entropy},
		"a count of 64":   {good.From, []Entry{{1, 64}, {2, 3}}, good.Entropy},
		"sum to 2":        {good.From, []Entry{{1, 2}, {2, 3}}, good.Entropy},
		"id 1 after 1":    {[]int32{0, 2, 3}, []Entry{{1, 2}, {1, 1}, {2, 3}}, good.Entropy},
		"draws of 1":      {[]int32{0, 2}, good.Entries, good.Entropy},
		"an entropy of N": {good.From, good.Entries, []float32{0, nan()}},
		"0 entropies":     {good.From, good.Entries, nil},
	} {
		if _, err := EncodeDraws(h, d); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		contracttest.Cases(t, 1)
	}
}

func nan() float32 { z := float32(0); return z / z }

// TestRoundTrip: vocabularies of every width of an id come back, and hidden states bit for bit.
func TestRoundTrip(t *testing.T) {
	for bits := 1; bits <= 22; bits++ {
		for _, v := range []int{1<<(bits-1) + 1, 1 << bits} {
			h := tiny()
			h.Vocab, h.Draws, h.Entropy, h.SeqLen = v, 63, bits%2 == 0, 3
			d := Drawn{From: []int32{0, 1, 3, 4}, Entries: []Entry{{0, 63}, {0, 1}, {int32(v - 1), 62}, {int32(v - 1), 63}}}
			if h.Entropy {
				d.Entropy = []float32{0, 1.5, 11.5}
			}
			b, err := EncodeDraws(h, d)
			if err != nil {
				t.Fatal(err)
			}
			got, err := DecodeDraws(h, b)
			if err != nil || !slices.Equal(got.Entries, d.Entries) || !slices.Equal(got.From, d.From) || !slices.Equal(got.Entropy, d.Entropy) || h.IDBits() != bits {
				t.Errorf("%d ids: %v, %v", v, got, err)
			}
			contracttest.Cases(t, 1)
		}
	}
	h := Header{Kind: Hidden, SeqLen: 2, Width: 3}
	for _, h.DType = range []string{"f32", "bf16"} {
		want := []float32{0, -1.5, 3e8, 1, 0.25, -2}
		want[2] = 1 << 28
		b, got := make([]byte, 6*h.elementBytes()), make([]float32, 6)
		tensor.Narrow(b, want, h.dtype())
		err := CheckHidden(h, b)
		if err != nil || DecodeHidden(h, got, b) != nil || !slices.Equal(got, want) || DecodeHidden(h, got, b[1:]) == nil {
			t.Errorf("%s: %v, %v", h.DType, got, err)
		}
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
			wrong := slices.Clone(want)
			wrong[5] = float32(bad)
			tensor.Narrow(b, wrong, h.dtype())
			if err := CheckHidden(h, b); err == nil || !strings.Contains(err.Error(), "not finite: value 5") {
				t.Errorf("%s of %g: %v", h.DType, bad, err)
			}
		}
		if err := CheckHidden(h, b[1:]); err == nil || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%s, cut: %v", h.DType, err)
		}
		contracttest.Cases(t, 1)
	}
}

// TestOthersFolder: a folder that holds something else is left alone; a cache with another header is refused.
func TestOthersFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := tiny()
	keys, _ := tinyRows(t, h)
	if _, err := Create(dir, h, keys); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "thesis.txt") {
		t.Error(err)
	}
	made := filepath.Join(t.TempDir(), "cache")
	write(t, made)
	h.Seed++
	if _, err := Create(made, h, keys); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "another seed: it has 7, asked for is 8") {
		t.Error(err)
	}
}
