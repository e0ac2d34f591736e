package main

import (
	"fmt"
	"slices"
	"testing"

	"apr/arch"
	"apr/bench/randmodel"
	"apr/internal/contracttest"
)

// Every family is cut in all ways that it has parts for, written in every format, of which each is the same model,
// and teaches what is left.
func TestFamiliesArePruned(t *testing.T) {
	visited := map[string]bool{}
	for _, m := range randmodel.Models {
		if m.Deep || !slices.Contains(allCommands, m.Name) {
			continue
		}
		_, config, err := m.Config()
		if err != nil {
			t.Fatal(err)
		}
		visited[config.Family] = true
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			contracttest.Cases(t, 1)
			newFamilyCase(t, m).pruned()
		})
	}
	for _, f := range arch.Families() {
		if !visited[f] {
			t.Errorf("no model of family %s", f)
		}
	}
}

// pruned cuts the model.
func (c *familyCase) pruned() {
	c.t.Helper()
	l, experts := arch.Layer{}, 0
	for _, x := range c.config.Layers {
		if experts = max(experts, x.FFN.MoE.Experts); x.FFN.Width > 0 && l.FFN.Width == 0 {
			l.FFN = x.FFN
		}
		if !x.Linear() && x.Attn.KVHeads > l.Attn.KVHeads {
			l.Attn = x.Attn
		}
	}
	cut := []string{"-d", c.path("text.jsonl"), "--hidden", fmt.Sprint(c.config.Hidden * 3 / 4), "--calibration-tokens", "256", "--backend", "cpu"}
	if l.FFN.Width > 0 {
		cut = append(cut, "--intermediate", fmt.Sprint(l.FFN.Width/2))
	}
	if a := l.Attn; a.Heads > a.KVHeads {
		cut = append(cut, "--heads", fmt.Sprint(a.KVHeads))
	}
	if experts > 0 {
		cut = append(cut, "--experts", fmt.Sprint(experts-1))
	}
	if n := len(c.config.Layers); n > 1 {
		cut = append(cut, "--layers", fmt.Sprint(n-1))
	}
	prune := func(from, to string) map[string]any {
		c.t.Helper()
		v := c.apr(0, append([]string{"prune", c.path(from), "-o", c.path(to)}, cut...)...)
		if before, after := c.number(v, "before.parameters"), c.number(v, "after.parameters"); !(after < before) {
			c.t.Errorf("%s: %v of %v parameters", to, after, before)
		}
		return v
	}
	c.apr(0, "convert", c.path("hf"), "-o", c.path("m.gguf"))
	for _, name := range []string{"p.apr", "p", "p.gguf"} {
		prune("hf", name)
		c.apr(0, "validate", c.path(name), "--strict")
	}
	prune("m.gguf", "q.apr")
	for _, name := range []string{"p", "p.gguf", "q.apr"} {
		v := c.apr(0, "eval", c.path(name), "--task", "agreement", "--teacher", c.path("p.apr"), "-d", c.path("text.jsonl"), "--seq-len", "32", "--max-tokens", "64", "--backend", "cpu")
		if kl := c.number(v, "kl"); !(kl <= 1e-9) {
			c.t.Errorf("%s: KL from p.apr is %v", name, kl)
		}
	}
	v := c.apr(0, "distill", c.path("hf"), "--student", c.path("p"), "-d", c.path("text.jsonl"), "--steps", "1", "--batch-size", "2", "--seq-len", "16",
		"--backend", "cpu", "--eval-every", "0", "--val-fraction", "0", "--control", "none", "--samples", "0", "--data-cache", "off", "-o", c.path("taught"))
	if got := c.number(v, "steps_completed"); got != 1 {
		c.t.Errorf("distill: %v steps", got)
	}
}
