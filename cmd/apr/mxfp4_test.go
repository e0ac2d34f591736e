package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/format"
	"apr/format/safetensors"
	"apr/internal/contracttest"
	"apr/tensor"
)

// randomFamily is the case of a random model by its name.
func randomFamily(t *testing.T, name string) *familyCase {
	t.Helper()
	i := slices.IndexFunc(randmodel.Models, func(m randmodel.Model) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("no random model %s", name)
	}
	return newFamilyCase(t, randmodel.Models[i])
}

// stored returns the tensors of a file as it has them: type, shape and bytes.
func (c *familyCase) stored(name string) map[string]tensor.Source {
	c.t.Helper()
	f, _, err := format.Open(c.path(name))
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	all := map[string]tensor.Source{}
	for _, s := range f.Tensors() {
		all[s.Name] = tensor.BytesSource(s.Info, content(c.t, s))
	}
	return all
}

// payload returns the bytes of a tensor that is at hand.
func payload(t *testing.T, s tensor.Source) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.Payload(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// same requires that two files have the same tensors, of one type, byte for byte.
func (c *familyCase) same(a, b string) {
	c.t.Helper()
	x, y := c.stored(a), c.stored(b)
	if len(x) != len(y) {
		c.t.Errorf("%s has %d tensors, %s has %d", a, len(x), b, len(y))
	}
	for name, s := range x {
		if o, ok := y[name]; !ok || !s.Equal(o.Info) || !bytes.Equal(payload(c.t, s), payload(c.t, o)) {
			c.t.Errorf("%s: %s is another in %s", name, a, b)
		}
	}
}

// hfMXFP4 returns the values that a folder's codes and scales stand for by the words of its format: byte j of a block is elements 2j
// (low) and 2j+1, floats with a sign, two bits of exponent and one of mantissa, times 2^(scale−127).
func hfMXFP4(codes, scales []byte) []float64 {
	floats := [16]float64{0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6}
	var v []float64
	for i, b := range codes {
		scale := math.Ldexp(1, int(scales[i/16])-127)
		v = append(v, floats[b&15]*scale, floats[b>>4]*scale)
	}
	return v
}

// TestMXFP4OfGPTOSS: experts become MXFP4 in the layout of gpt-oss's folders, and move byte for byte through .apr and GGUF files and
// back, whatever the way.
func TestMXFP4OfGPTOSS(t *testing.T) {
	contracttest.Cases(t, 1)
	c := randomFamily(t, "gpt_oss")
	c.apr(0, "convert", c.path("hf"), "--quantize", "mxfp4", "-o", c.path("mx"))
	original, mx := c.stored("hf"), c.stored("mx")
	const e, h, i = 4, 256, 256
	for name, wide := range map[string]int{"gate_up_proj": 2 * i, "down_proj": h} {
		at := "model.layers.1.mlp.experts." + name
		blocks, scales := mx[at+"_blocks"], mx[at+"_scales"]
		if !slices.Equal(blocks.Shape, []int{e, wide, 8, 16}) || !slices.Equal(scales.Shape, []int{e, wide, 8}) || blocks.DType != tensor.U8 || scales.DType != tensor.U8 {
			t.Fatalf("%s: shapes %v and %v", name, blocks.Shape, scales.Shape)
		}
		s := payload(t, scales)
		got := hfMXFP4(payload(t, blocks), s)
		want := make([]float32, e*256*wide) // [e, in, out]
		tensor.Widen(want, payload(t, original[at]), tensor.F32)
		for k, x := range got {
			expert, out, in := k/(wide*256), k/256%wide, k%256
			// codes are at most one apart where they are farthest, of which half is lost; the largest may be cut from 8 to 6
			if d := math.Abs(x - float64(want[(expert*256+in)*wide+out])); !(d <= 2*math.Ldexp(1, int(s[k/32])-127)) {
				t.Fatalf("%s: value (%d, %d, %d) is off by %g", name, expert, out, in, d)
			}
		}
	}
	if text := string(read(t, c.path("mx/config.json"))); !strings.Contains(text, `"quant_method": "mxfp4"`) || !strings.Contains(text, `"model.layers.*.mlp.router"`) {
		t.Errorf("config.json: %s", text)
	}

	v := c.apr(0, "import", c.path("mx"), "-o", c.path("m.apr"))
	if kept := c.at(v, "preserved").([]any); len(kept) != 3*4 {
		t.Errorf("import kept %v", kept)
	}
	c.apr(0, "export", c.path("m.apr"), "--format", "gguf", "-o", c.path("m.gguf"))
	c.apr(0, "convert", c.path("mx"), "-o", c.path("straight.gguf"))
	c.apr(0, "import", c.path("m.gguf"), "-o", c.path("again.apr"))
	c.apr(0, "convert", c.path("again.apr"), "-o", c.path("back"))
	c.apr(0, "export", c.path("m.gguf"), "--format", "hf", "-o", c.path("straight"))
	c.same("m.gguf", "straight.gguf")
	c.same("m.apr", "again.apr")
	c.same("mx", "back")
	c.same("mx", "straight")
	if a, b := read(t, c.path("mx/model.safetensors")), read(t, c.path("back/model.safetensors")); !bytes.Equal(a, b) {
		t.Error("the folder's file is another after .apr and GGUF")
	}
	gg := c.stored("m.gguf")["blk.2.ffn_up_exps.weight"]
	if gg.DType != tensor.MXFP4 || !slices.Equal(gg.Shape, []int{e, i, h}) || gg.Size != e*i*h/32*17 {
		t.Errorf("GGUF: %v of shape %v, %d bytes", gg.DType, gg.Shape, gg.Size)
	}
	// by the words of GGUF's format: a scale, then byte j is elements j (low) and j+16; up is every second row of the folder's
	raw, codes, scales := payload(t, gg), payload(t, mx["model.layers.2.mlp.experts.gate_up_proj_blocks"]), payload(t, mx["model.layers.2.mlp.experts.gate_up_proj_scales"])
	for k := range e * i * h {
		block, in := k/32, k%32
		row := k / h
		from := (row/i*2*i+2*(row%i)+1)*h + k%h // in the folder
		code := codes[from/2] >> (4 * (from % 2)) & 15
		if raw[17*block] != scales[from/32] || raw[17*block+1+in%16]>>(4*(in/16))&15 != code {
			t.Fatalf("GGUF: value %d of blk.2.ffn_up_exps is another than the folder's %d", k, from)
		}
	}
	c.apr(0, "validate", c.path("m.gguf"))
	c.apr(0, "validate", c.path("m.apr"))
	c.apr(0, "validate", c.path("mx"))
}

// damaged copies the folder mx with its tensors changed.
func (c *familyCase) damaged(from, name string, change func(all map[string]tensor.Source)) string {
	c.t.Helper()
	all := c.stored(from)
	change(all)
	var sources []tensor.Source
	for _, s := range all {
		sources = append(sources, s)
	}
	if err := os.CopyFS(c.path(name), os.DirFS(c.path(from))); err != nil {
		c.t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(c.path(name), "model.safetensors"), sources, safetensors.Options{Force: true}); err != nil {
		c.t.Fatal(err)
	}
	return c.path(name)
}

// message requires that a command fails with a code and says something.
func (c *familyCase) message(code int, want string, args ...string) {
	c.t.Helper()
	if got := c.at(c.apr(code, args...), "error.message").(string); !strings.Contains(got, want) {
		c.t.Errorf("apr %s: %s, want %q", strings.Join(args, " "), got, want)
	}
}

// TestBadExperts: what is wrong with experts is named with key and value: a scale that is NaN, tensors that are missing or of
// another number, more experts of a token than there are.
func TestBadExperts(t *testing.T) {
	contracttest.Cases(t, 1)
	c := randomFamily(t, "gpt_oss")
	c.apr(0, "convert", c.path("hf"), "--quantize", "mxfp4", "-o", c.path("mx"))
	const gate, down = "model.layers.3.mlp.experts.gate_up_proj", "model.layers.3.mlp.experts.down_proj"
	nan := c.damaged("mx", "nan", func(all map[string]tensor.Source) {
		s := all[gate+"_scales"]
		raw := payload(t, s)
		raw[(2*512+301)*8+5] = 255 // of expert 2, up's row 150
		all[gate+"_scales"] = tensor.BytesSource(s.Info, raw)
	})
	for _, out := range []string{"x.apr", "x.gguf", "x"} {
		c.message(4, `element [2 301 5] is 255, which is NaN`, "convert", nan, "-o", c.path(out))
		if _, err := os.Stat(c.path(out)); err == nil {
			t.Errorf("%s appeared", out)
		}
	}
	c.apr(0, "convert", c.path("mx"), "-o", c.path("m.gguf"))
	file := read(t, c.path("m.gguf"))
	blocks := payload(t, c.stored("m.gguf")["blk.1.ffn_down_exps.weight"])
	file[bytes.Index(file, blocks)+17*1000] = 255
	if err := os.WriteFile(c.path("nan.gguf"), file, 0o600); err != nil {
		t.Fatal(err)
	}
	c.message(4, "block 1000 (row 125, column 0) has scale 255, which is NaN", "import", c.path("nan.gguf"), "-o", c.path("y.apr"))

	missing := c.damaged("mx", "missing", func(all map[string]tensor.Source) { delete(all, down+"_scales") })
	c.message(6, "is missing, and 1 of the 2 tensors of its kind in this layer are there", "import", missing, "-o", c.path("y.apr"))
	moe := randomFamily(t, "qwen3_moe")
	each := moe.damaged("hf", "missing", func(all map[string]tensor.Source) { delete(all, "model.layers.1.mlp.experts.4.up_proj.weight") })
	moe.message(6, "is missing, and 5 of the 6 tensors of its kind in this layer are there; the configuration needs it with shape [256 256]",
		"run", each, "-p", "a", "--no-gpu")

	for i, bad := range []struct {
		replace []string // old, new
		code    int
		want    string
	}{
		{[]string{`"num_local_experts": 4`, `"num_local_experts": 5`}, 6, "the configuration needs [5 "},
		{[]string{`"num_experts_per_tok": 2`, `"num_experts_per_tok": 9`, `"experts_per_token": 2`, `"experts_per_token": 9`},
			5, "num_experts_per_tok is 9, not between 1 and 4"},
		{[]string{`"num_experts_per_tok": 2`, `"num_experts_per_tok": 1`}, 4, "2 is not num_experts_per_tok, 1"},
	} {
		dir := c.damaged("mx", fmt.Sprint("bad", i), func(map[string]tensor.Source) {})
		config := strings.NewReplacer(bad.replace...).Replace(string(read(t, c.path("mx/config.json"))))
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		c.message(bad.code, bad.want, "import", dir, "-o", c.path("z.apr"))
	}
	c.message(5, "mxfp4 is a type of experts, and this model has none", "quantize", "../../testdata/models/gosrc", "-s", "mxfp4", "-o", c.path("z.apr"))
}

// TestMXFP4Teacher: experts in MXFP4 of a family that has them one by one keep their blocks in .apr and GGUF, compute as their values
// do, and teach.
func TestMXFP4Teacher(t *testing.T) {
	contracttest.Cases(t, 1)
	c := randomFamily(t, "qwen3_moe")
	c.apr(0, "quantize", c.path("hf"), "-s", "mxfp4", "-o", c.path("m.apr"))
	c.apr(0, "export", c.path("m.apr"), "--format", "gguf", "-o", c.path("m.gguf"))
	c.apr(0, "import", c.path("m.gguf"), "-o", c.path("again.apr"))
	c.same("m.apr", "again.apr")
	c.apr(0, "import", c.path("m.gguf"), "--no-preserve-quant", "-o", c.path("values.apr"))
	c.apr(0, "convert", c.path("m.apr"), "-o", c.path("folder"))
	experts, stored := 0, c.stored("m.apr")
	for _, s := range arch.Slots(c.config) {
		if m := stored[s.Name]; m.DType == tensor.MXFP4 {
			experts++
			if m.Size != s.Elements()/32*17 {
				t.Errorf("%s: %d bytes of %d values", s.Name, m.Size, s.Elements())
			}
		}
	}
	if experts != 9 {
		t.Errorf("%d tensors of MXFP4", experts)
	}
	for _, file := range []string{"values.apr", "folder", "m.gguf"} {
		v := c.apr(0, "eval", c.path("m.apr"), "--task", "agreement", "--teacher", c.path(file), "-d", c.path("text.jsonl"),
			"--seq-len", "32", "--max-tokens", "64", "--backend", "cpu")
		if kl := c.number(v, "kl"); kl != 0 {
			t.Errorf("%s: KL is %v", file, kl)
		}
	}
	c.apr(0, "run", c.path("m.gguf"), "-p", familyText[:60], "-n", "4", "--no-gpu")
	young := []string{c.path("m.gguf"), "--student-config", c.path("student.json"), "-d", c.path("text.jsonl"),
		"--batch-size", "2", "--seq-len", "16", "--steps", "2",
		"--backend", "cpu", "--control", "none"}
	c.apr(0, append(append([]string{"distill"}, young...), "--eval-every", "0", "--data-cache", "off", "-o", c.path("run"))...)
	c.planned(c.apr(0, append([]string{"plan"}, young...)...))
}
