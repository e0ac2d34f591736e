package main

import "strings"

// Starts of a student. Each has the sizes of the others, but for the 4-bit one's types.
const (
	random = "random"       // weights by the seed
	pruned = "pruned"       // cut from the teacher at once
	turns  = "turns"        // cut from the teacher in turns, and trained after each
	blocks = "pruned, q4_k" // the pruned one in blocks of 4 bits
)

// variant is a kind of student: where it begins, what is said to apr distill beside what all have in common, and
// what it is compared with. Nothing else distinguishes two variants.
type variant struct {
	name, start string
	how         string   // for the table
	against     []string // variants that it should beat
	rate        float64  // learning rate, before -rates
	share       float64  // of the tokens
	adapters    bool     // the start stays as it is, low-rank adapters are trained
	text        bool     // no teacher
	hidden      bool     // hidden states
	attention   bool     // attention maps
	teachers    string   // second teachers: mixture or route
}

const (
	mixture = "mixture"
	route   = "route"
)

// Learning rates, before -rates. What begins with the teacher's weights wants a smaller one.
const (
	rateNew     = 2e-3
	ratePruned  = 1e-3
	rateAdapter = 2e-3
)

// variants are all kinds, those first whose start takes no preparation.
var variants = []variant{
	{name: "full", start: random, how: "all weights, the teacher's logits", against: []string{"ce"}, rate: rateNew},
	{name: "ce", start: random, how: "all weights, the text alone (no teacher)", rate: rateNew, text: true},
	{name: "progressive", start: random, how: "logits and hidden states", against: []string{"full"}, rate: rateNew, hidden: true},
	{name: "attention", start: random, how: "logits and attention maps", against: []string{"full"}, rate: rateNew, attention: true},
	{name: "pruned", start: pruned, how: "all weights, the teacher's logits", against: []string{"full", "pruned-ce"}, rate: ratePruned},
	{name: "pruned-60", start: pruned, how: "the same with 60 % of the tokens", against: []string{"full"}, rate: ratePruned, share: .6},
	{name: "pruned-ce", start: pruned, how: "all weights, the text alone (no teacher)", rate: ratePruned, text: true},
	{name: "pruned-progressive", start: pruned, how: "logits and hidden states", against: []string{"pruned"}, rate: ratePruned, hidden: true},
	{name: "pruned-attention", start: pruned, how: "logits and attention maps", against: []string{"pruned"}, rate: ratePruned, attention: true},
	{name: "turns", start: turns, how: "all weights, the teacher's logits", against: []string{"pruned"}, rate: ratePruned},
	{name: "lora", start: pruned, how: "adapters of rank 32 (LoRA)", against: []string{"pruned"}, rate: rateAdapter, adapters: true},
	{name: "qlora", start: blocks, how: "adapters of rank 32 (QLoRA)", against: []string{"lora"}, rate: rateAdapter, adapters: true},
	{name: "ensemble", start: random, how: "two specialists' mixture", against: []string{"full"}, rate: rateNew, teachers: mixture},
	{name: "routed", start: random, how: "each document's specialist", against: []string{"full", "ensemble"}, rate: rateNew, teachers: route},
}

func variantOf(name string) (variant, bool) {
	for _, v := range variants {
		if v.name == name {
			return v, true
		}
	}
	return variant{}, false
}

func names() string {
	var all []string
	for _, v := range variants {
		all = append(all, v.name)
	}
	return strings.Join(all, ", ")
}

// tokens is how many of n tokens the variant takes.
func (v variant) tokens(n int) int {
	if v.share > 0 {
		return int(float64(n) * v.share)
	}
	return n
}

// args are the flags of apr distill that make this variant, given the files that were prepared. The first may be the
// teacher.
func (v variant) args(o *options, p files) []string {
	teach := []string{o.teacher}
	data := o.data
	switch v.teachers {
	case mixture:
		teach = []string{p.tools, "--teachers", p.library, "--strategy", "ensemble"}
	case route:
		teach = []string{o.teacher, "--route", toolsSource + "=" + p.tools, "--route", librarySource + "=" + p.library, "--strategy", "ensemble"}
		data = p.routed
	}
	alpha := o.Alpha
	if v.text {
		alpha = 0
	}
	args := append(teach, "-d", data, "--alpha", number(alpha))
	if v.start == random {
		args = append(args, "--student-config", p.config)
	} else {
		args = append(args, "--student", p.start)
	}
	if v.hidden {
		args = append(args, "--strategy", "progressive", "--hidden-weight", number(o.HiddenWeight))
	}
	if v.attention {
		args = append(args, "--attention-weight", number(o.AttentionWeight))
	}
	if v.adapters {
		args = append(args, "--lora")
	}
	return args
}
