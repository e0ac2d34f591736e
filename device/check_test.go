package device_test

import (
	"testing"

	"apr/device"
	"apr/tensor"
)

type buffer struct{ n int64 }

func (b *buffer) Bytes() int64        { return b.n }
func (b *buffer) Name() string        { return "b" }
func (b *buffer) State() device.State { return device.Lasting }

type weight struct{ rows, cols int }

func (w *weight) Rows() int    { return w.rows }
func (w *weight) Cols() int    { return w.cols }
func (w *weight) Bytes() int64 { return 0 }

// The checks of a step's operations, which run for every call on every device, allocate nothing.
func TestChecksAllocateNothing(t *testing.T) {
	b := &buffer{1 << 20}
	f := func(rows, cols int) device.Tensor { return device.Whole(b, tensor.F32, rows, cols) }
	x, y, w, v, ids := f(8, 16), f(8, 32), &weight{32, 16}, f(1, 16), device.Whole(b, tensor.I32, 8, 1)
	p := device.NewParam(device.ParamSpec{Name: "p", Rows: 32, Cols: 16}, false,
		func(_ string, _ device.Component, d tensor.DType, rows, cols int) device.Tensor {
			return device.Whole(b, d, rows, cols)
		},
		func(device.Tensor) device.Weight { return w })
	params := []*device.Param{p}
	a := device.Attn{Batch: 1, QLen: 8, KLen: 8, KStride: 8, Heads: 2, KVHeads: 2, HeadDim: 8}
	r := device.Rotary{HeadDim: 8, Table: &device.Frequencies{Inv: []float64{1, .1}}, SeqLen: 8, Positions: ids}
	a.First = ids
	nine := device.Whole(b, tensor.I32, 1, 9)
	src := make([]float32, 8*16)
	low := device.LowRank{A: &weight{4, 16}, GradA: f(4, 16), Parts: []device.LowRankPart{{Lo: 8, Hi: 32, To: 4, Scale: 2, B: &weight{24, 4}, GradB: f(24, 4)}}}
	if n := testing.AllocsPerRun(100, func() {
		device.CheckUpload(x, src)
		device.CheckCopy(x, x)
		device.CheckEmbed(x, w, ids)
		device.CheckEmbedBackward(x, ids, x)
		device.CheckRMSNorm(x, f(8, 1), x, x, x, v)
		device.CheckRMSNormBackward(x, v, x, x, f(8, 1), v)
		device.CheckMatMul(y, x, w, f(1, 32))
		device.CheckMatMulInputGrad(x, y, w)
		device.CheckMatMulWeightGrad(f(32, 16), f(1, 32), y, x)
		device.CheckRotate(x, r)
		device.CheckHeadNorm(x, f(8, 2), x, f(1, 8), 8)
		device.CheckHeadNormBackward(x, f(1, 8), x, x, f(8, 2), f(1, 8), 8)
		device.CheckAdd(x, x)
		device.CheckScale(x, x, 2)
		device.CheckSoftCap(x, x, 2)
		device.CheckLowRank(y, device.Tensor{}, f(8, 4), x, low, device.SiLU)
		device.CheckLowRankWeightGrad(f(8, 4), y, x, f(8, 4), low)
		device.CheckLowRankInputGrad(x, f(8, 4), low)
		device.CheckDropout(x, x, device.Drop{Rate: .5})
		device.CheckAttention(x, f(8, 2), x, x, x, a)
		device.CheckAttentionBackward(x, x, x, x, x, f(8, 2), x, x, x, a)
		device.CheckGLU(x, y, device.SiLU)
		device.CheckMatMulGLU(x, y, x, w, device.SiLU)
		device.CheckGLUBackward(y, x, y, device.SiLU)
		device.CheckGather(x, x, ids)
		device.CheckScatter(x, x, ids)
		device.CheckLoss(x, x, x, ids, device.LossSpec{Temperature: 1})
		device.CheckMix(x, x, .5, 1)
		device.CheckProject(x.ColRange(0, 8), x.ColRange(0, 8),
			device.Projection{Teacher: 8, Starts: nine, IDs: ids, Weights: f(1, 8)}, ids, 1)
		device.CheckSquaredError(x, x, x, 1)
		device.CheckCompareMaps(x, x, device.AttnMap{Q: x, K: x, LSE: f(8, 2), Attn: a}, device.AttnMap{Q: x, K: x, LSE: f(8, 2), Attn: a}, ids, 1)
		device.CheckVerdict(params)
		device.CheckAdamW(params)
		device.CheckArgMax(ids, f(8, 2), x)
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func TestOpNames(t *testing.T) {
	seen := map[string]bool{}
	for o := range device.NumOps {
		if name := o.String(); name == "" || seen[name] {
			t.Errorf("operation %d is called %q", o, name)
		} else {
			seen[name] = true
		}
	}
	if got := device.Op(200).String(); got != "op 200" {
		t.Errorf("an unknown operation is called %q", got)
	}
}

func TestAccounts(t *testing.T) {
	var a device.Accounts
	a.Add(device.Logits, 5)
	a.Add(device.Logits, -3)
	a.Add(device.Batch, 1)
	now, peak := a.Memory()
	if now[device.Logits] != 2 || peak[device.Logits] != 5 || now[device.Batch] != 1 {
		t.Errorf("now %v, peak %v", now, peak)
	}
	now[device.Batch] = 7
	if again, _ := a.Memory(); again[device.Batch] != 1 {
		t.Error("what Memory returned is the account itself")
	}
}
