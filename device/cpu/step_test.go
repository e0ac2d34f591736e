package cpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"apr/device"
	"apr/device/cpu"
	"apr/device/cpu/vec"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/tensor"
)

// shape is a Qwen2 model of random weights, enough of one to run every operation of a step at its real size.
type shape struct{ hidden, layers, heads, kv, dim, ffn, vocab int }

var (
	teacherShape = shape{256, 6, 4, 2, 64, 768, 4096}
	studentShape = shape{128, 4, 2, 1, 64, 384, 4096}
)

// net is the parameters of a model in the order of use.
type net struct {
	shape
	norm, qkv, bias, o, gateUp, down []*device.Param
	embed                            *device.Param // also the head
	table                            *device.Frequencies
}

func (n *net) params() []*device.Param {
	all := []*device.Param{n.embed}
	for _, list := range [][]*device.Param{n.norm, n.qkv, n.bias, n.o, n.gateUp, n.down} {
		all = append(all, list...)
	}
	return all
}

func newNet(d *cpu.Device, s *cpu.Stream, sh shape, rng *rand.Rand) *net {
	param := func(rows, cols int, mean, dev float64) *device.Param {
		p := d.Param(device.ParamSpec{Name: "p", Rows: rows, Cols: cols, Decay: rows > 1})
		host := make([]float32, rows*cols)
		for i := range host {
			host[i] = float32(mean + dev*rng.NormFloat64())
		}
		s.Upload(p.Value, host)
		return p
	}
	n := &net{shape: sh, embed: param(sh.vocab, sh.hidden, 0, 0.1), table: &device.Frequencies{Inv: make([]float64, sh.dim/2)}}
	for i := range n.table.Inv {
		n.table.Inv[i] = math.Pow(1e6, -2*float64(i)/float64(sh.dim))
	}
	width := (sh.heads + 2*sh.kv) * sh.dim
	dev := 1 / math.Sqrt(float64(sh.hidden))
	for range sh.layers {
		n.norm = append(n.norm, param(1, sh.hidden, 1, 0.1), param(1, sh.hidden, 1, 0.1))
		n.qkv = append(n.qkv, param(width, sh.hidden, 0, dev))
		n.bias = append(n.bias, param(1, width, 0, 0.1))
		n.o = append(n.o, param(sh.hidden, sh.heads*sh.dim, 0, dev))
		n.gateUp = append(n.gateUp, param(2*sh.ffn, sh.hidden, 0, dev))
		n.down = append(n.down, param(sh.hidden, sh.ffn, 0, dev))
	}
	n.norm = append(n.norm, param(1, sh.hidden, 1, 0.1))
	return n
}

// layer is what the forward keeps for the backward.
type layer struct{ x, y1, rstd1, qkv, lse, att, x2, y2, rstd2, gu, m device.Tensor }

// step is one training step of two nets over a batch.
type step struct {
	s                *cpu.Stream
	teacher, student *net
	batch, seq       int
	ids, targets     device.Tensor
	spec             device.LossSpec
	layers           []layer
	held             []device.Tensor
	params           []*device.Param
}

func newStep(d *cpu.Device, teacher, student shape, batch, seq int) *step {
	rng := rand.New(rand.NewPCG(7, 7))
	s := d.Stream()
	st := &step{
		s: s, teacher: newNet(d, s, teacher, rng), student: newNet(d, s, student, rng), batch: batch, seq: seq,
		ids:     d.Alloc("ids", device.Batch, tensor.I32, batch*seq, 1),
		targets: d.Alloc("targets", device.Batch, tensor.I32, batch*seq, 1),
		spec:    device.LossSpec{Alpha: 0.5, Temperature: 1},
	}
	host := make([]int32, batch*seq)
	for _, t := range []device.Tensor{st.ids, st.targets} {
		for i := range host {
			host[i] = rng.Int32N(int32(student.vocab))
		}
		s.UploadInts(t, host)
	}
	st.params = st.student.params()
	return st
}

func (st *step) temp(rows, cols int) device.Tensor {
	t := st.s.Temp("t", device.Activations, tensor.F32, rows, cols)
	st.held = append(st.held, t)
	return t
}

func (st *step) attn(n *net) device.Attn {
	return device.Attn{Batch: st.batch, QLen: st.seq, KLen: st.seq, KStride: st.seq, Heads: n.heads, KVHeads: n.kv, HeadDim: n.dim}
}

// forward returns the hidden rows and the sum before the last norm with its rstd.
func (st *step) forward(n *net, keep bool) (y, x, rstd device.Tensor) {
	s, rows, none := st.s, st.batch*st.seq, device.Tensor{}
	q, kv := n.heads*n.dim, n.kv*n.dim
	delta := st.temp(rows, n.hidden)
	x = st.temp(rows, n.hidden)
	s.Embed(x, n.embed.Weight, st.ids)
	var l layer
	for i := range n.layers {
		if keep || i == 0 {
			l = layer{
				x: x, x2: st.temp(rows, n.hidden), y1: st.temp(rows, n.hidden), y2: st.temp(rows, n.hidden),
				rstd1: st.temp(rows, 1), rstd2: st.temp(rows, 1), qkv: st.temp(rows, q+2*kv), lse: st.temp(rows, n.heads),
				att: st.temp(rows, q), gu: st.temp(rows, 2*n.ffn), m: st.temp(rows, n.ffn),
			}
		}
		if i == 0 {
			s.RMSNorm(l.y1, l.rstd1, none, l.x, none, n.norm[0].Value, 1e-6)
		} else {
			next := x
			if keep {
				next = st.temp(rows, n.hidden)
			}
			s.RMSNorm(l.y1, l.rstd1, next, x, delta, n.norm[2*i].Value, 1e-6)
			x, l.x = next, next
		}
		s.MatMul(l.qkv, l.y1, n.qkv[i].Weight, n.bias[i].Value, false)
		s.Rotate(l.qkv.ColRange(0, q+kv), device.Rotary{HeadDim: n.dim, Table: n.table, SeqLen: st.seq})
		s.Attention(l.att, l.lse, l.qkv.ColRange(0, q), l.qkv.ColRange(q, q+kv), l.qkv.ColRange(q+kv, q+2*kv), st.attn(n))
		s.MatMul(delta, l.att, n.o[i].Weight, none, false)
		s.RMSNorm(l.y2, l.rstd2, l.x2, x, delta, n.norm[2*i+1].Value, 1e-6)
		s.MatMul(l.gu, l.y2, n.gateUp[i].Weight, none, false)
		s.GLU(l.m, l.gu, device.SiLU)
		s.MatMul(delta, l.m, n.down[i].Weight, none, false)
		x = l.x2
		if keep {
			st.layers = append(st.layers, l)
		}
	}
	y, rstd = st.temp(rows, n.hidden), st.temp(rows, 1)
	last := st.temp(rows, n.hidden)
	s.RMSNorm(y, rstd, last, x, delta, n.norm[2*n.layers].Value, 1e-6)
	return y, last, rstd
}

// backward propagates dy, the gradient of the hidden rows.
func (st *step) backward(n *net, dy, x, rstd device.Tensor) {
	s, rows, none := st.s, st.batch*st.seq, device.Tensor{}
	q, kv := n.heads*n.dim, n.kv*n.dim
	dx, dh, datt := st.temp(rows, n.hidden), st.temp(rows, n.hidden), st.temp(rows, q)
	dm, dgu, dqkv := st.temp(rows, n.ffn), st.temp(rows, 2*n.ffn), st.temp(rows, q+2*kv)
	s.Zero(dx)
	s.RMSNormBackward(dx, n.norm[2*n.layers].Grad, dy, x, rstd, n.norm[2*n.layers].Value)
	for i := n.layers - 1; i >= 0; i-- {
		l := &st.layers[i]
		s.MatMulWeightGrad(n.down[i].Grad, none, dx, l.m)
		s.MatMulInputGrad(dm, dx, n.down[i].Weight, false)
		s.GLUBackward(dgu, dm, l.gu, device.SiLU)
		s.MatMulWeightGrad(n.gateUp[i].Grad, none, dgu, l.y2)
		s.MatMulInputGrad(dh, dgu, n.gateUp[i].Weight, false)
		s.RMSNormBackward(dx, n.norm[2*i+1].Grad, dh, l.x2, l.rstd2, n.norm[2*i+1].Value)
		s.MatMulWeightGrad(n.o[i].Grad, none, dx, l.att)
		s.MatMulInputGrad(datt, dx, n.o[i].Weight, false)
		s.AttentionBackward(dqkv.ColRange(0, q), dqkv.ColRange(q, q+kv), dqkv.ColRange(q+kv, q+2*kv), datt, l.att, l.lse,
			l.qkv.ColRange(0, q), l.qkv.ColRange(q, q+kv), l.qkv.ColRange(q+kv, q+2*kv), st.attn(n))
		s.Rotate(dqkv.ColRange(0, q+kv), device.Rotary{HeadDim: n.dim, Table: n.table, SeqLen: st.seq, Inverse: true})
		s.MatMulWeightGrad(n.qkv[i].Grad, n.bias[i].Grad, dqkv, l.y1)
		s.MatMulInputGrad(dh, dqkv, n.qkv[i].Weight, false)
		s.RMSNormBackward(dx, n.norm[2*i].Grad, dh, l.x, l.rstd1, n.norm[2*i].Value)
	}
	s.EmbedBackward(n.embed.Grad, st.ids, dx)
}

// run does the step and returns its record.
func (st *step) run(t testing.TB) device.Scalars {
	s, n, rows, none := st.s, st.student, st.batch*st.seq, device.Tensor{}
	s.SetScalars(device.Scalars{LR: 1e-3, InvN: 1 / float64(rows), BiasCorr1: 0.1, BiasCorr2: 0.05, MaxNorm: 1})
	for _, p := range st.params {
		s.Zero(p.Grad)
	}
	yt, _, _ := st.forward(st.teacher, false)
	y, x, rstd := st.forward(n, true)
	dy := st.temp(rows, n.hidden)
	chunk := min(rows, 1024)
	z, tl := st.temp(chunk, n.vocab), st.temp(chunk, n.vocab)
	for lo := 0; lo < rows; lo += chunk {
		hi := min(rows, lo+chunk)
		z, tl := z.RowRange(0, hi-lo), tl.RowRange(0, hi-lo)
		s.MatMul(tl, yt.RowRange(lo, hi), st.teacher.embed.Weight, none, false)
		s.MatMul(z, y.RowRange(lo, hi), n.embed.Weight, none, false)
		s.Loss(z, z, tl, st.targets.RowRange(lo, hi), st.spec)
		s.MatMulInputGrad(dy.RowRange(lo, hi), z, n.embed.Weight, false)
		s.MatMulWeightGrad(n.embed.Grad, none, z, y.RowRange(lo, hi))
	}
	st.backward(n, dy, x, rstd)
	s.Verdict(st.params)
	s.AdamW(st.params, device.AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1})
	s.Release(st.held...)
	st.held, st.layers = st.held[:0], st.layers[:0]
	rec, err := s.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// small has awkward sizes.
var small = []shape{{48, 2, 4, 2, 16, 72, 101}, {40, 2, 3, 1, 16, 56, 101}}

// TestSameBitsForAnyWorkers trains two steps on 1, 2, 3 and 5 workers and compares every weight and number.
func TestSameBitsForAnyWorkers(t *testing.T) {
	for _, isa := range vec.Available() {
		for _, div := range []device.Divergence{device.ForwardKL, device.JSD} {
			t.Run(fmt.Sprintf("%v/divergence %d", isa, div), func(t *testing.T) {
				var want []float32
				var wantRec device.Scalars
				for _, workers := range []int{1, 2, 3, 5} {
					d := open(t, cpu.Options{Workers: workers, ISA: isa.String()})
					st := newStep(d, small[0], small[1], 3, 131)
					st.spec = device.LossSpec{Alpha: 0.5, Temperature: 2, Divergence: div, Beta: 0.3}
					st.run(t)
					rec := st.run(t)
					rec.Phases = [device.NumPhases]time.Duration{}
					var got []float32
					for _, p := range st.params {
						host := make([]float32, p.Rows*p.Cols)
						if err := st.s.Download(host, p.Value); err != nil {
							t.Fatal(err)
						}
						got = append(got, host...)
					}
					if workers == 1 {
						want, wantRec = got, rec
						if !rec.Finite || rec.GradNorm == 0 {
							t.Fatalf("record %+v", rec)
						}
						continue
					}
					if rec != wantRec {
						t.Errorf("%d workers: record %+v, want %+v", workers, rec, wantRec)
					}
					for i := range got {
						if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
							t.Fatalf("%d workers: weight %d is %g, want %g", workers, i, got[i], want[i])
						}
					}
				}
			})
		}
	}
}

// TestStepAllocatesNothing counts allocations of a whole step once all scratch has grown. A worker's scratch grows when it
// takes its first task of a kind, which on a busy machine can be in a later step, so the steps are repeated until one
// allocates nothing; what every step allocates would be seen in all of them.
func TestStepAllocatesNothing(t *testing.T) {
	const attempts = 20
	for _, workers := range []int{1, 2} {
		d := open(t, cpu.Options{Workers: workers})
		st := newStep(d, small[0], small[1], 3, 131)
		fewest := math.Inf(1)
		for i := 0; i < attempts && fewest > 0; i++ {
			fewest = min(fewest, testing.AllocsPerRun(1, func() { st.run(t) }))
		}
		if fewest != 0 {
			t.Errorf("%d workers: at least %v allocations in each of %d steps", workers, fewest, attempts)
		}
	}
}

// BenchmarkStep is the workload the project is judged by on a CPU: the gosrc teacher, a student of 1.3M parameters,
// 8 rows of 256 tokens. It prints the cost of each operation.
func BenchmarkStep(b *testing.B) {
	for _, isa := range vec.Available() {
		b.Run(isa.String(), func(b *testing.B) {
			d := open(b, cpu.Options{ISA: isa.String()})
			st := newStep(d, teacherShape, studentShape, 8, 256)
			st.run(b)
			st.s.ResetProfile()
			for b.Loop() {
				st.run(b)
			}
			tokens := float64(st.batch*st.seq*b.N) / b.Elapsed().Seconds()
			b.ReportMetric(tokens, "tokens/s")
			for _, op := range st.s.Profile() {
				line := fmt.Sprintf("%-18s %4d calls %8.3f ms/step %5.1f %%", op.Op, op.Calls/int64(b.N),
					op.Time.Seconds()*1e3/float64(b.N), 100*op.Time.Seconds()/b.Elapsed().Seconds())
				if op.FLOPs > 0 {
					line += fmt.Sprintf(" %6.1f GFLOP/s", float64(op.FLOPs)/op.Time.Seconds()/1e9)
				}
				b.Log(line)
			}
		})
	}
}

// Blocks, and what they decode to, are the same bytes however many workers make them.
func TestSameBlocksForAnyWorkers(t *testing.T) {
	rows := []device.BlockRows{{DType: tensor.Q2_K, Rows: 21}, {DType: tensor.Q4_K, Rows: 30}, {DType: tensor.Q6_K, Rows: 7}}
	var want []byte
	for _, workers := range []int{1, 2, 5} {
		contracttest.Cases(t, 1)
		d := open(t, cpu.Options{Workers: workers})
		s := d.Stream()
		p := d.Param(device.ParamSpec{Name: "w", Rows: 58, Cols: 512, Blocks: rows})
		r := rand.New(rand.NewPCG(1, 2))
		values := make([]float32, 58*512)
		var got []byte
		for range 2 {
			for i := range values {
				values[i] += float32(r.NormFloat64())
			}
			s.Upload(p.Value, values)
			if len(got) == 0 {
				s.RefreshWeight(p)
			} else {
				s.Quantize([]*device.Param{p}, false)
			}
			stored, read := make([]byte, p.Stored.Cols), make([]float32, len(values))
			if err := errors.Join(s.StoredBytes(stored, p), s.Download(read, p.Rounded)); err != nil {
				t.Fatal(err)
			}
			got = append(got, stored...)
			raw := make([]byte, 4*len(read))
			tensor.Narrow(raw, read, tensor.F32)
			got = append(got, raw...)
		}
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d workers make other blocks than one", workers)
		}
	}
}

// A weight that no block can hold fails the stream by the parameter's name.
func TestBlocksOfUnusableValues(t *testing.T) {
	d := open(t, cpu.Options{})
	s := d.Stream()
	p := d.Param(device.ParamSpec{Name: "w", Rows: 2, Cols: 256, Blocks: []device.BlockRows{{DType: tensor.Q4_K, Rows: 2}}})
	values := make([]float32, 512)
	values[300] = 1e6
	s.Upload(p.Value, values)
	s.RefreshWeight(p)
	_, err := s.Wait(context.Background())
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid || f.ID != "E-CPU-012" || f.Place != `tensor "w"` {
		t.Errorf("error is %v", err)
	}
}
