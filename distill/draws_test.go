package distill

import (
	"context"
	"math"
	"slices"
	"testing"

	"apr/corpus"
	"apr/device"
	"apr/internal/contracttest"
	"apr/model"
	"apr/optim"
	"apr/teacher"
	"apr/teacher/cache"
	"apr/tensor"
)

// drawing draws from the dense logits of the rows of one batch.
type drawing struct {
	teacher.Drawer
	logits map[cache.Key][][]float32
}

func (d *drawing) Drawn(row cache.Key) (cache.Drawn, error) {
	out := cache.Drawn{From: []int32{0}}
	for p, t := range d.logits[row] {
		entries, _, err := d.Draw(nil, t, row, p)
		if err != nil {
			return out, err
		}
		out.Entries = append(out.Entries, entries...)
		out.From = append(out.From, int32(len(out.Entries)))
	}
	return out, nil
}

func (d *drawing) Hidden(cache.Key, []float32) error { panic("draws have no hidden states") }

// top is the control: the k likeliest ids of a teacher, renormalised.
type top struct {
	teacher.Teacher
	k int
}

func (t top) Logits(s device.Stream, lo, hi int, dst device.Tensor) {
	t.Teacher.Logits(s, lo, hi, dst)
	host := make([]float32, dst.Rows*dst.Cols)
	if err := s.Download(host, dst); err != nil {
		panic(err)
	}
	for r := range dst.Rows {
		row := host[r*dst.Cols : (r+1)*dst.Cols]
		sorted := slices.Sorted(slices.Values(row))
		for i := range row {
			if row[i] < sorted[len(sorted)-t.k] {
				row[i] = sorted[len(sorted)-1] - 80
			}
		}
	}
	s.Upload(dst, host)
}

// halfTrained returns a trainer whose student has learned for some steps from the live teacher, and the next batch.
func halfTrained(t *testing.T, steps int) (*Trainer, corpus.Batch, *model.Model) {
	t.Helper()
	c := tinyConfig(t)
	c.BatchSize, c.SeqLen = 8, 32
	d := newCPU(t)
	in, err := openInputs(context.Background(), c, d, &quiet{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.close() })
	teachers, student, err := in.models(c, d)
	if err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	student.Init(s, 3)
	tr := NewTrainer(student, s, c.Rows(), c.SeqLen)
	tr.Teacher, tr.Loss.Vocab = &teacher.Resident{Model: teachers[0]}, in.vocab
	tr.Loss.Spec = device.LossSpec{Alpha: 1, Temperature: 1}
	tr.Optimizer = optim.Optimizer{Schedule: optim.Schedule{Kind: optim.Constant, Peak: 1e-2, Steps: steps}, AdamW: c.AdamW, MaxNorm: 1}
	l, err := in.loader(c)
	if err != nil {
		t.Fatal(err)
	}
	for {
		b, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		if tr.Steps == steps {
			return tr, b, teachers[0]
		}
		if _, err := tr.Apply(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
}

// gradient returns the student's gradient under a teacher, all parameters one behind the other.
func gradient(t *testing.T, tr *Trainer, te teacher.Teacher, b corpus.Batch) (g []float64) {
	t.Helper()
	tr.Teacher = te
	if f, ok := te.(teacher.Fetcher); ok {
		if err := f.Fetch(b); err != nil {
			t.Fatal(err)
		}
	}
	tr.gradients(b, b.TargetCount())
	if _, err := tr.stream.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, p := range tr.Student.Params() {
		host := make([]float32, p.Grad.Rows*p.Grad.Cols)
		if err := tr.stream.Download(host, p.Grad); err != nil {
			t.Fatal(err)
		}
		for _, v := range host {
			g = append(g, float64(v))
		}
	}
	return g
}

// denseLogits returns the teacher's logits by rows.
func denseLogits(t *testing.T, tr *Trainer, te *teacher.Resident, b corpus.Batch) map[cache.Key][][]float32 {
	t.Helper()
	all := map[cache.Key][][]float32{}
	tr.batch.Load(tr.stream, b, b.Rows)
	te.Begin(tr.stream, tr.batch)
	v := tr.Loss.Vocab
	chunk := tr.stream.Temp("logits", device.Logits, tensor.F32, b.SeqLen, v)
	for r := range b.Rows {
		te.Logits(tr.stream, r*b.SeqLen, (r+1)*b.SeqLen, chunk)
		host := make([]float32, b.SeqLen*v)
		if err := tr.stream.Download(host, chunk); err != nil {
			t.Fatal(err)
		}
		one := b.Slice(r, r+1)
		all[cache.KeyOf(one.Tokens, nil)] = slices.Collect(slices.Chunk(host, v))
	}
	tr.stream.Release(chunk)
	te.End(tr.stream)
	return all
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func degrees(a, b []float64) float64 {
	return 180 / math.Pi * math.Acos(min(1, dot(a, b)/math.Sqrt(dot(a, a)*dot(b, b))))
}

// TestDrawsAreUnbiased: with a half-trained student, the mean gradient of draws by n seeds approaches the dense one
// as 1/√n up to 64 seeds, and one seed's is far nearer to its direction than that of the 12 likeliest ids
// renormalised, whose mean stays where it is.
func TestDrawsAreUnbiased(t *testing.T) {
	tr, b, big := halfTrained(t, 60)
	live := &teacher.Resident{Model: big}
	dense := gradient(t, tr, live, b)
	norm := math.Sqrt(dot(dense, dense))
	twelve := gradient(t, tr, top{live, 12}, b)
	biased := degrees(twelve, dense)
	d := &drawing{Drawer: teacher.Drawer{Temperature: 1, Draws: 50}, logits: denseLogits(t, tr, live, b)}
	sum := make([]float64, len(dense))
	off := func(g []float64, n int) float64 {
		e := 0.0
		for i := range g {
			e += (g[i]/float64(n) - dense[i]) * (g[i]/float64(n) - dense[i])
		}
		return math.Sqrt(e) / norm
	}
	mean := 0.0 // of the squared distances of single seeds
	for n := 1; n <= 64; n++ {
		d.Seed = uint64(n)
		g := gradient(t, tr, &teacher.Drawn{Draws: 50, Temperature: 1, From: d}, b)
		if n <= 8 {
			if angle := degrees(g, dense); !(angle < biased/2.5) {
				t.Errorf("seed %d: %.1f° from the dense gradient, top-12 %.1f°", n, angle, biased)
			} else if n == 1 {
				t.Logf("one seed: %.2f° from the dense gradient; top-12 renormalised: %.2f°", angle, biased)
			}
		}
		e := off(g, 1)
		mean += e * e / 64
		for i := range sum {
			sum[i] += g[i]
		}
		if n&(n-1) == 0 {
			t.Logf("%2d seeds: relative error %.4f, times √n %.4f", n, off(sum, n), off(sum, n)*math.Sqrt(float64(n)))
		}
		contracttest.Cases(t, 1)
	}
	if ratio := off(sum, 64) * 8 / math.Sqrt(mean); !(ratio > 0.7 && ratio < 1.4) {
		t.Errorf("the mean of 64 seeds is %.2f times as far off as 1/√64 of one seed", ratio)
	}
	if e := off(twelve, 1); !(e > 4*off(sum, 64)) {
		t.Errorf("top-12 is %.4f off, the mean of 64 seeds %.4f", e, off(sum, 64))
	}
}

// TestDrawsWithoutLogits: the gradient from ids alone, of chunks that begin anywhere, is that by logits of the teacher,
// which say count/n to 2e-6.
func TestDrawsWithoutLogits(t *testing.T) {
	tr, b, big := halfTrained(t, 5)
	tr.Loss.ChunkRows = 40
	d := &drawing{Drawer: teacher.Drawer{Temperature: 1, Draws: 50, Seed: 3}}
	d.logits = denseLogits(t, tr, &teacher.Resident{Model: big}, b)
	for _, tr.Loss.Spec.Alpha = range []float64{1, .5} {
		drawn := &teacher.Drawn{Draws: 50, Temperature: 1, From: d}
		if withoutLogits(tr.Student.Device(), drawn) == nil {
			t.Fatal("the device wants logits")
		}
		got, want := gradient(t, tr, drawn, b), gradient(t, tr, struct{ teacher.Fetcher }{drawn}, b)
		off := 0.0
		for i := range got {
			off += (got[i] - want[i]) * (got[i] - want[i])
		}
		if off = math.Sqrt(off / dot(want, want)); !(off < 2e-6) {
			t.Errorf("alpha %g: the gradients differ by %g", tr.Loss.Spec.Alpha, off)
		}
		t.Logf("alpha %g: %.2g", tr.Loss.Spec.Alpha, off)
	}
}
