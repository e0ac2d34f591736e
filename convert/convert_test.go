package convert

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/quant"
	"apr/tensor"
)

// TestRowReader reads the same matrix from every layout, in one go and row by row.
func TestRowReader(t *testing.T) {
	const rows, cols = 5, 320 // a row is one block and a quarter
	x := make([]float32, rows*cols)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)*0.37)) * 0.1
	}
	flat := make([]byte, 7*144) // ⌈1600/256⌉ blocks
	padded := make([]byte, rows*2*144)
	fill := append(append([]float32{}, x...), make([]float32, 7*256-len(x))...)
	if err := quant.Quantize(flat, fill, tensor.Q4_K); err != nil {
		t.Fatal(err)
	}
	wantFlat := make([]float32, 7*256)
	quant.Dequantize(wantFlat, flat, tensor.Q4_K)
	wantPadded := make([]float32, len(x))
	for r := range rows {
		row := make([]float32, 512)
		copy(row, x[r*cols:(r+1)*cols])
		if err := quant.Quantize(padded[r*288:(r+1)*288], row, tensor.Q4_K); err != nil {
			t.Fatal(err)
		}
		quant.Dequantize(row, padded[r*288:(r+1)*288], tensor.Q4_K)
		copy(wantPadded[r*cols:], row[:cols])
	}
	f16 := make([]byte, 2*len(x))
	tensor.Narrow(f16, x, tensor.F16)
	wantF16 := make([]float32, len(x))
	tensor.Widen(wantF16, f16, tensor.F16)
	q8 := append([]byte{0, 0, 0, 0x3f}, make([]byte, len(x))...) // scale 0.5
	wantQ8 := make([]float32, len(x))
	for i := range wantQ8 {
		q8[4+i] = byte(i)
		wantQ8[i] = 0.5 * float32(int8(i))
	}
	for _, tt := range []struct {
		name string
		d    tensor.DType
		raw  []byte
		want []float32
	}{
		{"flat", tensor.Q4_K, flat, wantFlat[:len(x)]},
		{"row-padded", tensor.Q4_K, padded, wantPadded},
		{"half", tensor.F16, f16, wantF16},
		{"one scale", tensor.AprQ8, q8, wantQ8},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := newRowReader("f", stored("w", tt.d, []int{rows, cols}, tt.raw))
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range []int{1, 2, rows} {
				got := make([]float32, len(x))
				for lo := 0; lo < rows; lo += step {
					hi := min(rows, lo+step)
					if err := r.read(got[lo*cols:hi*cols], lo, hi); err != nil {
						t.Fatal(err)
					}
				}
				for i := range got {
					if got[i] != tt.want[i] {
						t.Fatalf("step %d: value %d is %v, want %v", step, i, got[i], tt.want[i])
					}
				}
			}
		})
	}
	for _, tt := range []struct {
		name string
		d    tensor.DType
		size int
		kind fault.Kind
	}{
		{"short", tensor.F32, 4*len(x) - 1, fault.Format},
		{"no layout fits", tensor.Q4_K, 8 * 144, fault.Format},
		{"integers", tensor.I8, len(x), fault.Unavailable},
	} {
		if _, err := newRowReader("f", stored("w", tt.d, []int{rows, cols}, make([]byte, tt.size))); fault.KindOf(err) != tt.kind {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestMeasuredError compares the reported error with one computed from the files.
func TestMeasuredError(t *testing.T) {
	c := open(t, shared)
	out := filepath.Join(t.TempDir(), "m.apr")
	rep, err := Write(context.Background(), c, out, Options{Scheme: BF16})
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range rep.RMSE {
		if e != 0 {
			t.Errorf("bf16 to bf16 of %s: rmse %v", name, e)
		}
	}
	q := filepath.Join(t.TempDir(), "q.apr")
	if rep, err = Write(context.Background(), c, q, Options{Scheme: Q6_K}); err != nil {
		t.Fatal(err)
	}
	if len(rep.RMSE) != 44 {
		t.Errorf("%d errors, want one for each of 44 matrices", len(rep.RMSE))
	}
	o := open(t, q)
	for _, name := range []string{headName, "model.layers.3.mlp.down_proj.weight"} {
		var sum float64
		a, b := values(t, c, name), values(t, o, name)
		for i := range a {
			d := float64(a[i]) - float64(b[i])
			sum += d * d
		}
		want := math.Sqrt(sum / float64(len(a)))
		if got := rep.RMSE[name]; !(math.Abs(got-want) <= 1e-12*want) || want == 0 {
			t.Errorf("%s: rmse %v, want %v", name, got, want)
		}
	}
}

// values decodes a whole tensor.
func values(t *testing.T, c *Container, name string) []float32 {
	t.Helper()
	s, ok := c.File.Tensor(name)
	if !ok {
		t.Fatalf("no tensor %s", name)
	}
	r, err := newRowReader(c.Path, s)
	if err != nil {
		t.Fatal(err)
	}
	v := make([]float32, s.Elements())
	if err := r.read(v, 0, s.Rows()); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestTiedRoundTrip converts a tied model: the .apr has two names for one payload, the folder one tensor.
func TestTiedRoundTrip(t *testing.T) {
	cfg := tiny(true)
	a := open(t, folder(t, cfg, weightsOf(cfg), tensor.F32))
	out := filepath.Join(t.TempDir(), "m.apr")
	if _, err := Write(context.Background(), a, out, Options{}); err != nil {
		t.Fatal(err)
	}
	b := open(t, out)
	if n := len(b.File.Tensors()); n != len(a.File.Tensors())+1 {
		t.Errorf("%d tensors, want the head's name beside %d", n, len(a.File.Tensors()))
	}
	back := filepath.Join(t.TempDir(), "hf")
	if _, err := Write(context.Background(), b, back, Options{}); err != nil {
		t.Fatal(err)
	}
	rep, err := Diff(context.Background(), a, open(t, back), DiffOptions{}, nil)
	if err != nil || !rep.Identical {
		t.Errorf("%v, %+v", err, rep)
	}
	rep, err = Diff(context.Background(), a, b, DiffOptions{Values: true}, nil)
	if err != nil || !rep.Identical {
		t.Errorf("%v, %+v", err, rep)
	}
}

// TestShards exports a tied model in files of at most 100 kB: the index lists every tensor, the head is none of them.
func TestShards(t *testing.T) {
	cfg := tiny(true)
	a := open(t, folder(t, cfg, weightsOf(cfg), tensor.BF16))
	dir := filepath.Join(t.TempDir(), "hf")
	rep, err := Write(context.Background(), a, dir, Options{To: "hf", MaxShard: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
		"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
	}
	if !slices.Equal(rep.Files, want) {
		t.Errorf("files %q, want %q", rep.Files, want)
	}
	var size int64
	for _, name := range rep.Files {
		st, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		size += st.Size()
	}
	if rep.OutputSize != size {
		t.Errorf("size %d, want %d", rep.OutputSize, size)
	}
	b := open(t, dir)
	if got, err := b.Config(); err != nil || !got.Tied || got.DType != tensor.BF16 {
		t.Errorf("configuration %+v, %v", got, err)
	}
	if _, ok := b.File.Tensor(headName); ok {
		t.Error("the tied head is stored")
	}
	if d, err := Diff(context.Background(), a, b, DiffOptions{}, nil); err != nil || !d.Identical {
		t.Errorf("%+v, %v", d, err)
	}
}

// TestSafetensorsAlone: one file of safetensors carries everything; what is wrong with it is a fault, not a panic.
func TestSafetensorsAlone(t *testing.T) {
	cfg := tiny(true)
	a := open(t, folder(t, cfg, weightsOf(cfg), tensor.BF16))
	out := filepath.Join(t.TempDir(), "m.safetensors")
	if _, err := Write(context.Background(), a, out, Options{}); err != nil {
		t.Fatal(err)
	}
	if d, err := Diff(context.Background(), a, open(t, out), DiffOptions{}, nil); err != nil || !d.Identical {
		t.Errorf("%+v, %v", d, err)
	}
	for _, text := range []string{"", "{", "[]", "{}", `{"architecture":"qwen2"}`, `{"hidden_size":1,"hidden_size":2}`} {
		out := filepath.Join(t.TempDir(), "bad.safetensors")
		s := tensor.BytesSource(tensor.Info{Name: embedName, DType: tensor.BF16, Shape: []int{1, 1}}, []byte{0, 0})
		if err := safetensors.Write(out, []tensor.Source{s}, safetensors.Options{Metadata: map[string]string{modelfile.SafetensorsKey: text}}); err != nil {
			t.Fatal(err)
		}
		c := open(t, out)
		if _, err := c.Config(); fault.KindOf(err) != fault.Format && fault.KindOf(err) != fault.Load {
			t.Errorf("%q: configuration: %v", text, err)
		}
		if _, err := c.Tokenizer(); fault.KindOf(err) != fault.Format && fault.KindOf(err) != fault.Load {
			t.Errorf("%q: tokenizer: %v", text, err)
		}
	}
}

func TestKeptBF16(t *testing.T) {
	cfg := tiny(false)
	c := open(t, folder(t, cfg, weightsOf(cfg), tensor.F32))
	_, rep, err := Plan(c, "x.apr", Options{Scheme: Q4_K})
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.KeptBF16) != 9 { // 7 matrices of a layer, embedding and head
		t.Errorf("kept %q", rep.KeptBF16)
	}
}

func TestWriteRefuses(t *testing.T) {
	cfg := tiny(false)
	without := weightsOf(cfg)
	delete(without, "model.norm.weight")
	extra := weightsOf(cfg)
	extra["model.layers.7.mlp.up_proj.weight"] = []float32{1}
	bad := weightsOf(cfg)
	bad[headName][33] = nan
	sizes := cfg.Sizes()
	sizes.Width = 32
	wrong := arch.Qwen2(sizes)
	for _, tt := range []struct {
		name   string
		dir    string
		scheme Scheme
		kind   fault.Kind
		want   string
	}{
		{"missing tensor", folder(t, cfg, without, tensor.F32), Keep, fault.Load, `tensor "model.norm.weight": is missing`},
		{"foreign tensor", folder(t, cfg, extra, tensor.F32), Keep, fault.Load, "is not part of a qwen2 model"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "m.apr")
			_, err := Write(context.Background(), open(t, tt.dir), out, Options{Scheme: tt.scheme})
			if fault.KindOf(err) != tt.kind || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %s: %s", err, tt.kind, tt.want)
			}
			if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
				t.Errorf("%v left behind", left)
			}
		})
	}
	dir := folder(t, cfg, weightsOf(cfg), tensor.F32)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), hfJSON(t, wrong, tensor.F32), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(context.Background(), open(t, dir), filepath.Join(t.TempDir(), "m.apr"), Options{}); fault.KindOf(err) != fault.Load {
		t.Errorf("wrong shape: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	out := filepath.Join(t.TempDir(), "m.apr")
	if _, err := Write(ctx, open(t, shared), out, Options{Scheme: Q4_K}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(out)); len(left) > 0 {
		t.Errorf("%v left behind", left)
	}
}

// TestQuantiseNaN requires that a value no block can hold is an error that names the tensor.
func TestQuantiseNaN(t *testing.T) {
	x := make([]float32, 512)
	x[300] = nan
	r, err := newRowReader("f", f32("w", []int{2, 256}, x...))
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = (&encoder{}).chunk(r, tensor.Q4_K, 0, 2)
	if fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), `f: tensor "w": value 300 (row 1, column 44) is NaN or infinite`) {
		t.Errorf("got %v", err)
	}
}

func TestOverflow(t *testing.T) {
	big := []float32{1, -1e6, 65519, 65504}
	r, err := newRowReader("f", f32("w", []int{1, 4}, big...))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := (&encoder{}).chunk(r, tensor.F16, 0, 1); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "value -1e+06 does not fit f16") {
		t.Errorf("F16: %v", err)
	}
	if _, _, err := (&encoder{}).chunk(r, tensor.BF16, 0, 1); err != nil {
		t.Errorf("BF16: %v", err)
	}
	for _, tt := range []struct {
		x    float64
		fits bool
	}{{1e300, false}, {1e38, true}, {math.Inf(1), true}} {
		raw := binary.LittleEndian.AppendUint64(nil, math.Float64bits(tt.x))
		if r, err = newRowReader("f", stored("w", tensor.F64, []int{1, 1}, raw)); err != nil {
			t.Fatal(err)
		}
		if err := r.read(make([]float32, 1), 0, 1); (err == nil) != tt.fits {
			t.Errorf("F64 %g: %v", tt.x, err)
		}
	}
}

func TestStats(t *testing.T) {
	s, err := ReadStats(context.Background(), "f", f32("w", []int{2, 4}, 1, 2, 3, 4, nan, inf, -inf, 0))
	if err != nil {
		t.Fatal(err)
	}
	if s.Mean != 2 || math.Abs(s.Std-math.Sqrt2) > 1e-15 || s.Min != 0 || s.Max != 4 || s.NaN != 1 || s.Inf != 2 || s.Zero != 1 || s.N != 8 {
		t.Errorf("%+v", s)
	}
	if s, err = ReadStats(context.Background(), "f", f32("w", []int{0, 4})); err != nil || s.N != 0 || !math.IsNaN(s.Mean) {
		t.Errorf("empty: %+v, %v", s, err)
	}
}

func TestDiffMeasures(t *testing.T) {
	one := func(ts ...tensor.Stored) *Container {
		return bare(ts)
	}
	shape := []int{1, 4}
	tests := []struct {
		name              string
		a, b              []float32
		maxAbs, rmse, cos float64
		fails             bool
	}{
		{"near", []float32{1, 2, 3, 4}, []float32{1, 2, 3, 5}, 1, 0.5, 34 / math.Sqrt(30*39), false},
		{"opposite", []float32{1, 1, 1, 1}, []float32{-1, -1, -1, -1}, 2, 2, -1, true},
		{"one zero", []float32{0, 0, 0, 0}, []float32{2, 0, 0, 0}, 2, 1, 0, true},
		{"nan", []float32{1, 2, 3, 4}, []float32{1, 2, 3, nan}, math.NaN(), math.NaN(), math.NaN(), true},
		{"inf", []float32{1, 2, 3, 4}, []float32{1, 2, 3, inf}, math.Inf(1), math.Inf(1), math.NaN(), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rep, err := Diff(context.Background(), one(f32("w", shape, tt.a...)), one(f32("w", shape, tt.b...)), DiffOptions{Values: true}, nil)
			if err != nil {
				t.Fatal(err)
			}
			d := rep.Tensors[0]
			for _, v := range []struct {
				name      string
				got, want float64
			}{{"max abs", *d.MaxAbs, tt.maxAbs}, {"rmse", *d.RMSE, tt.rmse}, {"cosine", *d.Cosine, tt.cos}} {
				same := math.IsNaN(v.got) && math.IsNaN(v.want) || v.got == v.want || math.Abs(v.got-v.want) < 1e-12
				if !same {
					t.Errorf("%s %v, want %v", v.name, v.got, v.want)
				}
			}
			if err := rep.Check(0.5); (err != nil) != tt.fails {
				t.Errorf("check: %v", err)
			}
		})
	}
	w := f32("w", shape, 1, 2, 3, 4)
	rep, err := Diff(context.Background(), one(w), one(w, f32("x", shape, 1, 2, 3, 4)), DiffOptions{Values: true}, nil)
	if err != nil || rep.Identical || len(rep.OnlyB) != 1 || rep.Check(0) == nil {
		t.Errorf("one more tensor: %+v, %v", rep, err)
	}
	rep, err = Diff(context.Background(), one(w), one(f32("w", []int{4, 1}, 1, 2, 3, 4)), DiffOptions{Values: true}, nil)
	if err != nil || rep.Identical || rep.Tensors[0].Cosine != nil || rep.Check(-1) == nil {
		t.Errorf("another shape: %+v, %v", rep, err)
	}
	if _, err = Diff(context.Background(), one(w), one(f32("v", shape, 1, 2, 3, 4)), DiffOptions{}, nil); fault.KindOf(err) != fault.Invalid {
		t.Errorf("nothing in common: %v", err)
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	c, err := Open("../testdata/models/gosrc")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	rep, err := Write(context.Background(), c, filepath.Join(dir, "q.apr"), Options{Scheme: Q6_K})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rep.OriginalSize, "→", rep.DTypes["lm_head.weight"], len(rep.RMSE))
	// Output: 13709824 → q6_k 44
}
