package ref

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/tensor"
)

// stored reads a safetensors file of any float type or of I32: shapes and values by name.
func stored(t testing.TB, path string) map[string]values {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]values{}
	for _, s := range f.Tensors() {
		data := make([]byte, s.Size)
		if _, err := s.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		v := values{shape: s.Shape, v: make([]float64, s.Elements())}
		for i := range v.v {
			switch s.DType {
			case tensor.F64:
				v.v[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
			case tensor.I32:
				v.v[i] = float64(int32(binary.LittleEndian.Uint32(data[4*i:])))
			case tensor.F32:
				v.v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
			case tensor.BF16:
				v.v[i] = float64(tensor.BF16ToF32(binary.LittleEndian.Uint16(data[2*i:])))
			default:
				t.Fatalf("%s: %s is of type %v", path, s.Name, s.DType)
			}
		}
		out[s.Name] = v
	}
	return out
}

type values struct {
	shape []int
	v     []float64
}

// matrix returns the values of a slot as the reference wants them.
func matrix(s arch.Slot, v []float64) Mat {
	switch rows := 1; {
	case len(s.Shape) == 1:
		return Of(1, len(v), v)
	default:
		for _, d := range s.Shape[:len(s.Shape)-1] {
			rows *= d
		}
		return Of(rows, len(v)/rows, v)
	}
}

// gather returns the values of a slot from a file's tensors, whose names begin with prefix.
func gather(t testing.TB, s arch.Slot, p arch.Place, files map[string]values, prefix string) []float64 {
	t.Helper()
	names := []string{p.Name}
	if p.Each > 0 {
		names = nil
		for e := range p.Each {
			names = append(names, strings.ReplaceAll(p.Name, "{e}", fmt.Sprint(e)))
		}
	}
	var parts [][]float64
	for _, n := range names {
		v, ok := files[prefix+n]
		if !ok {
			t.Fatalf("no tensor %s", prefix+n)
		}
		if !slices.Equal(v.shape, p.Shape) {
			t.Fatalf("%s: shape %v, the description says %v", n, v.shape, p.Shape)
		}
		parts = append(parts, v.v)
	}
	return arch.Gather(s, p, parts)
}

type fixture struct {
	name   string
	net    *Net
	golden familyGolden
	want   map[string]values
	ids    []int
	mask   []bool
	batch  int
}

type familyGolden struct {
	CE       float64 `json:"ce"`
	GradNorm float64 `json:"grad_norm"`
	Unmasked struct {
		CE       float64 `json:"ce"`
		GradNorm float64 `json:"grad_norm"`
	} `json:"unmasked"`
	Prompt []int `json:"greedy_prompt"`
	Greedy []int `json:"greedy_ids"`
}

// open reads a fixture.
func open(t testing.TB, dir string) *fixture {
	t.Helper()
	f := &fixture{name: filepath.Base(dir)}
	read := func(name string) string {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	c, err := arch.Parse("config.json", read("config.json"), arch.Options{GenerationPath: "generation_config.json", Generation: read("generation_config.json")})
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	readJSON(t, filepath.Join(dir, "golden.json"), &f.golden)
	f.want = stored(t, filepath.Join(dir, "golden.safetensors"))
	files := stored(t, filepath.Join(dir, "model.safetensors"))
	f.net = &Net{Arch: c, Params: map[string]Mat{}}
	used := map[string]bool{}
	for _, s := range arch.Slots(c) {
		f.net.Params[s.Name] = matrix(s, gather(t, s, s.HF, files, ""))
		used[strings.ReplaceAll(s.HF.Name, "{e}", "0")] = true
	}
	for name := range files {
		if !used[name] && !strings.Contains(name, ".experts.") {
			t.Errorf("%s: no slot is stored in %s", dir, name)
		}
	}
	in := f.want["input_ids"]
	f.batch = in.shape[0]
	for i, v := range in.v {
		f.ids = append(f.ids, int(v))
		f.mask = append(f.mask, f.want["loss_mask"].v[i] != 0)
	}
	return f
}

// loss returns the mean cross-entropy of the next id over the kept positions, and its gradient over the logits. The last
// position of a row has no target.
func (f *fixture) loss(z Mat, masked bool) (float64, Mat) {
	seq := len(f.ids) / f.batch
	targets, on := make([]int, len(f.ids)), make([]bool, len(f.ids))
	for n := range f.ids {
		if n%seq < seq-1 {
			targets[n], on[n] = f.ids[n+1], !masked || f.keeps(n)
		}
	}
	loss, _, dz := StepLoss(z, Mat{}, targets, on, device.LossSpec{})
	return loss, dz
}

// keeps reports whether the target of position n counts.
func (f *fixture) keeps(n int) bool { return f.mask[n] }

// greedy returns the n ids after the prompt, each from a forward over the whole sequence so far.
func (f *fixture) greedy(net *Net, n int) (ids []int) {
	all := slices.Clone(f.golden.Prompt)
	for range n {
		z := net.Forward(all, 1).Logits
		id := ArgMax(z.RowRange(z.Rows-1, z.Rows))[0]
		ids, all = append(ids, id), append(all, id)
	}
	return ids
}

// relative returns ‖got−want‖₂/‖want‖₂.
func relative(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.NaN()
	}
	var d, n float64
	for i := range want {
		d += (got[i] - want[i]) * (got[i] - want[i])
		n += want[i] * want[i]
	}
	if d == 0 {
		return 0
	}
	return math.Sqrt(d / n)
}

// far returns how far a tensor is from a golden of that name: the whole tensor, or its print.
func far(name string, got []float64, want values) float64 {
	if len(want.v) == printLen && len(got) != printLen {
		return printsApart(footprint(name, got), want.v)
	}
	return relative(got, want.v)
}

// A print replaces a tensor of a golden, because all goldens in full are 36 MB: its norm, and its sums with 16 rows of
// random signs, each value's from one draw of PCG(1, FNV-1a of the tensor's name). The root mean square of the
// differences of two tensors' sums is their distance, give or take a fifth.
const printLen = 17

func footprint(name string, v []float64) []float64 {
	out, h := make([]float64, printLen), fnv.New64a()
	h.Write([]byte(name))
	rng := rand.New(rand.NewPCG(1, h.Sum64()))
	for _, x := range v {
		out[0] += x * x
		bits := rng.Uint64()
		for j := 1; j < printLen; j++ {
			if bits>>j&1 == 1 {
				out[j] += x
			} else {
				out[j] -= x
			}
		}
	}
	out[0] = math.Sqrt(out[0])
	return out
}

// printsApart estimates the relative L2 distance of two tensors.
func printsApart(got, want []float64) float64 {
	sum := 0.0
	for j := 1; j < printLen; j++ {
		sum += (got[j] - want[j]) * (got[j] - want[j])
	}
	d := math.Max(math.Sqrt(sum/(printLen-1)), math.Abs(got[0]-want[0]))
	if d == 0 {
		return 0
	}
	return d / want[0]
}

// gradients returns the gradients as the golden's tensors hold them: as the checkpoint does, but with the experts of
// Qwen3-MoE, which it stores one by one, in one tensor each for gate with up and for down.
func (f *fixture) gradients(g map[string]Mat) map[string][]float64 {
	out := map[string][]float64{}
	for _, s := range arch.Slots(f.net.Arch) {
		if s.Fixed {
			continue
		}
		p := s.HF
		if p.Each > 0 {
			out1, in, at := s.Shape[1], s.Shape[2], strings.TrimSuffix(s.Name, ".weight")
			p = arch.Place{Name: at, Shape: []int{p.Each, out1, in}}
			if s.Role != arch.ExpertDown {
				p.Name, p.Shape[1] = strings.NewReplacer("gate_proj", "gate_up_proj", "up_proj", "gate_up_proj").Replace(at), 2*out1
			}
			if s.Role == arch.ExpertUp {
				p.First = out1
			}
		}
		n := 1
		for _, d := range p.Shape {
			n *= d
		}
		if out[p.Name] == nil {
			out[p.Name] = make([]float64, n)
		}
		arch.Scatter(s, p, g[s.Name].V, [][]float64{out[p.Name]})
	}
	return out
}
