package model_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"testing"

	"apr/internal/near"
	"apr/tensor"
)

const (
	gosrc     = "../testdata/models/gosrc"
	gosrcGGUF = "../testdata/models/gosrc-q4_k_m.gguf"
)

// The configuration that llama.cpp wrote is that of the Hugging Face folder it was made from.
func TestGGUFConfig(t *testing.T) {
	a, b := open(t, gosrcGGUF), open(t, gosrc)
	must(t, a.CheckTensors())
	got, want := a.Config, b.Config
	if got.DType != tensor.Q4_K {
		t.Errorf("type %s", got.DType)
	}
	got.DType = want.DType
	if got != want {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
}

// Every value is that of an independent program, bit for bit (testdata/models/dequantise.py).
func TestGGUFValues(t *testing.T) {
	raw, err := os.ReadFile("../testdata/models/gosrc-q4_k_m.json")
	must(t, err)
	var want map[string]string
	must(t, json.Unmarshal(raw, &want))
	f, original := open(t, gosrcGGUF), open(t, gosrc)
	if len(want) != 75 || len(f.File.Tensors()) != len(want) {
		t.Fatalf("%d tensors, %d known", len(f.File.Tensors()), len(want))
	}
	hashes := map[string]bool{}
	for _, h := range want {
		hashes[h] = true
	}
	for _, x := range f.File.Tensors() {
		got, err := f.ReadFloat32(x.Name)
		must(t, err)
		b := make([]byte, 4*len(got))
		tensor.Narrow(b, got, tensor.F32)
		sum := sha256.Sum256(b)
		if !hashes[hex.EncodeToString(sum[:])] {
			t.Errorf("%s: other values", x.Name)
		}
		// and it is the tensor that its name says
		exact, err := original.ReadFloat32(x.Name)
		must(t, err)
		if x.DType == tensor.F32 {
			near.Check(t, x.Name, got, exact, 0)
			continue
		}
		if c := cosine(got, exact); !(c > 0.99) {
			t.Errorf("%s: cosine %g to the original", x.Name, c)
		}
	}
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}
