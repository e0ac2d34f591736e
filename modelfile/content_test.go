package modelfile_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/quant"
	"apr/tensor"
)

// contentModel writes a folder of a small random model whose matrices have type d, after change.
func contentModel(t *testing.T, d tensor.DType, change func(w weights)) string {
	t.Helper()
	c := shapes["untied, own head size"]
	w := randomWeights(c)
	for _, v := range w {
		for i := range v {
			v[i] *= 0.1
		}
	}
	change(w)
	dir := t.TempDir()
	config, err := arch.HFConfig(c, d)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
	must(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), w.sources(c, d), safetensors.Options{}))
	return dir
}

// The pass that hashes a model refuses weights that no trained model has, with the tensor, and warns of what is only
// doubtful. A sound model passes without a word.
func TestContent(t *testing.T) {
	const up, other = "model.layers.1.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"
	fill := func(v []float32, x float32) {
		for i := range v {
			v[i] = x
		}
	}
	zeros := func(v []float32) { // as multiplication by 0 leaves them
		for i := range v {
			v[i] = float32(math.Copysign(0, float64(v[i])))
		}
	}
	biases := func(w weights) {
		for name := range w {
			if strings.HasSuffix(name, ".bias") {
				clear(w[name])
			}
		}
	}
	for _, tt := range []struct {
		name    string
		dtype   tensor.DType
		change  func(w weights)
		bad     string // of the fault; empty: none
		warning string // of the line; empty: none
	}{
		{name: "sound, f32", dtype: tensor.F32, change: func(weights) {}},
		{name: "sound, bf16", dtype: tensor.BF16, change: func(weights) {}},
		{name: "sound, f16", dtype: tensor.F16, change: func(weights) {}},
		{name: "a matrix twice", dtype: tensor.BF16, change: func(w weights) { copy(w[up], w[other]) }, bad: `has the same bytes as "` + other + `"`},
		{name: "matrices that begin alike", dtype: tensor.BF16, change: func(w weights) { copy(w[up][:len(w[up])-1], w[other]) }},
		{name: "a constant matrix", dtype: tensor.BF16, change: func(w weights) { fill(w[up], 0.013) }, bad: `_proj.weight": all `},
		{name: "zeros of both signs", dtype: tensor.BF16, change: func(w weights) { zeros(w[up]) }, bad: "some of them −0"},
		{name: "zeros but one", dtype: tensor.F32, change: func(w weights) { zeros(w[up][1:]) }},
		{name: "a matrix but its last value", dtype: tensor.F16, change: func(w weights) { fill(w[up][1:], 0.013) }},
		{name: "a constant norm", dtype: tensor.BF16, change: func(w weights) { fill(w["model.norm.weight"], 1) }},
		{name: "a square that is not finite", dtype: tensor.F32, change: func(w weights) { w[up][7] = -1e30 }, bad: "a value of magnitude 1e+30"},
		{name: "a value beyond f16", dtype: tensor.BF16, change: func(w weights) { w[up][7] = 1e5 }, warning: "a value of magnitude 9.98e+04"},
		{name: "bf16 stored as f16", dtype: tensor.F16, change: func(w weights) {
			for i := range w[up] {
				w[up][i] *= 100
			}
		}, warning: "probably BF16 stored as F16"},
		{name: "a head that is the embedding", dtype: tensor.BF16, change: func(w weights) { copy(w["lm_head.weight"], w["model.embed_tokens.weight"]) }, warning: "has the same bytes"},
		{name: "all biases", dtype: tensor.BF16, change: biases, warning: "all 9 biases of q, k and v are 0"},
		{name: "all biases but one", dtype: tensor.BF16, change: func(w weights) { biases(w); w["model.layers.2.self_attn.k_proj.bias"][3] = 1e-6 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			dir := contentModel(t, tt.dtype, tt.change)
			if tt.name == "a matrix twice" || tt.name == "all biases" { // as a student may begin
				f := open(t, dir)
				var said []string
				f.Warn, f.Fresh = func(line string) { said = append(said, line) }, true
				if _, err := f.WeightsSHA256(); err != nil || len(said) != 1 && tt.bad != "" || len(said) != 0 && tt.bad == "" {
					t.Errorf("a student: %v, %q", err, said)
				}
			}
			for _, allow := range []bool{false, true} {
				f := open(t, dir)
				var said []string
				f.Warn, f.AllowOdd = func(line string) { said = append(said, line) }, allow
				var err error
				for range 2 {
					_, err = f.WeightsSHA256()
				}
				if (err != nil) != (tt.bad != "" && !allow) || err != nil && (fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), tt.bad) || !strings.Contains(err.Error(), up)) {
					t.Errorf("allow %v: %v", allow, err)
				}
				want := tt.warning
				if allow && tt.bad != "" {
					want = tt.bad
				}
				if wanted := want != "" && err == nil; wanted != (len(said) == 1) || wanted && !strings.Contains(said[0], want) {
					t.Errorf("allow %v: said %q, want %q", allow, said, want)
				}
			}
		})
	}
}

// Blocks are judged by the numbers they stand for, in whatever pieces they come.
func TestContentOfBlocks(t *testing.T) {
	f := open(t, "../testdata/models/gosrc-q4_k_m.gguf")
	t1, ok := f.File.Tensor("model.layers.0.mlp.up_proj.weight")
	if !ok {
		t.Fatal("no matrix")
	}
	raw := make([]byte, t1.Size)
	_, err := t1.ReadAt(raw, 0)
	must(t, err)
	size := t1.DType.BlockBytes()
	judge := func(raw []byte, step int) []string {
		c := modelfile.NewContent(f.Container)
		for at := 0; at < len(raw); at += step {
			must(t, c.Look(t1, raw[at:min(len(raw), at+step)], int64(at)))
		}
		all, err := c.Findings()
		must(t, err)
		var checks []string
		for _, one := range all {
			checks = append(checks, one.Check)
		}
		return checks
	}
	large, same := slices.Clone(raw), slices.Clone(raw)
	large[1] = 0x78 // the first scale, which is an f16
	constant := make([]float32, t1.Elements())
	for i := range constant {
		constant[i] = 0.5
	}
	must(t, quant.QuantizeWeighted(same, constant, nil, t1.DType))
	for _, step := range []int{size, 7 * size, len(raw)} {
		contracttest.Cases(t, 1)
		if got := judge(raw, step); len(got) > 0 {
			t.Errorf("sound: %q", got)
		}
		if got := judge(large, step); !slices.Equal(got, []string{"content.range"}) {
			t.Errorf("a large scale: %q", got)
		}
		if got := judge(same, step); !slices.Equal(got, []string{"content.constant"}) {
			t.Errorf("one value: %q", got)
		}
	}
}

// One flipped bit in a number of a GGUF file's metadata is a warning where it leaves what models have.
func TestImplausibleNumbersOfGGUF(t *testing.T) {
	file, err := os.ReadFile("../testdata/models/gosrc-q4_k_m.gguf")
	must(t, err)
	if f := open(t, "../testdata/models/gosrc-q4_k_m.gguf"); len(f.Warnings) > 0 {
		t.Errorf("as it is: %q", f.Warnings)
	}
	for _, tt := range []struct {
		key, says string
		bit       int // of the float32
	}{
		{"qwen2.rope.freq_base", "rope_theta is", 30},
		{"qwen2.rope.freq_base", "rope_theta is", 28},
		{"qwen2.attention.layer_norm_rms_epsilon", "rms_norm_eps is", 30},
		{"qwen2.attention.layer_norm_rms_epsilon", "rms_norm_eps is", 28},
	} {
		contracttest.Cases(t, 1)
		changed := slices.Clone(file)
		at := bytes.Index(changed, []byte(tt.key)) + len(tt.key) + 4 // behind the type
		changed[at+tt.bit/8] ^= 1 << (tt.bit % 8)
		path := filepath.Join(t.TempDir(), "m.gguf")
		must(t, os.WriteFile(path, changed, 0o600))
		if f := open(t, path); len(f.Warnings) != 1 || !strings.Contains(f.Warnings[0], tt.says) {
			t.Errorf("%s, bit %d: %q", tt.key, tt.bit, f.Warnings)
		}
	}
}
