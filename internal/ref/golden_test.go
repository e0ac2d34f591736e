package ref

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/near"
	"apr/tensor"
)

// The goldens come from transformers and torch run in float64, stored in float32. They carry float32 roundings of their
// own: the tensors are stored so, and transformers keeps norms, rotary table and attention softmax in float32 whatever
// the model's type. Hence the tolerances, with the largest difference seen beside them. AdamW divides by √v: where a
// gradient is nearly zero (the bias of k, which softmax cancels) it turns those roundings into steps of full size.
const (
	goldens     = "../../testdata/golden/qwen2"
	logitsTol   = 2e-6 // 6.7e-7
	lossTol     = 1e-7 // 1.9e-8
	normTol     = 2e-7 // 4.6e-8
	gradientTol = 2e-6 // 5.4e-7
	adamWTol    = 1e-4 // 3.2e-5
)

type goldenFile struct {
	Combos []struct {
		CEWeight    float64 `json:"ce_weight"`
		Temperature float64 `json:"temperature"`
		CE          float64 `json:"ce"`
		ForwardKL   float64 `json:"forward_kl"`
		ReverseKL   float64 `json:"reverse_kl"`
		Loss        float64 `json:"loss"`
		GradNorm    float64 `json:"grad_norm"`
	} `json:"combos"`
	AdamW struct {
		LR              float64      `json:"lr"`
		Betas           [2]float64   `json:"betas"`
		Eps             float64      `json:"eps"`
		WeightDecay     float64      `json:"weight_decay"`
		Clip            float64      `json:"clip"`
		LossAndGradNorm [][2]float64 `json:"loss_and_gradnorm"`
	} `json:"adamw"`
}

// tensors reads a safetensors file of F32 and I32 as matrices.
func tensors(t *testing.T, path string) map[string]Mat {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := make(map[string]Mat)
	for _, s := range f.Tensors() {
		data := make([]byte, s.Size)
		if _, err := s.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		m := New(s.Rows(), s.Cols())
		for i := range m.V {
			u := binary.LittleEndian.Uint32(data[4*i:])
			if s.DType == tensor.I32 {
				m.V[i] = float64(int32(u))
			} else {
				m.V[i] = float64(math.Float32frombits(u))
			}
		}
		out[s.Name] = m
	}
	return out
}

// load reads a model directory.
func load(t *testing.T, dir string) *Net {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := arch.Parse("config.json", string(raw), arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := &Net{Arch: c, Params: tensors(t, filepath.Join(dir, "model.safetensors"))}
	if len(m.Params) != len(arch.Slots(c)) {
		t.Fatalf("%s: %d tensors, want %d", dir, len(m.Params), len(arch.Slots(c)))
	}
	return m
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func ints(m Mat) []int {
	out := make([]int, len(m.V))
	for i, v := range m.V {
		out[i] = int(v)
	}
	return out
}

func TestGoldenModels(t *testing.T) {
	for _, name := range []string{"tied_gqa", "untied_mha"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(goldens, name)
			var want goldenFile
			readJSON(t, filepath.Join(dir, "golden.json"), &want)
			g := tensors(t, filepath.Join(dir, "golden.safetensors"))
			student, teacher := load(t, filepath.Join(dir, "student")), load(t, filepath.Join(dir, "teacher"))
			ids, labels, mask := ints(g["input_ids"]), ints(g["labels"]), make([]bool, len(g["loss_mask"].V))
			for i, v := range g["loss_mask"].V {
				mask[i] = v != 0
			}
			batch := g["input_ids"].Rows
			trace := student.Forward(ids, batch)
			teacherLogits := teacher.Forward(ids, batch).Logits
			near.CheckRel(t, "student logits", trace.Logits.V, g["student_logits"].V, logitsTol)
			near.CheckRel(t, "teacher logits", teacherLogits.V, g["teacher_logits"].V, logitsTol)
			for _, c := range want.Combos {
				spec := device.LossSpec{Alpha: 1 - c.CEWeight, Temperature: c.Temperature}
				loss, sums, dz := StepLoss(trace.Logits, teacherLogits, labels, mask, spec)
				rspec := spec
				rspec.Divergence = device.ReverseKL
				_, reverse, _ := StepLoss(trace.Logits, teacherLogits, labels, mask, rspec)
				grads := trace.Backward(dz)
				n := float64(sums.Positions)
				name := fmt.Sprintf("ce_weight %g, T %g: ", c.CEWeight, c.Temperature)
				scalar := func(what string, got, want, tol float64) {
					near.CheckRel(t, name+what, []float64{got}, []float64{want}, tol)
				}
				scalar("loss", loss, c.Loss, lossTol)
				scalar("cross-entropy", sums.CE/n, c.CE, lossTol)
				scalar("forward KL", sums.D/n, c.ForwardKL, lossTol)
				scalar("reverse KL", reverse.D/n, c.ReverseKL, lossTol)
				scalar("gradient norm", norm(grads), c.GradNorm, normTol)
				if c.CEWeight == 0.5 && c.Temperature == 2 {
					for _, p := range slices.Sorted(maps.Keys(student.Params)) {
						near.CheckL2(t, "gradient of "+p, grads[p].V, g["grad."+p].V, gradientTol)
					}
				}
			}
			checkAdamW(t, student, teacherLogits, ids, labels, mask, want, g)
		})
	}
}

// checkAdamW takes the golden's three steps; there weight decay applies to every parameter.
func checkAdamW(t *testing.T, m *Net, teacher Mat, ids, labels []int, mask []bool, want goldenFile, g map[string]Mat) {
	t.Helper()
	m1, m2 := make(map[string]Mat), make(map[string]Mat)
	for _, p := range slices.Sorted(maps.Keys(m.Params)) {
		m1[p], m2[p] = New(m.Params[p].Rows, m.Params[p].Cols), New(m.Params[p].Rows, m.Params[p].Cols)
	}
	c := want.AdamW
	a := device.AdamW{Beta1: c.Betas[0], Beta2: c.Betas[1], Eps: c.Eps, WeightDecay: c.WeightDecay}
	for step, lossAndNorm := range c.LossAndGradNorm {
		trace := m.Forward(ids, g["input_ids"].Rows)
		loss, _, dz := StepLoss(trace.Logits, teacher, labels, mask, device.LossSpec{Alpha: .5, Temperature: 2})
		grads := trace.Backward(dz)
		gnorm := norm(grads)
		near.CheckRel(t, fmt.Sprintf("AdamW step %d: loss", step), []float64{loss}, lossAndNorm[:1], normTol)
		near.CheckRel(t, fmt.Sprintf("AdamW step %d: norm", step), []float64{gnorm}, lossAndNorm[1:], normTol)
		n := float64(step + 1)
		s := device.Scalars{
			LR: c.LR, Scale: ClipScale(gnorm, c.Clip),
			BiasCorr1: 1 - math.Pow(a.Beta1, n), BiasCorr2: 1 - math.Pow(a.Beta2, n),
		}
		for _, p := range slices.Sorted(maps.Keys(m.Params)) {
			AdamW(m.Params[p], grads[p], m1[p], m2[p], true, a, s)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(m.Params)) {
		near.CheckL2(t, "after AdamW: "+p, m.Params[p].V, g["adamw3."+p].V, adamWTol)
	}
}

func norm(grads map[string]Mat) float64 {
	all := make([]Mat, 0, len(grads))
	for _, g := range grads {
		all = append(all, g)
	}
	return Norm(all...)
}
