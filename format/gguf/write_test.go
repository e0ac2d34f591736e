package gguf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/fault"
	"apr/tensor"
)

func source(name string, d tensor.DType, payload string, shape ...int) tensor.Source {
	return tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: shape}, []byte(payload))
}

// TestBytes compares a file with one put together by hand.
func TestBytes(t *testing.T) {
	want := head(4, 11).
		key("general.architecture", String).str("qwen2").
		key("b", Bool).raw("\x01").
		key("u", Uint32).u32(7).
		key("i", Int32).u32(1<<32-2).
		key("f", Float32).f32(0.5).
		key("U", Uint64).u64(9).
		key("I", Int64).u64(1<<64-1).
		key("F", Float64).u64(0x3ff8000000000000).
		key("s", Array).u32(uint32(String)).u64(2).str("x").str("").
		key("n", Array).u32(uint32(Int32)).u64(2).u32(1, 2).
		key("x", Array).u32(uint32(Float32)).u64(1).f32(1).
		tensor("token_embd.weight", 0, 0, 2, 3).
		tensor("blk.2.attn_q.bias", 30, 32, 1).
		tensor("blk.10.attn_q.bias", 1, 64, 1).
		tensor("output_norm.weight", 8, 96, 32).
		pad(32, 0).raw("012345678901234567890123" + strings.Repeat("\x00", 8)).
		raw("ab" + strings.Repeat("\x00", 30)).raw("cd" + strings.Repeat("\x00", 30)).
		raw(strings.Repeat("q", 34) + strings.Repeat("\x00", 30)).b
	path := filepath.Join(t.TempDir(), "m.gguf")
	err := Write(path, []tensor.Source{
		source("output_norm.weight", tensor.Q8_0, strings.Repeat("q", 34), 32),
		source("blk.10.attn_q.bias", tensor.F16, "cd", 1),
		source("blk.2.attn_q.bias", tensor.BF16, "ab", 1),
		source("token_embd.weight", tensor.F32, "012345678901234567890123", 3, 2),
	}, Options{Metadata: []KV{
		{"general.architecture", "qwen2"}, {"b", true}, {"u", uint32(7)}, {"i", int32(-2)}, {"f", float32(0.5)}, {"U", uint64(9)}, {"I", int64(-1)},
		{"F", 1.5}, {"s", []string{"x", ""}}, {"n", []int32{1, 2}}, {"x", []float32{1}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\ngot  %q\nwant %q", err, got, want)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if len(f.Warnings()) > 0 || f.Version() != 3 {
		t.Errorf("%v", f.Warnings())
	}
}

// TestRewrite writes the file of llama.cpp anew and finds every tensor's bytes again.
func TestRewrite(t *testing.T) {
	a, err := Open("../../testdata/models/gosrc-q4_k_m.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var sources []tensor.Source
	for _, x := range a.Tensors() {
		sources = append(sources, x.Source())
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := Write(path, sources, Options{}); err != nil {
		t.Fatal(err)
	}
	b, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if len(a.Tensors()) != 75 || len(b.Tensors()) != 75 {
		t.Fatalf("%d and %d tensors", len(a.Tensors()), len(b.Tensors()))
	}
	for i, x := range a.Tensors() {
		y := b.Tensors()[i]
		p, errP := io.ReadAll(io.NewSectionReader(x, 0, x.Size))
		q, errQ := io.ReadAll(io.NewSectionReader(y, 0, y.Size))
		if !x.Equal(y.Info) || !bytes.Equal(p, q) || errP != nil || errQ != nil {
			t.Errorf("%v and %v differ (%v, %v)", x.Info, y.Info, errP, errQ)
		}
	}
}

func TestWriteRefused(t *testing.T) {
	norm := source("output_norm.weight", tensor.F32, "1234", 1)
	broken := norm
	broken.Payload = func(io.Writer) error { return errors.New("disk on fire") }
	for _, c := range []struct {
		name    string
		tensors []tensor.Source
		meta    []KV
		kind    fault.Kind
		want    string // after the path
	}{
		{"long name", []tensor.Source{source(strings.Repeat("w", 64), tensor.F32, "1234", 1)}, nil, fault.Invalid, `tensor "` + strings.Repeat("w", 64) + `": tensor name of 64 bytes is over the limit of 63 [E-GGUF-060]`},
		{"twice", []tensor.Source{norm, norm}, nil, fault.Format, `tensor "output_norm.weight": occurs twice [E-GGUF-032]`},
		{"type", []tensor.Source{source("output_norm.weight", tensor.U8, "1", 1)}, nil, fault.Format, `tensor "output_norm.weight": type u8 cannot be held by GGUF [E-GGUF-061]`},
		{"blocks", []tensor.Source{source("output_norm.weight", tensor.Q8_0, strings.Repeat("q", 34), 31)}, nil, fault.Format,
			`tensor "output_norm.weight": rows of 31 elements are not whole blocks of 32, which q8_0 has [E-GGUF-036]`},
		{"rank", []tensor.Source{source("output_norm.weight", tensor.F32, "1234", 1, 1, 1, 1, 1)}, nil, fault.Format, `tensor "output_norm.weight": 5 dimensions are over the limit of 4 [E-GGUF-033]`},
		{"size", []tensor.Source{source("output_norm.weight", tensor.F32, "123", 1)}, nil, fault.Format, `tensor "output_norm.weight": 3 bytes are not those of f32 [1] [E-GGUF-062]`},
		{"key", nil, []KV{{"ä", true}}, fault.Format, `key "ä" is not 1 to 65535 bytes of printable ASCII [E-GGUF-011]`},
		{"key twice", nil, []KV{{"k", true}, {"k", true}}, fault.Format, `key "k": occurs twice [E-GGUF-012]`},
		{"alignment", nil, []KV{{"general.alignment", uint32(64)}}, fault.Format, `key "general.alignment": the alignment is not for the caller to choose [E-GGUF-018]`},
		{"value", nil, []KV{{"k", 1}}, fault.Format, `key "k": a value of type int, or of this length, cannot be written [E-GGUF-063]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			err := Write(path, c.tensors, Options{Metadata: c.meta})
			if err == nil || err.Error() != path+": "+c.want || fault.KindOf(err) != c.kind {
				t.Errorf("got %v (%v), want %s", err, fault.KindOf(err), c.want)
			}
			nothing(t, path)
		})
	}
	path := filepath.Join(t.TempDir(), "m.gguf")
	if err := Write(path, []tensor.Source{broken}, Options{}); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("failing payload: %v", err)
	}
	nothing(t, path)
	for i, want := range []fault.Kind{0, fault.Invalid} {
		if err := Write(path, []tensor.Source{norm}, Options{}); fault.KindOf(err) != want {
			t.Errorf("write %d: %v", i+1, err)
		}
	}
	if err := Write(path, nil, Options{Force: true}); err != nil {
		t.Error(err)
	}
}

// nothing requires an empty directory.
func nothing(t *testing.T, path string) {
	t.Helper()
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("%v left behind (%v)", entries, err)
	}
}

func Example() {
	dir, _ := os.MkdirTemp("", "")
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "m.gguf")
	norm := tensor.BytesSource(tensor.Info{Name: "output_norm.weight", DType: tensor.F32, Shape: []int{2}}, make([]byte, 8))
	if err := Write(path, []tensor.Source{norm}, Options{Metadata: []KV{{"general.architecture", "qwen2"}}}); err != nil {
		fmt.Println(err)
	}
	f, err := Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	arch, _, _ := f.Metadata().Str("general.architecture")
	for _, t := range f.Tensors() {
		fmt.Println(arch, t.Name, t.DType, t.Shape)
	}
	// Output: qwen2 output_norm.weight f32 [2]
}
