//go:build !windows

package safetensors

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

func source(name string, d tensor.DType, shape []int, payload string) tensor.Source {
	return tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, []byte(payload))
}

func model() []tensor.Source {
	return []tensor.Source{
		source("b", tensor.U8, []int{3}, "xyz"),
		source("c", tensor.F32, []int{1, 2}, "12345678"),
		source("a", tensor.BF16, []int{}, "hh"),
		source("empty", tensor.F32, []int{0, 5}, ""),
	}
}

func TestBytes(t *testing.T) {
	const header = `{"__metadata__":{"format":"pt"},"c":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},` +
		`"empty":{"dtype":"F32","shape":[0,5],"data_offsets":[8,8]},"a":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},` +
		`"b":{"dtype":"U8","shape":[3],"data_offsets":[10,13]}}`
	padded := header + strings.Repeat(" ", (8-len(header)%8)%8)
	want := append(raw(padded, 0), "12345678hhxyz"...)
	var got bytes.Buffer
	n, err := Encode(&got, model(), nil)
	if err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes, %v\ngot  %q\nwant %q", n, err, got.Bytes(), want)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit int64
		files string
	}{
		{"single", 0, "[model.safetensors]"},
		{"just fits", 13, "[model.safetensors]"},
		{"shards", 8, "[model-00001-of-00002.safetensors model-00002-of-00002.safetensors model.safetensors.index.json]"},
		{"tensors over the limit", 1, "[model-00001-of-00003.safetensors model-00002-of-00003.safetensors model-00003-of-00003.safetensors model.safetensors.index.json]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			dir := t.TempDir()
			files, err := WriteDir(dir, model(), c.limit, Options{Metadata: map[string]string{"k": "v"}})
			if err != nil || fmt.Sprint(files) != c.files {
				t.Fatalf("%v, %v", files, err)
			}
			for _, path := range []string{dir, filepath.Join(dir, files[len(files)-1])} {
				f, err := Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if got, want := describe(f), "a bf16 [] 2, b u8 [3] 3, c f32 [1 2] 8, empty f32 [0 5] 0"; got != want {
					t.Errorf("%s: %s", path, got)
				}
				if len(f.Warnings()) > 0 || fmt.Sprint(f.Metadata()) != "map[format:pt k:v]" || f.Path() != path || len(f.Files()) != max(1, len(files)-1) {
					t.Errorf("%v %v %v", f.Warnings(), f.Metadata(), f.Files())
				}
				for _, s := range model() {
					got, _ := f.Tensor(s.Name)
					var want bytes.Buffer
					if err := s.Payload(&want); err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(io.NewSectionReader(got, 0, got.Size))
					if err != nil || !bytes.Equal(b, want.Bytes()) {
						t.Errorf("%s: %q, %v", s.Name, b, err)
					}
				}
			}
			again := t.TempDir()
			if _, err := WriteDir(again, model(), c.limit, Options{Metadata: map[string]string{"k": "v"}}); err != nil {
				t.Fatal(err)
			}
			for _, name := range files {
				if hash(t, filepath.Join(dir, name)) != hash(t, filepath.Join(again, name)) {
					t.Errorf("%s differs when written again", name)
				}
			}
		})
	}
}

func hash(t *testing.T, path string) [32]byte {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

func TestWriterRefuses(t *testing.T) {
	f32 := func(name string) tensor.Source { return source(name, tensor.F32, []int{1}, "1234") }
	wrong := source("w", tensor.F32, []int{2}, "1234")
	short := source("w", tensor.F32, []int{1}, "1234")
	short.Payload = func(w io.Writer) error { _, err := w.Write([]byte("12")); return err }
	broken := source("w", tensor.F32, []int{1}, "1234")
	broken.Payload = func(io.Writer) error { return errors.New("device lost") }
	for _, c := range []struct {
		name    string
		tensors []tensor.Source
		want    string
	}{
		{"block type", []tensor.Source{source("w", tensor.Q4_K, []int{256}, strings.Repeat("x", 144))}, `tensor "w": safetensors cannot hold the type q4_k [E-ST-050]`},
		{"name twice", []tensor.Source{f32("w"), f32("w")}, `tensor "w": name is taken [E-ST-012]`},
		{"reserved name", []tensor.Source{f32("__metadata__")}, `tensor "__metadata__": name is taken [E-ST-012]`},
		{"bad name", []tensor.Source{f32("a\n")}, `tensor "a\n": tensor name has a control character [E-ST-021]`},
		{"wrong size", []tensor.Source{wrong}, `tensor "w": 4 bytes do not hold f32 [2] [E-ST-038]`},
		{"rank", []tensor.Source{source("w", tensor.F32, make([]int, 9), "")}, `tensor "w": 9 dimensions are over the limit of 8 [E-ST-031]`},
		{"short payload", []tensor.Source{short}, `tensor "w": 2 of 4 payload bytes were not produced`},
		{"failing payload", []tensor.Source{broken}, `tensor "w": device lost`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			err := Write(filepath.Join(dir, "m"), c.tensors, Options{})
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("%v left behind", left)
			}
			if _, err := WriteDir(dir, append(c.tensors, f32("x")), 4, Options{}); err == nil {
				t.Error("WriteDir accepted it")
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Errorf("%v left behind by WriteDir", left)
			}
		})
	}
}

func TestOverwrite(t *testing.T) {
	dir := t.TempDir()
	if _, err := WriteDir(dir, model(), 8, Options{}); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int64{8, 0} {
		if _, err := WriteDir(dir, model(), limit, Options{}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
	if _, err := WriteDir(dir, model(), 0, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if filepath.Base(f.Files()[0]) != SingleName {
		t.Errorf("an old index hides the new file: %v", f.Files())
	}
	if _, err := WriteDir(dir, model(), 8, Options{}); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an index beside an old file: %v", err)
	}
	if _, err := WriteDir(dir, model(), 8, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	again, err := Open(dir)
	if err != nil {
		t.Fatalf("shards in place of a file: %v", err)
	}
	again.Close()
}

// TestIndex holds every way in which an index and its shards can disagree.
func TestIndex(t *testing.T) {
	a := raw(`{"a":{`+f32x2+`}}`, 8)
	b := raw(`{"b":{`+f32x2+`}}`, 8)
	ab := raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2)
	for _, c := range []struct {
		name  string
		index string
		kind  fault.Kind
		want  string // DIR stands for the directory
	}{
		{"good", `{"metadata":{"total_size":16},"weight_map":{"a":"1","b":"2"}}`, 0, ""},
		{"parent", `{"weight_map":{"a":"../1"}}`, fault.UnsafePath, `DIR/model.safetensors.index.json: tensor "a": shard "../1" is not a plain file name [E-SHARD-001]`},
		{"absolute", `{"weight_map":{"a":"/etc/passwd"}}`, fault.UnsafePath, `DIR/model.safetensors.index.json: tensor "a": shard "/etc/passwd" is not a plain file name [E-SHARD-001]`},
		{"backslash", `{"weight_map":{"a":"x\\1"}}`, fault.UnsafePath, `DIR/model.safetensors.index.json: tensor "a": shard "x\\1" is not a plain file name [E-SHARD-001]`},
		{"drive", `{"weight_map":{"a":"C:1"}}`, fault.UnsafePath, `DIR/model.safetensors.index.json: tensor "a": shard "C:1" is not a plain file name [E-SHARD-001]`},
		{"link out", `{"weight_map":{"a":"out"}}`, fault.UnsafePath, `DIR/out: link leads out of "DIR" [E-FILE-007]`},
		{"missing shard", `{"weight_map":{"a":"1","b":"3"}}`, fault.NotFound, `DIR/3: file not found [E-FILE-001]`},
		{"shard a directory", `{"weight_map":{"a":"dir"}}`, fault.NotFound, `DIR/dir: not a file: it is a directory [E-FILE-002]`},
		{"in two shards", `{"weight_map":{"a":"1","b":"ab"}}`, fault.Load, `DIR/ab: tensor "a": is also in shard "1" [E-SHARD-004]`},
		{"not in the index", `{"weight_map":{"a":"ab"}}`, fault.Load, `DIR/ab: tensor "b": is not in the index "model.safetensors.index.json" [E-SHARD-005]`},
		{"in another shard", `{"weight_map":{"a":"2","b":"1"}}`, fault.Load, `DIR/1: tensor "a": is in shard "1", but the index says "2" [E-SHARD-006]`},
		{"in none", `{"weight_map":{"a":"1","b":"2","c":"2"}}`, fault.Load, `DIR/model.safetensors.index.json: tensor "c": is not in shard "2", where the index says it is [E-SHARD-007]`},
		{"empty", `{"weight_map":{}}`, fault.Format, `DIR/model.safetensors.index.json: weight_map is empty [E-SHARD-002]`},
		{"no map", `{"metadata":{}}`, fault.Format, `DIR/model.safetensors.index.json: line 1, column 1: key "weight_map" is missing [E-JSON-008]`},
		{"a configuration", `{"model_type":"qwen2"}`, fault.Format,
			`DIR/model.safetensors.index.json: is a model's configuration, which has no weights [E-SHARD-016]`},
		{"map an array", `{"weight_map":[]}`, fault.Format, `DIR/model.safetensors.index.json: line 1, column 15: expected an object, found an array [E-JSON-007]`},
		{"file a number", `{"weight_map":{"a":1}}`, fault.Format, `DIR/model.safetensors.index.json: line 1, column 20: expected a string, found 1 [E-JSON-007]`},
		{"tensor twice", `{"weight_map":{"a":"1","\u0061":"2"}}`, fault.Format,
			`DIR/model.safetensors.index.json: line 1, column 24: key "a" occurs twice [E-JSON-003]`},
		{"cut", `{"weight_map":`, fault.Format, `DIR/model.safetensors.index.json: line 1, column 15: expected a value, found end of text [E-JSON-001]`},
		{"bad shard", `{"weight_map":{"a":"bad"}}`, fault.Format, `DIR/bad: offset 0: file of 3 bytes is too short for a header length of 8 bytes [E-ST-001]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want != "" {
				contracttest.Cases(t, 1)
			}
			root := t.TempDir()
			if real, err := filepath.EvalSymlinks(root); err == nil {
				root = real
			}
			dir := filepath.Join(root, "model")
			files := map[string][]byte{"1": a, "2": b, "ab": ab, "bad": []byte("bad"), IndexName: []byte(c.index), "../secret": a}
			if err := os.MkdirAll(filepath.Join(dir, "dir"), 0o700); err != nil {
				t.Fatal(err)
			}
			for name, content := range files {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Symlink("../secret", filepath.Join(dir, "out")); err != nil {
				t.Fatal(err)
			}
			f, err := Open(dir)
			if err == nil {
				f.Close()
			}
			want := strings.ReplaceAll(c.want, "DIR", dir)
			if fault.KindOf(err) != c.kind || err != nil && err.Error() != want {
				t.Errorf("got  %v (%v)\nwant %s (%v)", err, fault.KindOf(err), want, c.kind)
			}
		})
	}
}

// TestShrunkFile shortens a file after it was opened: the read fails and says where, nothing crashes.
func TestShrunkFile(t *testing.T) {
	path := save(t, raw(one(`"F32"`, "[2]", "[0,8]"), 8))
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Truncate(path, 62); err != nil {
		t.Fatal(err)
	}
	w, _ := f.Tensor("w")
	if _, err := w.ReadAt(make([]byte, 8), 0); fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), `tensor "w", offset 6`) {
		t.Errorf("got %v", err)
	}
}

// TestTruncatedWhileReading shortens a file to 100 lengths while its payload is being read.
func TestTruncatedWhileReading(t *testing.T) {
	const size = 1 << 16
	content := raw(one(`"U8"`, "[65536]", "[0,65536]"), size)
	header := int64(len(content) - size)
	for i := range int64(100) {
		path := save(t, content)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		w, _ := f.Tensor("w")
		keep := i * 7919 % size // bytes of the payload
		half := make([]byte, size/2)
		if _, err := w.ReadAt(half, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, header+keep); err != nil {
			t.Fatal(err)
		}
		n, err := w.ReadAt(half, size/2)
		if want := max(0, keep-size/2); int64(n) != want || fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), `tensor "w"`) {
			t.Errorf("cut at %d: %d bytes, %v", keep, n, err)
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
	path := filepath.Join(dir, "model.safetensors")
	w := tensor.BytesSource(tensor.Info{Name: "w", DType: tensor.BF16, Shape: []int{1, 2}}, []byte{0x80, 0x3f, 0, 0xc0})
	if err := Write(path, []tensor.Source{w}, Options{}); err != nil {
		fmt.Println(err)
		return
	}
	f, err := Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	for _, t := range f.Tensors() {
		raw := make([]byte, t.Size)
		if _, err := t.ReadAt(raw, 0); err != nil {
			fmt.Println(err)
			return
		}
		values := make([]float32, t.Elements())
		tensor.Widen(values, raw, t.DType)
		fmt.Println(t.Name, t.DType, t.Shape, values)
	}
	// Output: w bf16 [1 2] [1 -2]
}
