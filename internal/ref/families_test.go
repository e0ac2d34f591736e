package ref

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/near"
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

func relative(got, want []float64) float64 {
	var d, n float64
	for i := range want {
		d += (got[i] - want[i]) * (got[i] - want[i])
		n += want[i] * want[i]
	}
	if len(got) != len(want) {
		return math.NaN()
	}
	if d == 0 {
		return 0
	}
	return math.Sqrt(d / n)
}

func (f *fixture) greedy(n int) (ids []int) {
	all := slices.Clone(f.golden.Prompt)
	for range n {
		z := f.net.Forward(all, 1).Logits
		id := ArgMax(z.RowRange(z.Rows-1, z.Rows))[0]
		ids, all = append(ids, id), append(all, id)
	}
	return ids
}

func TestShared(t *testing.T) {
	for _, kind := range []string{"families", "variants"} {
		dirs, _ := os.ReadDir("/work/shared/golden/" + kind)
		for _, d := range dirs {
			t.Run(d.Name(), func(t *testing.T) {
				f := open(t, filepath.Join("/work/shared/golden", kind, d.Name()))
				p := f.net.Forward(f.ids, f.batch)
				worst := 0.0
				for i, s := range p.States {
					worst = max(worst, relative(s.V, f.want[fmt.Sprintf("hidden.%d", i)].v))
				}
				_, dzU := f.loss(p.Logits, false)
				lossU, _ := f.loss(p.Logits, false)
				loss, dz := f.loss(p.Logits, true)
				p2 := f.net.Forward(f.ids, f.batch)
				gU := p2.Backward(dzU)
				g := p.Backward(dz)
				bad, worstName := 0.0, ""
				for _, s := range arch.Slots(f.net.Arch) {
					if s.Fixed {
						continue
					}
					pl := s.HF
					if _, ok := f.want["grad."+pl.Name]; !ok && pl.Each > 0 { // stacked in goldens
						pl = arch.Place{Name: strings.Replace(s.Name, ".weight", "", 1), Shape: s.Shape}
						if s.Role != arch.ExpertDown {
							pl = arch.Place{Name: strings.Replace(strings.Replace(strings.Replace(s.Name, ".weight", "", 1), "gate_proj", "gate_up_proj", 1), "up_proj", "up_proj", 1), Shape: []int{s.Shape[0], 2 * s.Shape[1], s.Shape[2]}}
							if s.Role == arch.ExpertUp {
								pl.Name = strings.Replace(strings.Replace(s.Name, ".weight", "", 1), "up_proj", "gate_up_proj", 1)
								pl.First = s.Shape[1]
							}
						}
					}
					want := gather(t, s, pl, f.want, "grad.")
					r := relative(g[s.Name].V, want)
					if !(r <= bad) {
						bad, worstName = r, s.Name
					}
				}
				t.Logf("%-18s logits %.2g hidden %.2g ce %.2g norm %.2g | unmasked %.2g %.2g | grad %.2g %s | greedy %v", f.name,
					relative(p.Logits.V, f.want["logits"].v), worst, loss/f.golden.CE-1, norm(g)/f.golden.GradNorm-1,
					lossU/f.golden.Unmasked.CE-1, norm(gU)/f.golden.Unmasked.GradNorm-1, bad, worstName, slices.Equal(f.greedy(16), f.golden.Greedy))
				_ = near.Abs[float64, float64]
			})
		}
	}
}
