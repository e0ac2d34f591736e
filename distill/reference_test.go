package distill

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// tiedDir holds a student of 320 ids and a teacher of 352.
var tiedDir = filepath.Join(goldens, "qwen2", "tied_gqa")

// refModel reads a model in float64.
func refModel(t *testing.T, path string) *ref.Net {
	t.Helper()
	f := openModel(t, path)
	m := &ref.Net{Arch: f.Config, Params: map[string]ref.Mat{}}
	for name, shape := range arch.Shapes(f.Config) {
		v, err := f.ReadFloat32(name)
		if err != nil {
			t.Fatal(err)
		}
		rows := 1
		if len(shape) == 2 {
			rows = shape[0]
		}
		m.Params[name] = ref.Of(rows, len(v)/rows, v)
	}
	return m
}

// randomBatch returns rows of random ids below vocab, keeping each target with the given probability.
func randomBatch(rows, seqLen, vocab int, keep float64) corpus.Batch {
	rng := rand.New(rand.NewPCG(21, 22))
	n := rows * seqLen
	b := corpus.Batch{Rows: rows, SeqLen: seqLen, Tokens: make([]int32, n), Targets: make([]int32, n), Mask: make([]uint8, n)}
	for i := range n {
		b.Tokens[i], b.Targets[i] = rng.Int32N(int32(vocab)), rng.Int32N(int32(vocab))
		if rng.Float64() < keep {
			b.Mask[i] = 1
		}
	}
	return b
}

// tinyTrainer returns a trainer of the golden student under the golden teacher.
func tinyTrainer(t *testing.T, b corpus.Batch, spec device.LossSpec) *Trainer {
	t.Helper()
	d := newCPU(t)
	s := d.NewStream()
	return newTrainer(loadStudent(t, d, s, filepath.Join(tiedDir, "student")), s, b, loadTeacher(t, d, filepath.Join(tiedDir, "teacher")), spec)
}

func apply(t *testing.T, tr *Trainer, b corpus.Batch) Record {
	t.Helper()
	rec, err := tr.Apply(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// get downloads one companion of every tensor of the student: values, gradients or moments.
func get(t *testing.T, tr *Trainer, of func(*device.Param) device.Tensor) map[string][]float32 {
	t.Helper()
	out := map[string][]float32{}
	for _, p := range tr.Student.Parts() {
		host := make([]float32, p.Elements())
		if err := tr.stream.Download(host, p.Of(of(p.Param))); err != nil {
			t.Fatal(err)
		}
		out[p.Name] = host
	}
	return out
}

func value(p *device.Param) device.Tensor { return p.Value }
func grad(p *device.Param) device.Tensor  { return p.Grad }

// Every divergence, over a whole step with masked targets and a cut vocabulary, has the loss, the reported D and the
// gradient of the float64 model. The largest differences seen are 6e-7 (loss) and 2e-6 (gradients).
func TestStepAgainstFloat64(t *testing.T) {
	const vocab = 300 // of the student's 320 and the teacher's 352
	b := randomBatch(2, 9, vocab, 0.6)
	student, big := refModel(t, filepath.Join(tiedDir, "student")), refModel(t, filepath.Join(tiedDir, "teacher"))
	ids, targets, mask := make([]int, len(b.Tokens)), make([]int, len(b.Tokens)), make([]bool, len(b.Tokens))
	for i := range ids {
		ids[i], targets[i], mask[i] = int(b.Tokens[i]), int(b.Targets[i]), b.Mask[i] != 0
	}
	trace := student.Forward(ids, b.Rows)
	z, tz := trace.Logits.ColRange(0, vocab), big.Forward(ids, b.Rows).Logits
	for _, spec := range []device.LossSpec{
		{Alpha: 0.3, Temperature: 2, Divergence: device.ForwardKL},
		{Alpha: 0.3, Temperature: 2, Divergence: device.ReverseKL},
		{Alpha: 0.7, Temperature: 3, Divergence: device.JSD, Beta: 0},
		{Alpha: 0.7, Temperature: 3, Divergence: device.JSD, Beta: 0.2},
		{Alpha: 0.7, Temperature: 3, Divergence: device.JSD, Beta: 1},
		{Alpha: 1, Temperature: 1, Divergence: device.TVD},
		{Alpha: 0.9, Temperature: 0.5, Divergence: device.SkewForward, Beta: 0.1},
		{Alpha: 0.9, Temperature: 0.5, Divergence: device.SkewReverse, Beta: 0.1},
	} {
		t.Run(fmt.Sprintf("divergence %d, β %g", spec.Divergence, spec.Beta), func(t *testing.T) {
			contracttest.Cases(t, 1)
			loss, sums, dz := ref.StepLoss(z, tz, targets, mask, spec)
			wide := ref.New(z.Rows, student.Arch.Vocab)
			for r := range z.Rows {
				copy(wide.Row(r), dz.Row(r))
			}
			want := trace.Backward(wide)

			tr := tinyTrainer(t, b, spec)
			tr.Loss.Vocab, tr.MicroRows, tr.Loss.ChunkRows = vocab, 1, 4
			rec := apply(t, tr, b)
			n := float64(sums.Positions)
			near.CheckRel(t, "loss, CE, D", []float64{rec.Loss, rec.MeanCE, rec.MeanD}, []float64{loss, sums.CE / n, sums.D / n}, 1e-5)
			near.CheckRel(t, "entropy", []float64{rec.Entropy}, []float64{sums.Entropy}, 1e-5)
			if rec.Targets != int(sums.Positions) || rec.Agree != sums.Agree {
				t.Errorf("%d targets, %d agree; want %d, %d", rec.Targets, rec.Agree, sums.Positions, sums.Agree)
			}
			for name, g := range get(t, tr, grad) {
				near.CheckL2(t, "gradient of "+name, g, want[name].V, 1e-5)
			}
		})
	}
}

// spoiled is a teacher whose first logit is not a number while bad is set.
type spoiled struct {
	*countingTeacher
	bad bool
}

func (p *spoiled) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	p.countingTeacher.Logits(s, lo, hi, dst)
	if p.bad {
		s.Upload(device.Tensor{Buf: dst.Buf, Off: dst.Off, Rows: 1, Cols: 1, Stride: 1, DType: tensor.F32}, []float32{float32(math.NaN())})
	}
}

// The update is AdamW's in float64 on clipped gradients, decaying matrices alone. A refused step between changes
// nothing: neither weights nor moments, nor the count of updates in the bias correction; it is a step of the schedule.
func TestUpdateAgainstFloat64(t *testing.T) {
	b := randomBatch(2, 9, 320, 0.8)
	tr := tinyTrainer(t, b, device.LossSpec{Alpha: 0.5, Temperature: 2})
	te := &spoiled{countingTeacher: &countingTeacher{Teacher: tr.Teacher}}
	tr.Teacher = te
	tr.Optimizer.AdamW = device.AdamW{Beta1: 0.8, Beta2: 0.9, Eps: 1e-2, WeightDecay: 0.5}
	tr.Optimizer.MaxNorm, tr.Optimizer.Schedule.Peak = 0.25, 0.1
	tr.Optimizer.Schedule.Warmup = 100
	w, m, v := map[string]ref.Mat{}, map[string]ref.Mat{}, map[string]ref.Mat{}
	for name, x := range get(t, tr, value) {
		w[name], m[name], v[name] = ref.Of(1, len(x), x), ref.New(1, len(x)), ref.New(1, len(x))
	}
	applied := 0
	for k := range 5 {
		te.bad = k == 0 || k == 2
		if _, err := tr.Apply(context.Background(), b); te.bad != (err != nil) {
			t.Fatalf("step %d: error %v", k, err)
		}
		if !te.bad {
			applied++
			n := float64(applied)
			g := get(t, tr, grad)
			var grads []ref.Mat
			for _, x := range g {
				grads = append(grads, ref.Of(1, len(x), x))
			}
			norm := ref.Norm(grads...)
			if !(norm > 0.25) {
				t.Fatalf("gradient norm %g is not clipped", norm)
			}
			sc := device.Scalars{
				LR: 0.1 * float64(k+1) / 100, Scale: ref.ClipScale(norm, 0.25),
				BiasCorr1: 1 - math.Pow(0.8, n), BiasCorr2: 1 - math.Pow(0.9, n),
			}
			for _, p := range tr.Student.Parts() {
				x := g[p.Name]
				ref.AdamW(w[p.Name], ref.Of(1, len(x), x), m[p.Name], v[p.Name], len(p.Shape) == 2, tr.Optimizer.AdamW, sc)
			}
		}
		for _, c := range []struct {
			what string
			of   func(*device.Param) device.Tensor
			want map[string]ref.Mat
		}{{"weights", value, w}, {"m", func(p *device.Param) device.Tensor { return p.M }, m}, {"v", func(p *device.Param) device.Tensor { return p.V }, v}} {
			for name, got := range get(t, tr, c.of) {
				near.CheckL2(t, fmt.Sprintf("step %d: %s of %s", k, c.what, name), got, c.want[name].V, 1e-6)
			}
		}
	}
	if tr.Steps != 5 || tr.Optimizer.Applied != 3 {
		t.Errorf("%d steps, %d applied; want 5, 3", tr.Steps, tr.Optimizer.Applied)
	}
	contracttest.Cases(t, tr.Steps)
}
