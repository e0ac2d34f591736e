package prune

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"apr/arch"
	"apr/internal/contracttest"
	"apr/internal/fault"
)

// changed reads a fixture's configuration with replaced text.
func changed(t *testing.T, name string, replace ...string) arch.Config {
	t.Helper()
	path := "../testdata/golden/" + name + "/config.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := string(text)
	for i := 0; i < len(replace); i += 2 {
		if !strings.Contains(s, replace[i]) {
			t.Fatalf("%s: no %q", path, replace[i])
		}
		s = strings.Replace(s, replace[i], replace[i+1], 1)
	}
	c, err := arch.Parse(path, s, arch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sharing is a model of six layers, of which the last two read the keys and values of layers 2 and 3.
func sharing(t *testing.T) arch.Config {
	return changed(t, "variants/gemma4_ple", `"num_hidden_layers": 4`, `"num_hidden_layers": 6`,
		`"layer_types": [`, `"layer_types": ["sliding_attention", "full_attention",`)
}

func TestTargetsThatCannotBe(t *testing.T) {
	dense, moe, delta, four := changed(t, "families/llama"), changed(t, "families/qwen3_moe"), changed(t, "families/qwen3_5_text"), sharing(t)
	bigger := dense
	bigger.Layers = slices.Clone(dense.Layers)
	bigger.Layers[1].Attn.Heads *= 2
	double := dense
	double.Layers = slices.Clone(dense.Layers)
	double.Layers[1].FFN.Width = 97
	for _, x := range []struct {
		c    arch.Config
		t    Target
		want string
	}{
		{dense, Target{Layers: 4}, "--layers: is 4, and the teacher has 3 layers"},
		{dense, Target{Hidden: 65}, "--hidden: is 65, and the teacher has 64 channels"},
		{dense, Target{Intermediate: 97}, "--intermediate: is 97, and the teacher has 96 neurons"},
		{dense, Target{Heads: 5}, "--heads: is 5, and the teacher has 4 query heads"},
		{dense, Target{Heads: 3}, "3 query heads cannot share the 2 key-value heads of layer 0"},
		{dense, Target{Heads: 1}, "1 query heads cannot share the 2 key-value heads of layer 0"},
		{dense, Target{Experts: 1}, "this llama model has no experts"},
		{dense, Target{Hidden: -1}, "--hidden: is -1"},
		{dense, Target{Choice: "0,3"}, "names layer 3, and the teacher has layers 0 to 2"},
		{dense, Target{Choice: "1,0"}, "names layer 0 after layer 1"},
		{dense, Target{Choice: "1,1"}, "names layer 1 after layer 1"},
		{dense, Target{Choice: "2-1"}, `"2-1" is neither importance, even nor a list of layers`},
		{dense, Target{Choice: "first"}, `"first" is neither importance, even nor a list of layers`},
		{dense, Target{Choice: "0,"}, `"0," is neither`},
		{dense, Target{Choice: "+1"}, `"+1" is neither`},
		{dense, Target{Choice: "0-99999999999999999999"}, "is neither"},
		{dense, Target{Choice: "0-2", Layers: 2}, "--layers: is 2, and --layer-choice names 3"},
		{moe, Target{Experts: 1}, "--experts: is 1, and each token uses 2"},
		{moe, Target{Experts: 9}, "--experts: is 9, and the teacher has 8 experts"},
		{delta, Target{Heads: 3}, "cannot share the 2 key-value heads of layer 2"},
		{four, Target{Layers: 7}, "the teacher has 6 layers"},
		{bigger, Target{Heads: 2}, "layer 1 has 8 query heads and others have 4"},
		{double, Target{Intermediate: 50}, "50 of 96 is not a whole number of the 97 neurons of layer 1"},
	} {
		t.Run(x.want, func(t *testing.T) {
			contracttest.Cases(t, 1)
			err := x.t.Check(x.c)
			if fault.KindOf(err) != fault.Usage || !strings.Contains(fmt.Sprint(err), x.want) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := (Target{Experts: 3}).Check(changed(t, "variants/qwen3_moe_mixed")); err != nil { // some layers have none
		t.Error(err)
	}
}

func TestLayersAreChosen(t *testing.T) {
	c, lean := sharing(t), changed(t, "families/llama")
	im := &Importance{Layers: []float64{.5, .1, .2, .3, .6, .4}}
	for _, x := range []struct {
		name string
		c    arch.Config
		t    Target
		want []int
		err  string
	}{
		{"all", c, Target{}, []int{0, 1, 2, 3, 4, 5}, ""},
		{"all of them, evenly", lean, Target{Layers: 3, Choice: Evenly}, []int{0, 1, 2}, ""},
		{"the ends", lean, Target{Layers: 2, Choice: Evenly}, []int{0, 2}, ""},
		{"the last", lean, Target{Layers: 1, Choice: Evenly}, []int{2}, ""},
		{"a list", c, Target{Choice: "0-2,4"}, []int{0, 1, 2, 4}, ""},
		{"a list of one", lean, Target{Choice: "1,2"}, []int{1, 2}, ""},
		{"by importance", lean, Target{Layers: 2}, []int{0, 2}, ""},
		{"with its keys", c, Target{Layers: 3}, []int{0, 2, 4}, ""},   // 4 reads 2
		{"with both", c, Target{Layers: 5}, []int{0, 2, 3, 4, 5}, ""}, // 5 reads 3
		{"without room", c, Target{Layers: 1, Choice: "0"}, []int{0}, ""},
		{"keys that went", c, Target{Choice: "0,1,2,5"}, nil, "keeps layer 5, which reads the keys and values of layer 3, and not that one"},
		{"keys that went, evenly", c, Target{Layers: 2, Choice: Evenly}, nil, "keeps layer 5, which reads"},
	} {
		t.Run(x.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			k, err := Choose(x.c, x.t, im)
			if x.err != "" {
				if fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), x.err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || !slices.Equal(k.Layers, x.want) {
				t.Errorf("%v, %v; want %v", k.Layers, err, x.want)
			}
		})
	}
}

// What belongs to layers follows those that stay: keys and values, windows, rotary embeddings, layers without them,
// experts.
func TestLayersKeepWhatIsTheirs(t *testing.T) {
	cut := func(c arch.Config, layers ...int) arch.Config {
		t.Helper()
		contracttest.Cases(t, 1)
		n := len(c.Layers)
		out, err := Kept{Layers: layers, Neurons: make([][]int, n), Heads: make([][]int, n), Experts: make([][]int, n)}.Config(c)
		if err != nil {
			t.Fatal(err)
		}
		for at, i := range layers {
			was, is := c.Layers[i], out.Layers[at]
			r, ok := c.Rope(i)
			if s, has := out.Rope(at); ok != has || fmt.Sprint(r) != fmt.Sprint(s) {
				t.Errorf("layer %d: rotary embedding %v, was %v", i, s, r)
			}
			was.Attn.KVFrom, was.Attn.Rope, is.Attn.KVFrom, is.Attn.Rope = 0, 0, 0, 0
			if fmt.Sprint(was) != fmt.Sprint(is) {
				t.Errorf("layer %d: %v, was %v", i, is, was)
			}
		}
		if _, err := arch.HFConfig(out, out.DType); err != nil {
			t.Errorf("%v: %v", layers, err)
		}
		return out
	}
	c := cut(sharing(t), 0, 2, 3, 4, 5)
	for i, from := range []int{0, 1, 2, 1, 2} {
		if got := c.Layers[i].Attn.KVFrom; got != from {
			t.Errorf("layer %d reads the keys of layer %d, want %d", i, got, from)
		}
	}
	for _, name := range []string{"families/gemma3_text", "families/smollm3", "families/olmo3", "families/gpt_oss", "families/qwen3_5_text", "variants/qwen3_moe_mixed"} {
		c := changed(t, name)
		for i := range c.Layers {
			cut(c, without(len(c.Layers), i)...)
		}
	}
}
