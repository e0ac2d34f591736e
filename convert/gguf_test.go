package convert

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"apr/format/gguf"
	"apr/internal/fault"
	"apr/tensor"
)

const gosrcGGUF = "../testdata/models/gosrc-q4_k_m.gguf"

// A model quantised here has the keys, values and types of tensors that llama.cpp gave it.
func TestGGUFOfLlamaCPP(t *testing.T) {
	out := filepath.Join(t.TempDir(), "m.gguf")
	r, err := Write(context.Background(), open(t, shared), out, Options{Scheme: Q4_K_M})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Warnings)+len(r.Widened)+len(r.KeptBF16) > 0 {
		t.Errorf("%+v", r)
	}
	got, want := openGGUF(t, out), openGGUF(t, gosrcGGUF)
	for _, key := range want.Metadata().Keys() {
		if a, b := value(t, got.Metadata(), key), value(t, want.Metadata(), key); a != b {
			t.Errorf("%s: %.200s, llama.cpp has %.200s", key, a, b)
		}
	}
	if len(got.Tensors()) != len(want.Tensors()) {
		t.Fatalf("%d tensors, llama.cpp has %d", len(got.Tensors()), len(want.Tensors()))
	}
	for i, x := range want.Tensors() {
		if y := got.Tensors()[i]; !x.Equal(y.Info) {
			t.Errorf("%v, llama.cpp has %v", y.Info, x.Info)
		}
	}
	rest := strings.Join(got.Metadata().Keys()[:4], " ")
	if rest != "general.architecture general.type general.name general.size_label" || value(t, got.Metadata(), "general.size_label") != "string 6.9M" {
		t.Errorf("begins with %s, size %s", rest, value(t, got.Metadata(), "general.size_label"))
	}
}

func openGGUF(t *testing.T, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// value is a metadata value with its type as text.
func value(t *testing.T, m *gguf.Metadata, key string) string {
	t.Helper()
	typ, elem, _, ok := m.Type(key)
	var v any
	var err error
	switch {
	case !ok:
		return "nothing"
	case typ == gguf.String:
		v, _, err = m.Str(key)
	case typ == gguf.Bool:
		v, _, err = m.Bool(key)
	case typ == gguf.Array && elem == gguf.String:
		v, _, err = m.Strings(key)
	case typ == gguf.Array:
		v, _, err = m.Ints(key)
	default:
		v, _, err = m.Float(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(typ, " ", v)
}

func TestFallback(t *testing.T) {
	for _, c := range []struct {
		d    tensor.DType
		cols int
		want tensor.DType
	}{
		{tensor.Q4_K, 896, tensor.Q5_0}, {tensor.Q6_K, 896, tensor.Q8_0}, {tensor.Q4_K, 48, tensor.F16}, {tensor.Q6_K, 48, tensor.F16},
		{tensor.Q8_0, 48, tensor.F16},
		{tensor.Q3_K, 896, tensor.IQ4_NL}, {tensor.Q2_K, 896, tensor.IQ4_NL}, {tensor.Q2_K, 48, tensor.F16},
	} {
		got, reason := fallback(c.d, c.cols)
		if got != c.want || reason != fmt.Sprintf("rows of %d are not whole blocks of %s: %s", c.cols, c.d, c.want) {
			t.Errorf("%s of %d: %s, %q", c.d, c.cols, got, reason)
		}
	}
}

// A damaged or foreign GGUF file is refused before anything is written.
func TestGGUFIncomplete(t *testing.T) {
	in, out := filepath.Join(t.TempDir(), "in.gguf"), filepath.Join(t.TempDir(), "out.apr")
	norm := tensor.BytesSource(tensor.Info{Name: "model.norm.weight", DType: tensor.F32, Shape: []int{1}}, make([]byte, 4))
	if err := gguf.Write(in, []tensor.Source{norm}, gguf.Options{Metadata: []gguf.KV{{Key: "general.architecture", Value: "bert"}}}); err != nil {
		t.Fatal(err)
	}
	c := open(t, in)
	if _, err := Write(context.Background(), c, out, Options{}); fault.KindOf(err) != fault.Format {
		t.Errorf("got %v", err)
	}
	s, err := Summarize(context.Background(), c, true)
	if err != nil || s.Format != "gguf" || s.TensorCount != 1 || len(s.Warnings) != 2 || s.Provenance["architecture"] != nil {
		t.Errorf("%+v, %v", s, err)
	}
}
