package convert

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

const upName, downName = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"

// validateCase is a change of a healthy model, and what the checks find in it.
type validateCase struct {
	name   string
	tied   bool
	dtype  tensor.DType
	change func(w map[string][]float32)
	opt    ValidateOptions
	check  string // that fails; empty: the model is valid
	tensor string
	status Status
}

func (tt validateCase) judge(t *testing.T) {
	cfg := tiny(tt.tied)
	w := weightsOf(cfg)
	if tt.change != nil {
		tt.change(w)
	}
	if tt.dtype == tensor.Invalid {
		tt.dtype = tensor.F32
	}
	c := open(t, folder(t, cfg, w, tt.dtype))
	v, err := Validate(context.Background(), c, tt.opt, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad := slices.DeleteFunc(slices.Clone(v.Checks), func(c Check) bool { return c.Status == Passed })
	switch {
	case tt.check == "" && len(bad) > 0, tt.check == "" && v.Score != 100:
		t.Errorf("score %d, findings %+v", v.Score, bad)
	case tt.check != "" && (len(bad) != 1 || bad[0].ID != tt.check || bad[0].Tensor != tt.tensor ||
		bad[0].Status != tt.status):
		t.Errorf("findings %+v", bad)
	}
	if fails := v.Fault("f", 0) != nil; fails != (tt.status == Failed) || v.Valid == fails {
		t.Errorf("valid %v, fault %v", v.Valid, v.Fault("f", 0))
	}
	if tt.status == Warning {
		tt.opt.Strict = true
		if v, err := Validate(context.Background(), c, tt.opt, nil); err != nil || v.Valid {
			t.Errorf("strict: %v, %+v", err, v)
		}
		if v.Fault("f", 99) == nil || v.Fault("f", 98) != nil {
			t.Errorf("score %d", v.Score)
		}
	}
}

func TestValidate(t *testing.T) {
	zero := func(w map[string][]float32, name string) { clear(w[name]) }
	tests := []validateCase{
		{name: "healthy"},
		{name: "healthy and tied", tied: true},
		{name: "healthy, with quality", opt: ValidateOptions{Quality: true}},
		{name: "NaN", change: func(w map[string][]float32) { w[upName][7] = nan }, check: "content.finite", tensor: upName, status: Failed},
		{name: "infinity", change: func(w map[string][]float32) { w["model.norm.weight"][0] = inf }, check: "content.finite", tensor: "model.norm.weight", status: Failed},
		{name: "dead matrix", change: func(w map[string][]float32) { zero(w, upName) }, check: "content.zero", tensor: upName, status: Failed},
		{name: "dead matrix of both signs", change: func(w map[string][]float32) {
			for i, x := range w[upName] {
				w[upName][i] = float32(math.Copysign(0, float64(x)))
			}
		}, check: "content.zero", tensor: upName, status: Failed},
		{name: "dead norm", change: func(w map[string][]float32) { zero(w, "model.norm.weight") }, check: "content.zero", tensor: "model.norm.weight", status: Failed},
		{name: "zero bias is fine", change: func(w map[string][]float32) { zero(w, "model.layers.0.self_attn.q_proj.bias") }},
		{name: "a norm that cannot be squared", change: func(w map[string][]float32) { w["model.norm.weight"][0] = 3.4e38 }, check: "content.range", tensor: "model.norm.weight", status: Failed},
		{name: "a weight beyond f16", change: func(w map[string][]float32) { w[upName][7] = -1e5 }, check: "content.range", tensor: upName, status: Warning},
		{name: "constant matrix", change: func(w map[string][]float32) {
			for i := range w[upName] {
				w[upName][i] = 0.25
			}
		}, check: "content.constant", tensor: upName, status: Failed},
		{name: "head copies the embedding", change: func(w map[string][]float32) { w[headName] = w[embedName] }, check: "content.duplicate", tensor: embedName, status: Warning},
		{name: "a matrix twice", change: func(w map[string][]float32) { w[upName] = w["model.layers.0.mlp.gate_proj.weight"] }, check: "content.duplicate", tensor: upName, status: Failed},
		{name: "all biases zero", change: func(w map[string][]float32) {
			for _, b := range []string{"q", "k", "v"} {
				zero(w, "model.layers.0.self_attn."+b+"_proj.bias")
			}
		}, check: "content.bias", status: Warning},
		{name: "head copies the embedding of a tied model", tied: true, change: func(w map[string][]float32) { w[headName] = w[embedName] }},
		{name: "dead head", change: func(w map[string][]float32) { zero(w, headName); w[headName][5] = 1 }, check: "content.zero", tensor: headName, status: Failed},
		{name: "another head in a tied model", tied: true, change: func(w map[string][]float32) {
			w[headName] = slices.Clone(w[embedName])
			w[headName][0]++
		}, check: "config.tied", tensor: headName, status: Failed},
		{name: "missing tensor", change: func(w map[string][]float32) { delete(w, upName) }, check: "config.tensors", tensor: upName, status: Failed},
		{name: "foreign tensor", change: func(w map[string][]float32) { w["model.extra"] = []float32{1} }, check: "config.tensors", tensor: "model.extra", status: Failed},
		{name: "BF16 read as F16", dtype: tensor.F16, change: func(w map[string][]float32) {
			for i := range w[upName] {
				w[upName][i] *= 20
			}
		}, check: "content.f16", tensor: upName, status: Warning},
		{name: "outlier", opt: ValidateOptions{Quality: true}, change: func(w map[string][]float32) { w[embedName][0] = 1e3 }, check: "quality.outliers", tensor: embedName, status: Warning},
		{name: "scale", opt: ValidateOptions{Quality: true}, change: func(w map[string][]float32) {
			for i := range w[upName] {
				w[upName][i] *= 1e4
			}
		}, check: "quality.scale", tensor: upName, status: Warning},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.judge)
	}
}

func TestValidateWithoutParts(t *testing.T) {
	dir := folder(t, tiny(false), weightsOf(tiny(false)), tensor.F32)
	if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
		t.Fatal(err)
	}
	v, err := Validate(context.Background(), open(t, dir), ValidateOptions{}, nil)
	if err != nil || !v.Valid || v.Warnings != 1 {
		t.Errorf("no tokenizer: %v, %+v", err, v)
	}
	small := tiny(false)
	small.Vocab, small.EOS = 100, []int{5}
	w := weightsOf(small)
	v, err = Validate(context.Background(), open(t, folder(t, small, w, tensor.F32)), ValidateOptions{}, nil)
	if err != nil || v.Valid || !slices.ContainsFunc(v.Checks, func(c Check) bool { return c.ID == "tokenizer.rows" && c.Status == Failed }) {
		t.Errorf("more tokens than rows: %v, %+v", err, v)
	}
	v, err = Validate(context.Background(), bare(nil), ValidateOptions{}, nil)
	if err != nil || v.Valid {
		t.Errorf("no tensor at all: %v, %+v", err, v)
	}
}

// TestValidateAPR flips one byte in every region of an .apr file: each flip must be found.
func TestValidateAPR(t *testing.T) {
	cfg := tiny(true)
	c := open(t, folder(t, cfg, weightsOf(cfg), tensor.F32))
	path := filepath.Join(t.TempDir(), "m.apr")
	if _, err := Write(context.Background(), c, path, Options{}); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Validate(context.Background(), open(t, path), ValidateOptions{Strict: true, Quality: true}, nil)
	if err != nil || !v.Valid || v.Score != 100 {
		t.Fatalf("%v, %+v", err, v)
	}
	step := len(good)/40 + 1
	for i := 0; i < len(good); i += step {
		data := slices.Clone(good)
		data[i] ^= 0x10
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Open(path)
		if err == nil {
			_, err = Validate(context.Background(), c, ValidateOptions{}, nil)
			c.Close()
		}
		if k := fault.KindOf(err); k != fault.Format {
			t.Errorf("byte %d of %d flipped: %v", i, len(good), err)
		}
	}
}

func TestSummary(t *testing.T) {
	c := open(t, shared)
	s, err := Summarize(context.Background(), c, true)
	if err != nil {
		t.Fatal(err)
	}
	if s.ParamCount != 6854912 || s.Architecture != "qwen2" || s.Tied || s.DTypes["bf16"] != 75 || s.Tokenizer["tokens"] != 4096 || len(*s.SHA256) != 64 {
		t.Errorf("%+v", s)
	}
	cfg := tiny(true)
	dir := folder(t, cfg, weightsOf(cfg), tensor.F32)
	out := filepath.Join(t.TempDir(), "m.apr")
	if _, err := Write(context.Background(), open(t, dir), out, Options{Version: "9"}); err != nil {
		t.Fatal(err)
	}
	if s, err = Summarize(context.Background(), open(t, out), false); err != nil {
		t.Fatal(err)
	}
	if !s.Tied || s.ParamCount != cfg.Parameters() || s.Provenance["writer"] != "apr/9" || s.SHA256 != nil {
		t.Errorf("%+v, want %d parameters", s, cfg.Parameters())
	}
}

func TestOpenFinds(t *testing.T) {
	cfg := tiny(true)
	dir := t.TempDir()
	if _, err := Write(context.Background(), open(t, folder(t, cfg, weightsOf(cfg), tensor.F32)), filepath.Join(dir, "model.apr"), Options{}); err != nil {
		t.Fatal(err)
	}
	if c := open(t, dir); c.Format != "apr" {
		t.Errorf("a directory with one .apr file opens as %s", c.Format)
	}
	data, err := os.ReadFile(filepath.Join(dir, "model.apr"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other.apr"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); fault.KindOf(err) != fault.NotFound || !strings.Contains(err.Error(), "several") {
		t.Errorf("two files: %v", err)
	}
	misnamed := filepath.Join(t.TempDir(), "model.safetensors")
	if err := os.WriteFile(misnamed, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if c := open(t, misnamed); c.Format != "apr" {
		t.Errorf("content decides: got %s", c.Format)
	}
	for name, head := range map[string]string{"pickle": "\x80\x04rest of it", "zip": "PK\x03\x04rest", "gguf": "GGUF\x03rest", "text": "hello world"} {
		p := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(p, []byte(head), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(p); fault.KindOf(err) != fault.Format {
			t.Errorf("%s: %v", name, err)
		}
	}
	var none arch.Config
	if len(ConfigFields(none)) != 14 {
		t.Error("fields of a configuration changed: check diff and inspect")
	}
}

// Heads are those of a layer that has attention, and experts and linear attention are listed where a model has them.
func TestConfigFields(t *testing.T) {
	attention := arch.Layer{Attn: arch.Attention{HeadDim: 32, Heads: 4, KVHeads: 2}}
	linear := arch.Layer{Delta: arch.DeltaNet{KeyHeads: 2, ValueHeads: 4, KeyDim: 16, ValueDim: 16, Conv: 4}}
	experts := attention
	experts.FFN.MoE = arch.MoE{Experts: 8, Active: 2, Width: 48}
	got := map[string]any{}
	for _, f := range ConfigFields(arch.Config{Layers: []arch.Layer{linear, linear, experts}}) {
		got[f.Key] = f.Value
	}
	for key, want := range map[string]int{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
		"linear_attention_layers": 2, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48} {
		if got[key] != want {
			t.Errorf("%s is %v, want %d", key, got[key], want)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "a", true}, {"v_proj", "model.layers.0.self_attn.v_proj.weight", true}, {"*.bias", "x.bias", true},
		{"*.bias", "x.weight", false}, {"q", "x", false}, {"[", "[", false},
	} {
		if got := Match(tt.pattern, tt.name); got != tt.want {
			t.Errorf("Match(%q, %q) = %v", tt.pattern, tt.name, got)
		}
	}
}
