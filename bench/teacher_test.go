//go:build emulate || gpu

package bench_test

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/bench"
	"apr/convert"
	"apr/corpus"
	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/model"
	"apr/modelfile"
	"apr/teacher"
	"apr/tensor"
)

// inBlocks is how backend q4k keeps a teacher.
var inBlocks = teacher.Q4K.Form(false)

// scale records every matrix that a model loads, with the bytes that it holds.
type scale struct {
	*cuda.Device
	loaded []loadedWeight
}

type loadedWeight struct {
	name         string
	quantised    bool  // all of it, in the file
	stored, held int64 // bytes in the file and on the device
}

func (d *scale) Weight(spec device.WeightSpec) (device.Weight, error) {
	w, err := d.Device.Weight(spec)
	if err != nil {
		return nil, err
	}
	l := loadedWeight{name: spec.Name, quantised: true, held: w.Bytes()}
	for _, p := range spec.Parts {
		l.stored += p.Info().Size
		l.quantised = l.quantised && p.Info().DType.IsQuantized()
	}
	d.loaded = append(d.loaded, l)
	return w, nil
}

// expanded is the most that a matrix may hold beyond its blocks without being expanded: padding. Expanded it would hold
// three times as much and more.
const expanded = 1.05

// TestTeacherIsNotExpanded: after a Q4_K teacher is loaded for backend q4k, the device holds the blocks of the file and
// nothing in their place, no gradients and no moments; the tensors of the file that are no blocks are at most doubled.
func TestTeacherIsNotExpanded(t *testing.T) {
	f := openModel(t, "../testdata/models/gosrc-q4_k_m.gguf")
	d := &scale{Device: openCUDA(t)}
	defer d.Close()
	if _, err := model.LoadFrozenAs(d, f, device.TeacherWeights, inBlocks); err != nil {
		t.Fatal(err)
	}
	var stored, held int64
	matrices := 0
	for _, w := range d.loaded {
		if stored, held = stored+w.stored, held+w.held; !w.quantised {
			t.Errorf("%s is not in blocks in the file: another file is wanted", w.name)
		}
		if !(float64(w.held) <= expanded*float64(w.stored)) || w.held < w.stored {
			t.Errorf("%s: %d bytes of blocks in the file, %d on the device", w.name, w.stored, w.held)
		}
		matrices++
	}
	contracttest.Cases(t, matrices)
	now, peak := d.Memory()
	near.Row(t, "device bytes in expanded teacher weights", math.Max(0, float64(held)-expanded*float64(stored)), 0)
	if held := now[device.TeacherWeights]; held > 2*f.Bytes() || held == 0 {
		t.Errorf("%d bytes are held of a file of %d", held, f.Bytes())
	}
	if peak[device.Gradients]+peak[device.Moments] != 0 {
		t.Errorf("%d bytes of gradients and %d of moments for a frozen model", peak[device.Gradients], peak[device.Moments])
	}
}

// TestSevenBillionLoads: all 28 layers of a teacher of the shape of Qwen2.5-7B in the types of Q4_K_M load in blocks into
// at most 6 GB of the device, whatever holds them.
func TestSevenBillionLoads(t *testing.T) {
	t.Setenv("APR_EMULATOR_NAME", "NVIDIA GB10")
	t.Setenv("APR_EMULATOR_INTEGRATED", "1")
	c, err := bench.Shape("7b")
	if err != nil {
		t.Fatal(err)
	}
	f, err := bench.RandomQuantised(c, 1, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	d := &scale{Device: openCUDA(t)}
	defer d.Close()
	m, err := model.LoadFrozenAs(d, f, device.TeacherWeights, inBlocks)
	if err != nil {
		t.Fatal(err)
	}
	layers := 0
	for _, w := range d.loaded {
		if strings.Contains(w.name, "mlp.down_proj") {
			layers++
		}
	}
	contracttest.Cases(t, layers)
	if layers != 28 || len(m.Config.Layers) != 28 {
		t.Errorf("%d layers were loaded, the model has %d, want 28", layers, len(m.Config.Layers))
	}
	now, _ := d.Memory()
	near.Row(t, "7B teacher in blocks: GB held by its weights", float64(now[device.TeacherWeights])/1e9, 6)
	near.Row(t, "7B teacher in blocks: GB taken from the driver after load", float64(d.Stats().Allocated)/1e9, 6)
	if now[device.TeacherWeights] < 3e9 {
		t.Errorf("%d bytes: that is no 7B teacher", now[device.TeacherWeights])
	}
}

// TestTeacherResidencyTotal is harness verify_teacher_residency_dispatch on a CUDA device: {frozen, trainable} × {Q4_K,
// Q6_K, F32, F16, BF16}. A Q4_K matrix stays in its blocks if and only if it is frozen; what is trained is float32, with
// gradients.
func TestTeacherResidencyTotal(t *testing.T) {
	const rows, cols = 256, 256 // memory is taken in pieces of 256 bytes
	cases := 0
	for _, stored := range []tensor.DType{tensor.Q4_K, tensor.Q6_K, tensor.F32, tensor.F16, tensor.BF16} {
		for _, frozen := range []bool{true, false} {
			cases++
			d := openCUDA(t)
			var w device.Weight
			if frozen {
				var err error
				src := &zeroRows{tensor.Info{Name: "w", DType: stored, Shape: []int{rows, cols}, Size: rows * stored.RowBytes(cols)}}
				if w, err = d.Weight(device.WeightSpec{Name: "w", Component: device.TeacherWeights, Parts: []device.Source{src}, Form: inBlocks}); err != nil {
					t.Fatal(err)
				}
			} else { // whatever the file has
				w = d.Param(device.ParamSpec{Name: "w", Rows: rows, Cols: cols}).Weight
			}
			want := rows * tensor.BF16.RowBytes(cols) // what products read
			if frozen && stored.IsQuantized() {
				want = rows * stored.RowBytes(cols)
			}
			isQ4K := w.Bytes() == rows*tensor.Q4_K.RowBytes(cols)
			now, _ := d.Memory()
			gradients := now[device.Gradients] + now[device.Moments]
			if w.Bytes() != want || isQ4K != (frozen && stored == tensor.Q4_K) || frozen != (gradients == 0) {
				t.Errorf("%v, frozen %v: %d bytes, want %d; Q4_K blocks %v; %d bytes of gradients and moments", stored, frozen, w.Bytes(), want, isQ4K, gradients)
			}
			d.Close()
		}
	}
	contracttest.Cases(t, cases)
}

// zeroRows is a stored matrix of zeros.
type zeroRows struct{ info tensor.Info }

func (z *zeroRows) Info() tensor.Info                   { return z.info }
func (z *zeroRows) ReadRows(dst []byte, _, _ int) error { clear(dst); return nil }

// TestDistillAgreesWithRun: the logits of the last position of a text are those that apr run computes from the same
// file, which reads a prompt and then a single token with its keys and values kept.
func TestDistillAgreesWithRun(t *testing.T) {
	f := openModel(t, "../testdata/models/gosrc-q4_k_m.gguf")
	for _, c := range []struct {
		compute cuda.Compute
		largest float64 // difference of two logits
	}{{cuda.F32, 1e-3}, {cuda.BF16, math.Inf(1)}} {
		t.Run(c.compute.String(), func(t *testing.T) {
			findDriver(t)
			d, err := cuda.Open(cuda.Options{Compute: c.compute})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			ids := heldOut(t, f, 48)
			m, err := model.LoadFrozenAs(d, f, device.TeacherWeights, inBlocks)
			if err != nil {
				t.Fatal(err)
			}
			all := teacherLogits(t, d, m, ids)
			distilled := all[len(all)-m.Config.Vocab:]
			m, err = model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true}) // as apr run loads it
			if err != nil {
				t.Fatal(err)
			}
			run := runLogits(t, d, m, ids)
			contracttest.Cases(t, len(run))
			near.Row(t, "last position, distill and run: 1 − cosine", 1-cosineOf(distilled, run), 1e-3)
			if largest := furthest(distilled, run); !(largest < c.largest) {
				t.Errorf("two logits are %g apart", largest)
			} else {
				t.Logf("the furthest logits are %g apart", largest)
			}
		})
	}
}

// runLogits returns the logits after ids as a generation computes them.
func runLogits(t *testing.T, d device.Device, m *model.Model, ids []int32) []float32 {
	t.Helper()
	s := d.NewStream()
	cache := m.NewCache(len(ids))
	defer cache.Free(d)
	hidden := s.Temp("hidden", device.Activations, d.Info().Activations, 1, m.Config.Hidden)
	defer s.Release(hidden)
	for _, part := range [][]int32{ids[:len(ids)-1], ids[len(ids)-1:]} {
		at := s.Temp("ids", device.Batch, tensor.I32, len(part), 1)
		s.UploadInts(at, part)
		m.Extend(s, hidden, cache, at)
		s.Release(at)
	}
	z := make([]float32, m.Config.Vocab)
	if err := m.NextLogits(s, z, hidden); err != nil {
		t.Fatal(err)
	}
	return z
}

// TestBackendsAgree: on held-out text the teacher in blocks and the expanded one have logits within 1e-2, and rows of a
// cosine of 0.999 and more.
func TestBackendsAgree(t *testing.T) {
	f := openModel(t, "../testdata/models/gosrc-q4_k_m.gguf")
	d := openCUDA(t)
	defer d.Close()
	ids := heldOut(t, f, 64)
	var z [2][]float32
	for i, b := range []teacher.Backend{teacher.Cublas, teacher.Q4K} {
		m, err := model.LoadFrozenAs(d, f, device.TeacherWeights, b.Form(false))
		if err != nil {
			t.Fatal(err)
		}
		z[i] = teacherLogits(t, d, m, ids)
	}
	cols, least := len(z[0])/len(ids), 1.0
	for r := range ids {
		least = math.Min(least, cosineOf(z[0][r*cols:(r+1)*cols], z[1][r*cols:(r+1)*cols]))
	}
	contracttest.Cases(t, len(ids))
	near.Row(t, "cublas and q4k: 1 − the least cosine of a row", 1-least, 1e-3)
	near.Row(t, "cublas and q4k: largest difference of two logits", furthest(z[0], z[1]), 1e-2)
}

// teacherLogits returns the logits of every position of one sequence as a step of a distillation computes them.
func teacherLogits(t *testing.T, d device.Device, m *model.Model, ids []int32) []float32 {
	t.Helper()
	n := len(ids)
	s, b := d.NewStream(), model.NewBatch(d, 1, n)
	b.Load(s, corpus.Batch{Rows: 1, SeqLen: n, Tokens: ids, Targets: ids, Mask: slices.Repeat([]uint8{1}, n)}, 1)
	big := &teacher.Resident{Model: m}
	big.Begin(s, b)
	out := s.Temp("logits", device.Logits, tensor.F32, n, m.Config.Vocab)
	big.Logits(s, 0, n, out)
	z := make([]float32, n*m.Config.Vocab)
	if err := s.Download(z, out); err != nil {
		t.Fatal(err)
	}
	s.Release(out)
	big.End(s)
	return z
}

// heldOut returns the first n ids of the held-out text.
func heldOut(t *testing.T, f *modelfile.Files, n int) []int32 {
	t.Helper()
	tok, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	enc, err := corpus.ForTokenizer(tok, "none")
	if err != nil {
		t.Fatal(err)
	}
	eos, err := corpus.EndOfText(tok)
	if err != nil {
		t.Fatal(err)
	}
	text, _, err := corpus.Load(context.Background(), []string{filepath.FromSlash("../examples/gosrc/data/gosrc-val.jsonl.zst")}, enc,
		corpus.EncodeOptions{EOS: eos, Vocab: tok.RealIDs()})
	if err != nil {
		t.Fatal(err)
	}
	return text.IDs[:n]
}

func openModel(t *testing.T, path string) *modelfile.Files {
	t.Helper()
	f, err := modelfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func cosineOf(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// furthest returns the largest difference of two values; NaN counts as infinitely far.
func furthest(a, b []float32) (most float64) {
	for i := range a {
		if diff := math.Abs(float64(a[i]) - float64(b[i])); !(diff <= most) {
			if most = diff; math.IsNaN(diff) {
				return math.Inf(1)
			}
		}
	}
	return most
}
