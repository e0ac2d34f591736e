package ref

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/format/safetensors"
	"apr/tensor"
)

// The full goldens of all families are 36 MB, most of it gradients in float64. With -families DIR, which holds them as
// families/* and variants/*, TestFamilies compares with them in full, and then writes what it keeps of them to testdata.
var fullGoldens = flag.String("families", "", "compare with the full goldens under this folder, and rewrite testdata/golden/{families,variants} from them")

const familyGoldens = "../../testdata/golden"

// The largest differences seen are 4e-7 (logits and hidden states), 1e-8 (loss), 7e-7 (norm) and 8e-6 (a gradient), all of
// gemma2_capped or gemma4_kv. With rotary tables rounded to float32, as transformers keeps them, most fixtures agree to
// 1e-15, those to 4e-8 and 5e-7: the rest is √H in float32.
const (
	familyLogitsTol   = 1e-6
	familyLossTol     = 1e-7
	familyNormTol     = 2e-6
	familyGradientTol = 2e-5
)

// figures are the relative differences from a golden.
type figures struct {
	logits, hidden, loss, norm, unmaskedLoss, unmaskedNorm, gradient float64
	where                                                            string // the tensor of the worst gradient
	greedy                                                           bool
}

// measure compares everything that a golden holds. net may be another than the fixture's own.
func (f *fixture) measure(net *Net) (m figures) {
	p := net.Forward(f.ids, f.batch)
	m.logits = relative(p.Logits.V, f.want["logits"].v)
	for i, s := range p.States {
		name := fmt.Sprintf("hidden.%d", i)
		m.hidden = worst(m.hidden, far(name, s.V, f.want[name]))
	}
	loss, dz := f.loss(p.Logits, true)
	g := p.Backward(dz)
	m.loss, m.norm = math.Abs(loss/f.golden.CE-1), math.Abs(norm(g)/f.golden.GradNorm-1)
	grads := f.gradients(g)
	for _, name := range slices.Sorted(maps.Keys(grads)) {
		want, ok := f.want["grad."+name]
		if !ok {
			m.gradient, m.where = math.NaN(), name
		}
		if d := far("grad."+name, grads[name], want); !(d <= m.gradient) {
			m.gradient, m.where = worst(m.gradient, d), name
		}
	}
	loss, dz = f.loss(p.Logits, false)
	g = p.Backward(dz)
	m.unmaskedLoss, m.unmaskedNorm = math.Abs(loss/f.golden.Unmasked.CE-1), math.Abs(norm(g)/f.golden.Unmasked.GradNorm-1)
	m.greedy = slices.Equal(f.greedy(net, len(f.golden.Greedy)), f.golden.Greedy)
	return m
}

// worst is the larger of two, NaN if one is.
func worst(a, b float64) float64 { return math.Max(a, b) }

// wrong returns what is beyond its tolerance.
func (m figures) wrong() (out []string) {
	for _, x := range []struct {
		what     string
		got, tol float64
	}{
		{"logits", m.logits, familyLogitsTol}, {"hidden states", m.hidden, familyLogitsTol}, {"loss", m.loss, familyLossTol},
		{"gradient norm", m.norm, familyNormTol}, {"unmasked loss", m.unmaskedLoss, familyLossTol},
		{"unmasked gradient norm", m.unmaskedNorm, familyNormTol}, {"gradient of " + m.where, m.gradient, familyGradientTol},
	} {
		if !(x.got <= x.tol) {
			out = append(out, fmt.Sprintf("%s: %.2g, tolerance %g", x.what, x.got, x.tol))
		}
	}
	if !m.greedy {
		out = append(out, "greedy ids")
	}
	return out
}

// fixtureNames returns families/NAME and variants/NAME of all goldens under dir.
func fixtureNames(t testing.TB, dir string) (names []string) {
	t.Helper()
	for _, kind := range []string{"families", "variants"} {
		entries, err := os.ReadDir(filepath.Join(dir, kind))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, kind+"/"+e.Name())
		}
	}
	if len(names) != 27 {
		t.Fatalf("%d goldens in %s, want 27", len(names), dir)
	}
	return names
}

// Logits, hidden states, losses, gradients and greedy ids of every family are those of transformers in float64.
func TestFamilies(t *testing.T) {
	dir := familyGoldens
	if *fullGoldens != "" {
		dir = *fullGoldens
	}
	for _, name := range fixtureNames(t, dir) {
		t.Run(name, func(t *testing.T) {
			f := open(t, filepath.Join(dir, name))
			m := f.measure(f.net)
			t.Logf("%-18s logits %.1e hidden %.1e loss %.1e norm %.1e unmasked %.1e %.1e gradient %.1e of %s", f.name,
				m.logits, m.hidden, m.loss, m.norm, m.unmaskedLoss, m.unmaskedNorm, m.gradient, m.where)
			for _, w := range m.wrong() {
				t.Error(w)
			}
			if *fullGoldens != "" && !t.Failed() {
				reduce(t, f, filepath.Join(dir, name), filepath.Join(familyGoldens, name))
			}
		})
	}
}

// reduce copies a golden: logits in float32, of hidden states and gradients their prints.
func reduce(t *testing.T, f *fixture, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "generation_config.json", "golden.json", "model.safetensors"} {
		raw, err := os.ReadFile(filepath.Join(from, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), raw, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var list []tensor.Source
	for _, name := range slices.Sorted(maps.Keys(f.want)) {
		v, d := f.want[name], tensor.F32
		if strings.HasPrefix(name, "grad.") || strings.HasPrefix(name, "hidden.") {
			v, d = values{[]int{printLen}, footprint(name, v.v)}, tensor.F64
		}
		if name == "input_ids" {
			d = tensor.I32
		}
		list = append(list, tensor.BytesSource(tensor.Info{Name: name, DType: d, Shape: v.shape}, encode(v.v, d)))
	}
	if err := safetensors.Write(filepath.Join(to, "golden.safetensors"), list, safetensors.Options{Force: true}); err != nil {
		t.Fatal(err)
	}
}

func encode(v []float64, d tensor.DType) []byte {
	var b bytes.Buffer
	for _, x := range v {
		switch d {
		case tensor.F64:
			binary.Write(&b, binary.LittleEndian, x)
		case tensor.I32:
			binary.Write(&b, binary.LittleEndian, int32(x))
		default:
			binary.Write(&b, binary.LittleEndian, float32(x))
		}
	}
	return b.Bytes()
}

// A golden of another model is noticed, whether it is kept whole or as a print.
func TestFiguresNotice(t *testing.T) {
	f := open(t, filepath.Join(familyGoldens, "families/qwen3"))
	f.golden.CE *= 1 + 1e-6
	f.golden.Greedy[3]++
	g := f.want["grad.model.layers.1.self_attn.q_norm.weight"].v
	for j := range g {
		g[j] *= 1 + 1e-4
	}
	f.want["logits"].v[77] += 1
	got := strings.Join(f.measure(f.net).wrong(), "; ")
	for _, want := range []string{"logits", "loss", "gradient of model.layers.1.self_attn.q_norm.weight", "greedy"} {
		if !strings.Contains(got, want) {
			t.Errorf("not noticed: %s; noticed: %s", want, got)
		}
	}
	f = open(t, filepath.Join(familyGoldens, "families/qwen3"))
	f.want["logits"].v[5] = math.NaN()
	if len(f.measure(f.net).wrong()) == 0 {
		t.Error("NaN passes")
	}
}
