package aprfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// floats32 returns the little-endian bytes of values.
func floats32(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func source(name string, d tensor.DType, shape []int, payload []byte) tensor.Source {
	return tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, payload)
}

// example is the worked example of the format's description, as it is printed there.
const example = `
41 50 52 00 02 00 00 04  01 00 00 00 40 00 00 00
00 00 00 00 26 00 00 00  80 00 00 00 00 00 00 00
c0 00 00 00 00 00 00 00  45 fc e3 44 00 00 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
7b 22 6d 6f 64 65 6c 5f  74 79 70 65 22 3a 22 64
65 6d 6f 22 2c 22 77 72  69 74 65 72 22 3a 22 61
70 72 2f 31 22 7d 00 00  00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
01 00 77 00 02 02 00 00  00 00 00 00 00 03 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 18 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
00 00 80 3f 00 00 00 c0  00 00 00 3f 00 00 00 00
00 00 40 40 00 00 80 be  00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00
35 99 5d 3c`

func TestWorkedExample(t *testing.T) {
	want, err := hex.DecodeString(strings.Join(strings.Fields(example), ""))
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	n, err := Encode(&got, []tensor.Source{source("w", tensor.F32, []int{2, 3}, floats32(1, -2, 0.5, 0, 3, -0.25))},
		Options{Metadata: map[string]any{"model_type": "demo"}})
	if err != nil || n != 260 || !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("%d, %v\ngot  % x\nwant % x", n, err, got.Bytes(), want)
	}
	const hash = "965e33bfd102d2bee0a592aabb13990211d8fdc80a17db23b9d9a74059264b5e"
	if got := fmt.Sprintf("%x", sha256.Sum256(got.Bytes())); got != hash {
		t.Errorf("SHA-256 %s, want %s", got, hash)
	}
	f := mustOpen(t, save(t, want))
	if err := f.Verify(); err != nil {
		t.Error(err)
	}
	w, _ := f.Tensor("w")
	raw := make([]byte, w.Size)
	if _, err := w.ReadAt(raw, 0); err != nil {
		t.Fatal(err)
	}
	values := make([]float32, 6)
	tensor.Widen(values, raw, tensor.F32)
	if got := fmt.Sprint(w.Shape, values); got != "[2 3] [1 -2 0.5 0 3 -0.25]" {
		t.Error(got)
	}
	contracttest.Cases(t, len(want))
}

// tokens is the metadata of a small language model.
func tokens() map[string]any {
	return map[string]any{
		"architecture": "qwen2", "hidden_size": 2, "num_heads": 1, "gone": nil,
		"tokenizer.vocabulary": []string{"a", "Ġb"}, "tokenizer.merges": []string{"a Ġb"}, "tokenizer.model_type": "bpe",
		"tokenizer.eos_token_id": 1, "chat_template": "{{ x }}",
	}
}

func model() []tensor.Source {
	return []tensor.Source{
		source("model.norm.weight", tensor.F32, []int{2}, floats32(1, 2)),
		source("model.embed_tokens.weight", tensor.BF16, []int{2, 2}, []byte("12345678")),
		source("q", tensor.Q4_K, []int{1, 256}, bytes.Repeat([]byte{7}, 144)),
		source("z", tensor.F16, []int{0}, nil),
	}
}

func TestTiedModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.apr")
	opt := Options{Metadata: tokens(), Writer: "apr/9", Tied: true}
	if err := Write(path, model(), opt); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path)
	if got := strings.Join(f.Flags().Names(), " "); got != "QUANTIZED HAS_VOCAB ROW_MAJOR" {
		t.Errorf("flags %s", got)
	}
	const want = "lm_head.weight bf16 [2 2] 8 plain; model.embed_tokens.weight bf16 [2 2] 8 plain; model.norm.weight f32 [2] 8 plain; " +
		"q q4_k [1 256] 144 plain; z f16 [0] 0 plain"
	if got := describe(f); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	head, _ := f.Entry(headName)
	embed, _ := f.Entry(embedName)
	if head.Offset != embed.Offset || head.Size != embed.Size {
		t.Errorf("head at %d, embedding at %d", head.Offset, embed.Offset)
	}
	if form, err := f.Head(); form != HeadShared || err != nil {
		t.Errorf("head is %v, %v", form, err)
	}
	if err := f.Verify(); err != nil || len(f.Padding()) > 0 || len(f.Deviations()) > 0 || len(f.Warnings()) > 0 || f.Version() != "2.0" {
		t.Error(err, f.Padding(), f.Deviations(), f.Warnings())
	}
	const text = `{"architecture":"qwen2","chat_template":"{{ x }}","hidden_size":2,"num_heads":1,"tied_embeddings":true,"tokenizer.eos_token_id":1,` +
		`"tokenizer.merges":["a Ġb"],"tokenizer.model_type":"bpe","tokenizer.vocabulary":["a","Ġb"],"writer":"apr/9"}`
	if got := f.Metadata().Root().Source(); got != text {
		t.Errorf("metadata %s", got)
	}
	if _, ok := opt.Metadata["writer"]; ok {
		t.Error("the caller's metadata was changed")
	}
	// What was read can be written again, to the same bytes.
	var again []tensor.Source
	for _, x := range f.Tensors() {
		if x.Name != headName {
			again = append(again, x.Source())
		}
	}
	var b bytes.Buffer
	if _, err := Encode(&b, again, Options{Metadata: f.Metadata().Map(), Writer: "apr/9", Tied: true}); err != nil {
		t.Fatal(err)
	}
	if first, _ := os.ReadFile(path); !bytes.Equal(first, b.Bytes()) {
		t.Error("written again, the file differs")
	}
}

func TestWriterRefuses(t *testing.T) {
	f32 := func(name string) tensor.Source { return source(name, tensor.F32, []int{1}, floats32(1)) }
	short := f32("w")
	short.Payload = func(w io.Writer) error { _, err := w.Write([]byte("12")); return err }
	deep := any("x")
	for range 32 {
		deep = []any{deep}
	}
	for _, c := range []struct {
		name    string
		tensors []tensor.Source
		opt     Options
		want    string
	}{
		{"type", []tensor.Source{source("w", tensor.AprQ4, []int{32}, make([]byte, 18))}, Options{}, `tensor "w": type aprq4 is not written to .apr files [E-APR-029]`},
		{"rows", []tensor.Source{source("w", tensor.Q4_K, []int{2, 128}, make([]byte, 144))}, Options{}, `tensor "w": rows of 128 elements are not whole blocks of q4_k [E-APR-030]`},
		{"size", []tensor.Source{source("w", tensor.F32, []int{2}, floats32(1))}, Options{}, `tensor "w": 4 bytes do not hold f32 [2] [E-APR-030]`},
		{"rank", []tensor.Source{source("w", tensor.F32, make([]int, 9), nil)}, Options{}, `tensor "w": 9 dimensions are over the limit of 8 [E-APR-026]`},
		{"name", []tensor.Source{f32("../w")}, Options{}, `tensor "../w": tensor name has a ".." component [E-APR-021]`},
		{"name twice", []tensor.Source{f32("w"), f32("w")}, Options{}, `tensor "w": name is taken [E-APR-025]`},
		{"tied without embedding", []tensor.Source{f32("w")}, Options{Tied: true}, `tensor "model.embed_tokens.weight": is missing, though the head is tied to it [E-APR-053]`},
		{"tied with a head", []tensor.Source{f32(embedName), f32(headName)}, Options{Tied: true}, `tensor "lm_head.weight": is given, though the head is tied to the embedding [E-APR-053]`},
		{"short payload", []tensor.Source{short}, Options{}, `tensor "w": 2 of 4 payload bytes were not produced`},
		{"metadata type", nil, Options{Metadata: map[string]any{"x": struct{}{}}}, `metadata cannot be written: "x": strictjson: cannot write a struct {} [E-APR-054]`},
		{"metadata NaN", nil, Options{Metadata: map[string]any{"x": math.NaN()}}, `metadata cannot be written: "x": strictjson: NaN is not a JSON number [E-APR-054]`},
		{"metadata too large", nil, Options{Metadata: map[string]any{"x": strings.Repeat("x", 16<<20)}}, `metadata of 16777241 bytes is over the limit of 16777216 [E-APR-010]`},
		{"metadata too deep", nil, Options{Metadata: map[string]any{"x": deep}}, `metadata: metadata, offset 53: nested deeper than 32 [E-APR-014]`},
		{"alias conflict", nil, Options{Metadata: map[string]any{"n_embd": 1, "hidden_size": 2}}, `metadata: metadata key "hidden_size": differs from key "n_embd", which means the same [E-APR-040]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			err := Write(filepath.Join(dir, "m.apr"), c.tensors, c.opt)
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("%v left behind", left)
			}
		})
	}
}

// TestShardsThatContradict spoils a model of two shards in every way.
func TestShardsThatContradict(t *testing.T) {
	shard := func(index, count int, names ...string) []byte {
		var d draft
		d.meta = fmt.Sprintf(`{"sharding":{"shard_count":%d,"shard_index":%d,"total_size":0,"pattern":null}}`, count, index)
		for i, n := range names {
			d.lines = append(d.lines, line{n, 0, []uint64{1}, uint64(64 * i), 4})
		}
		d.data = make([]byte, 64*len(names))
		d.header = put16(6, uint16(Sharded))
		return d.build()
	}
	const first, second, index = "m-00001-of-00002.apr", "m-00002-of-00002.apr", "m.apr.index.json"
	for _, c := range []struct {
		name  string
		files map[string][]byte
		open  string
		kind  fault.Kind
		want  string // DIR stands for the directory
	}{
		{"good without an index", map[string][]byte{second: shard(1, 2, "b")}, first, 0, ""},
		{"good with an index", map[string][]byte{second: shard(1, 2, "b"), index: []byte(`{"weight_map":{"a":"` + first + `","b":"` + second + `"}}`)}, second, 0, ""},
		{"missing", nil, first, fault.NotFound, "DIR/" + second + ": file not found [E-FILE-001]"},
		{"tensor in two", map[string][]byte{second: shard(1, 2, "a")}, first, fault.Load, "DIR/" + second + `: tensor "a": is also in shard "` + first + `" [E-SHARD-004]`},
		{"wrong index", map[string][]byte{second: shard(0, 2, "b")}, first, fault.Load, "DIR/" + second + ": says it is shard 1 of 2, but it is file 2 of 2 [E-APR-044]"},
		{"wrong count", map[string][]byte{second: shard(1, 3, "b")}, first, fault.Load, "DIR/" + second + ": says it is shard 2 of 3, but it is file 2 of 2 [E-APR-044]"},
		{"index beyond count", map[string][]byte{second: shard(2, 2, "b")}, first, fault.Format,
			"DIR/" + second + `: metadata key "sharding": shard_index 2 is not below shard_count 2 [E-APR-042]`},
		{"not a shard", map[string][]byte{second: one().build()}, first, fault.Load, "DIR/" + second + ": is listed as a shard, but its flag SHARDED is not set [E-APR-044]"},
		{"tensor not in the index", map[string][]byte{second: shard(1, 2, "b"), index: []byte(`{"weight_map":{"a":"` + first + `"}}`)}, first, fault.Load,
			"DIR/" + second + `: tensor "b": is not in the index "m.apr.index.json" [E-SHARD-005]`},
		{"tensor in none", map[string][]byte{second: shard(1, 2, "b"), index: []byte(`{"weight_map":{"a":"` + first + `","b":"` + second + `","c":"` + first + `"}}`)}, index,
			fault.Load, "DIR/" + index + `: tensor "c": is not in shard "` + first + `", where the index says it is [E-SHARD-007]`},
		{"path that escapes", map[string][]byte{index: []byte(`{"weight_map":{"a":"../x"}}`)}, index, fault.UnsafePath,
			"DIR/" + index + `: tensor "a": shard "../x" is not a plain file name [E-SHARD-001]`},
		{"unknown names", map[string][]byte{"x.apr": shard(0, 2, "a")}, "x.apr", fault.Load,
			"DIR/x.apr: one of 2 shards, whose names neither its name nor its metadata tell [E-APR-043]"},
		{"another number in its name", map[string][]byte{second: shard(0, 2, "b")}, second, fault.Load,
			"DIR/" + second + `: is shard 1 of 2, so its name should be "` + first + `" [E-APR-043]`},
		{"one of one", map[string][]byte{"x.apr": shard(0, 1, "a")}, "x.apr", 0, ""},
		{"too many", map[string][]byte{"x.apr": shard(0, 1001, "a")}, "x.apr", fault.Format, `DIR/x.apr: metadata key "sharding": 1001 shards are over the limit of 1000 [E-APR-042]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want != "" {
				contracttest.Cases(t, 1)
			}
			dir := t.TempDir()
			write := func(name string, b []byte) {
				if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write(first, shard(0, 2, "a"))
			for name, b := range c.files {
				write(name, b)
			}
			f, err := Open(filepath.Join(dir, c.open))
			if err == nil {
				f.Close()
			}
			if want := strings.ReplaceAll(c.want, "DIR", dir); fault.KindOf(err) != c.kind || err != nil && err.Error() != want {
				t.Errorf("got  %v (%v)\nwant %s", err, fault.KindOf(err), want)
			}
		})
	}
}

// TestTruncatedWhileReading shortens an open file to 100 lengths: reading and verifying it give faults.
func TestTruncatedWhileReading(t *testing.T) {
	content := small()
	for i := range 100 {
		n := i * 7919 % len(content)
		path := save(t, content)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, int64(n)); err != nil {
			t.Fatal(err)
		}
		if err := f.Verify(); fault.KindOf(err) != fault.IO && fault.KindOf(err) != fault.Format {
			t.Errorf("cut at %d: Verify: %v", n, err)
		}
		for _, x := range f.Tensors() {
			if _, err := x.ReadAt(make([]byte, x.Size), 0); err != nil && err != io.EOF && fault.KindOf(err) != fault.IO {
				t.Errorf("cut at %d: %v", n, err)
			}
		}
		f.Close()
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.apr")
	embed := source("model.embed_tokens.weight", tensor.F32, []int{1, 2}, floats32(0.5, -1))
	err = Write(path, []tensor.Source{embed}, Options{Metadata: map[string]any{"architecture": "qwen2", "hidden_size": 2}, Tied: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	f, err := Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	hidden, _, _ := f.Metadata().Uint("hidden_size")
	head, _ := f.Head()
	fmt.Println(hidden, head, f.Flags().Names(), f.Verify())
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	// Output:
	// 2 shared [ROW_MAJOR] <nil>
	// lm_head.weight f32 [1 2]
	// model.embed_tokens.weight f32 [1 2]
}
