package prune

import (
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/model/modeltest"
	"apr/modelfile"
)

// everything names all parts of a model, so that all of its tensors are taken apart.
func everything(c arch.Config) Kept {
	k := Kept{Layers: orAll(nil, len(c.Layers)), Channels: orAll(nil, c.Hidden)}
	for _, l := range c.Layers {
		var neurons, heads, experts []int
		if l.FFN.Width > 0 {
			neurons = orAll(nil, l.FFN.Width)
		}
		if !l.Linear() {
			heads = orAll(nil, l.Attn.Heads)
		}
		if n := l.FFN.MoE.Experts; n > 0 {
			experts = orAll(nil, n)
		}
		k.Neurons, k.Heads, k.Experts = append(k.Neurons, neurons), append(k.Heads, heads), append(k.Experts, experts)
	}
	return k
}

// A model of which everything is kept computes the same bits, in all families, and so does one whose parts are all
// named.
func TestAllIsKept(t *testing.T) {
	all := fixtures(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			d, f := testDevice(t), modeltest.Open(t, all[name])
			c, want, im := f.Config, logits(t, d, f), measured(t, d, f)
			kept, err := Choose(c, Target{Layers: len(c.Layers), Hidden: c.Hidden, Intermediate: width(c), Heads: heads(c), Experts: experts(c)}, im)
			if err != nil {
				t.Fatal(err)
			}
			for what, k := range map[string]Kept{"chosen": kept, "named": everything(c)} {
				f := modeltest.Open(t, all[name])
				apply(t, f, k, im)
				if !f.Config.Equal(c) {
					t.Errorf("%s: %v", what, arch.Compare(c, f.Config))
				}
				got := logits(t, d, f)
				for i := range got {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						t.Fatalf("%s: logit %d is %v, the teacher's %v", what, i, got[i], want[i])
					}
				}
			}
			for _, cut := range kept.Cuts(c, im) {
				if cut.Kept != cut.Of || cut.Share == nil || *cut.Share != 1 {
					t.Errorf("%+v", cut)
				}
			}
		})
	}
}

// dead are the parts of a random model that do nothing.
type dead struct {
	channels, heads, experts []int
	neurons                  int // the first so many of a layer of the first width, and in proportion of others
	layer                    int // −1: none
}

// constant is a channel that has one value at every position.
func constant(c arch.Config) int { return c.Hidden - 1 }

// plant makes parts of w dead.
func (d dead) plant(c arch.Config, w weights) {
	for _, s := range arch.Slots(c) {
		v := w[s.Name]
		experts, rows, cols := s.Dims()
		if s.Bias && len(s.Shape) == 2 { // of experts: a row each
			experts, rows, cols = s.Shape[0], 1, s.Shape[1]
		}
		set := func(row, col int, x float32) {
			for e := range experts {
				for r := range rows {
					for c := range cols {
						if (row < 0 || r == row) && (col < 0 || c == col) {
							v[(e*rows+r)*cols+c] = x
						}
					}
				}
			}
		}
		into := s.Role == arch.O || s.Role == arch.Down || s.Role == arch.ExpertDown || s.Role == arch.PLEOut
		switch {
		case s.Role == arch.Embedding:
			set(-1, constant(c), 1/float32(c.EmbedScale))
			for _, x := range d.channels {
				set(-1, x, 0)
			}
		case into && s.Bias && len(s.Shape) == 2:
			for _, x := range append([]int{constant(c)}, d.channels...) {
				set(-1, x, 0)
			}
		case into:
			for _, x := range append([]int{constant(c)}, d.channels...) {
				set(x, -1, 0)
			}
		case s.Role == arch.Router && !s.Bias:
			set(-1, constant(c), 0) // all others are chosen at times
			for _, e := range d.experts {
				set(e, constant(c), -1000*float32(math.Sqrt(float64(c.Hidden))))
			}
		case (s.Role == arch.Norm || s.Role == arch.Scale && len(v) == c.Hidden) && overStream(s):
			v[constant(c)] = 1
		}
		if s.Layer < 0 {
			continue
		}
		l := c.Layers[s.Layer]
		switch s.Role {
		case arch.Gate, arch.Up:
			for j := range d.neurons * l.FFN.Width / max(width(c), 1) {
				set(j, -1, 0)
			}
		case arch.Q:
			n := rows / l.Attn.Heads
			for _, h := range d.heads {
				for r := range n {
					set(h*n+r, -1, 0)
				}
			}
		case arch.O:
			for _, h := range d.heads {
				for x := range l.Attn.HeadDim {
					if !l.Linear() && !s.Bias {
						set(-1, h*l.Attn.HeadDim+x, 0)
					}
				}
			}
		}
		if into && s.Layer == d.layer {
			for i := range v { // of zeros alone a file would be damaged
				v[i] = 1e-30
			}
		}
	}
}

// without returns 0 to n−1 but for those in a list.
func without(n int, list ...int) []int {
	return slices.DeleteFunc(orAll(nil, n), func(i int) bool { return slices.Contains(list, i) })
}

// target is what leaves out the dead parts.
func (d dead) target(c arch.Config) (t Target) {
	if len(d.channels) > 0 {
		t.Hidden = c.Hidden - len(d.channels)
	}
	if d.neurons > 0 {
		t.Intermediate = width(c) - d.neurons
	}
	if len(d.heads) > 0 {
		t.Heads = heads(c) - len(d.heads)
	}
	if len(d.experts) > 0 {
		t.Experts = experts(c) - len(d.experts)
	}
	if d.layer >= 0 {
		t.Layers = len(c.Layers) - 1
	}
	return t
}

// check compares what is kept with what is alive.
func (d dead) check(t *testing.T, c arch.Config, k Kept) {
	t.Helper()
	same := func(what string, got, want []int) {
		if got == nil && len(want) > 0 {
			return
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: kept %v, want %v", what, got, want)
		}
	}
	alive := without(len(c.Layers), d.layer)
	same("layers", k.Layers, alive)
	if len(d.channels) > 0 && !slices.Equal(k.Channels, without(c.Hidden, d.channels...)) {
		t.Errorf("channels: kept %v, dead are %v", k.Channels, d.channels)
	}
	for _, i := range alive {
		l := c.Layers[i]
		if d.neurons > 0 && l.FFN.Width > 0 {
			n := d.neurons * l.FFN.Width / width(c)
			if want := orAll(nil, l.FFN.Width)[n:]; !slices.Equal(k.Neurons[i], want) {
				t.Errorf("layer %d: kept neurons %v, want %v", i, k.Neurons[i], want)
			}
		}
		if len(d.heads) > 0 && !l.Linear() && !slices.Equal(k.Heads[i], without(l.Attn.Heads, d.heads...)) {
			t.Errorf("layer %d: kept heads %v, dead are %v", i, k.Heads[i], d.heads)
		}
		if n := l.FFN.MoE.Experts; len(d.experts) > 0 && n > 0 && !slices.Equal(k.Experts[i], without(n, d.experts...)) {
			t.Errorf("layer %d: kept experts %v, dead are %v", i, k.Experts[i], d.experts)
		}
	}
}

// deadTolerance is of the largest logit; 3.4e-6 was seen.
const deadTolerance = 2e-5

// What does nothing is what goes, and the logits stay: each kind of part in each family, and all kinds together.
func TestDeadPartsGo(t *testing.T) {
	const random = "../bench/randmodel/families/"
	paths := fixtures(t)
	delete(paths, "qwen2") // of which there is a small description
	configs := map[string]string{"granitemoehybrid": random + "granitemoehybrid.json", "qwen2": random + "qwen2.json"}
	for name, path := range paths {
		configs[name] = filepath.Join(path, "config.json")
	}
	descriptions := map[string]arch.Config{"gemma4_sharing": plain(sharing(t))}
	for name, path := range configs {
		c, err := modelfile.ReadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		descriptions[name] = plain(c)
	}
	worst := 0.0
	for _, name := range slices.Sorted(maps.Keys(descriptions)) {
		c := descriptions[name]
		for what, d := range deadOf(c) {
			t.Run(name+"/"+what, func(t *testing.T) {
				contracttest.Cases(t, 1)
				dev, w := testDevice(t), numbers(c, 4)
				d.plant(c, w)
				f := save(t, c, w)
				want, im, target := logits(t, dev, f), measured(t, dev, f), d.target(c)
				if err := target.Check(c); err != nil {
					t.Fatal(err)
				}
				k, err := Choose(c, target, im)
				if err != nil {
					t.Fatal(err)
				}
				d.check(t, c, k)
				apply(t, f, k, im)
				if f.Config.Equal(c) {
					t.Error("nothing was cut")
				}
				e := far(logits(t, dev, f), want)
				if !(e <= deadTolerance) {
					t.Errorf("logits differ by %.2g of the largest", e)
				}
				worst = max(worst, e)
			})
		}
	}
	t.Logf("largest difference %.2g", worst)
}

// deadOf returns what can be dead of a description: each kind of part, and all.
func deadOf(c arch.Config) map[string]dead {
	all := map[string]dead{"channels": {channels: []int{2, 7, 8, 20}, layer: -1}}
	together := dead{channels: []int{0, 3, 17}, layer: -1}
	if width(c) > 0 {
		all["neurons"], together.neurons = dead{neurons: 6, layer: -1}, 4
	}
	if a := firstAttention(c); a.Heads > 0 {
		var heads []int // one of each group
		group := a.Heads / a.KVHeads
		for g := range a.KVHeads {
			heads = append(heads, g*group+g%group)
		}
		if group > 1 && evenGroups(c, a) {
			all["heads"], together.heads = dead{heads: heads, layer: -1}, heads
		}
	}
	if n := experts(c); n > 3 {
		all["experts"], together.experts = dead{experts: []int{1, n - 1}, layer: -1}, []int{0}
	}
	for i := range c.Layers {
		lends := false
		for j := range c.Layers {
			lends = lends || j != i && source(c, j) == i
		}
		if !lends {
			all[fmt.Sprint("layer ", i)] = dead{layer: i}
			together.layer = i
		}
	}
	all["all"] = together
	return all
}

// firstAttention is the attention of the first layer that has it.
func firstAttention(c arch.Config) arch.Attention {
	for _, l := range c.Layers {
		if !l.Linear() {
			return l.Attn
		}
	}
	return arch.Attention{}
}

// evenGroups reports whether all layers have the groups of a.
func evenGroups(c arch.Config, a arch.Attention) bool {
	for _, l := range c.Layers {
		if !l.Linear() && (l.Attn.Heads != a.Heads || l.Attn.KVHeads != a.KVHeads) {
			return false
		}
	}
	return true
}
