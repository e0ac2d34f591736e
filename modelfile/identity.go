package modelfile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

// Relation is how two models are related by their values.
type Relation string

// The relations.
const (
	Different Relation = "different"
	Same      Relation = "same"    // equal values, up to a relative difference of 1e-5
	Derived   Relation = "derived" // the values of one are those of the other, rounded to some type; or both are of one original
)

// Kinship is the relation of two models and what decided it.
type Kinship struct {
	Relation Relation
	// Tensor is the one whose values are different, or differ most; empty where the configurations decided.
	Tensor string
	// Field is what differs in the configurations, with both values.
	Field string
	// Difference is the relative difference ‖a−b‖/max(‖a‖,‖b‖) of a stretch of that tensor, the largest of those compared.
	Difference float64
	// Rounding is what explains the difference of derived models: "q4_k of bf16".
	Rounding string
	Values   int64 // compared
	// Rows is the number of the vocabulary's rows that were compared, where one model has more; 0: both have as many.
	Rows int
	// Alike is what a sample says of the tensors of different models; nil: fewer than half are alike, or shapes differ.
	Alike *Likeness
	// Close is what the sample says of the distance of different models; nil: they are not close, or shapes differ.
	Close *Closeness
	// Moved is how many layers are those of the other model in another place; 0: fewer than half, or shapes differ.
	Moved int

	pending *finding // of values that are those of the other model narrowed, where errors are not spread
	reach   int      // errors near half a step among such values
}

// String describes the relation in a line.
func (k Kinship) String() string {
	text := k.relation()
	if k.Rows > 0 {
		text += fmt.Sprintf(" (of the vocabulary the first %d rows)", k.Rows)
	}
	if k.Alike != nil {
		text += "; " + k.Alike.String()
	}
	if k.Close != nil {
		text += "; " + k.Close.String()
	}
	if k.Moved > 0 {
		text += fmt.Sprintf("; %d layers are those of the other model in another place", k.Moved)
	}
	return text
}

func (k Kinship) relation() string {
	switch {
	case k.Field != "":
		return fmt.Sprintf("%s: %s", k.Relation, k.Field)
	case k.Relation == Derived:
		return fmt.Sprintf("%s: the relative difference is at most %.2g (%s), as rounding leaves it: %s", k.Relation, k.Difference, k.Tensor, k.Rounding)
	case k.Relation == Same:
		return fmt.Sprintf("%s: the relative difference is at most %.2g", k.Relation, k.Difference)
	}
	return fmt.Sprintf("%s: relative difference %.2g in %s", k.Relation, k.Difference, k.Tensor)
}

// Identify finds out whether a and b are one model, whatever files hold them and in which types.
//
// Where configurations differ in shapes, nothing is read; a rope_theta or rms_norm_eps of its own makes another model. Of a
// vocabulary with more rows in one model, the rows of both are compared; a bias that one model has besides must be zero. Else tensors are compared as the model computes with them, in order of name, by stretches of whole rows, up to the first that is
// different:
//
//	same       ‖a−b‖ ≤ 1e-5 · max(‖a‖,‖b‖)
//	derived    of all but 2 values in 10,000, one number rounds to both: the stored scale of each block, or the digits of bf16
//	           and f16, say which numbers a value may come from; and rounding errors are spread over the whole step
//	derived    the same of values that lie on the steps of blocks, though their type is a plain one: a file that was quantised
//	           and expanded again; or b is what our own encoder makes of a in one or two types and then in that of b
//	derived    b is a in bf16 or f16, bit for bit, and errors reach half a step: training as little as that goes beyond, too
//
// A distance alone cannot tell training from rounding: one step of AdamW at 3e-4 is a relative difference of 0.004, Q8_0 of
// 0.005, Q4_K of 0.07. What can is where errors lie: rounding leaves none beyond half a step and spreads them below it.
//
// Conversions by other programs, and longer chains, are different. Of different models of equal shapes a sample of each tensor
// says how many are those of the other model all the same, and how far matrices are from the other model's.
//
// progress gets the number of values compared so far, and in all. Fault kinds are those of reading a tensor.
func Identify(ctx context.Context, a, b *Files, progress func(done, total int64)) (Kinship, error) {
	ofA, ofB := commonBiases(a.Config, b.Config)
	if field := differentShape(ofA, ofB); field != "" {
		return Kinship{Relation: Different, Field: field}, nil
	}
	k, pairs := Kinship{Relation: Same}, tensorPairs(ofA, ofB)
	if ofA.Vocab != ofB.Vocab {
		k.Rows = min(ofA.Vocab, ofB.Vocab)
	}
	field := differentArithmetic(ofA, ofB)
	if field == "" {
		var err error
		if field, err = lonelyBias(a, b); err != nil {
			return k, err
		}
	}
	if field != "" {
		k.Relation, k.Field = Different, field
		return k, k.lookAgain(ctx, a, b, pairs)
	}
	var total int64
	for _, p := range pairs {
		n, _ := tensor.Elements(p.shape)
		total += n
	}
	for _, p := range pairs {
		if err := k.compare(ctx, a, b, p, func() { progress(k.Values, total) }); err != nil {
			return k, err
		}
		if k.Relation == Different {
			return k, k.lookAgain(ctx, a, b, pairs)
		}
	}
	if k.settle(); k.Relation == Different {
		return k, k.lookAgain(ctx, a, b, pairs)
	}
	return k, nil
}

// reachLimit is how many errors near half a step show that values were narrowed. Training that moves so many as far moves
// about as many farther, and one of those is enough to tell.
const reachLimit = 16

// settle decides about values that are those of the other model narrowed, bit for bit, when all of them are known.
func (k *Kinship) settle() {
	if k.pending != nil && k.reach < reachLimit {
		k.different(k.pending.tensor, *k.pending)
	}
}

// differentShape returns the first field in which two configurations are of different models; empty: none.
func differentShape(a, b arch.Config) string {
	for _, f := range []struct {
		name string
		a, b any
	}{
		{"hidden_size", a.Hidden, b.Hidden}, {"num_hidden_layers", len(a.Layers), len(b.Layers)},
	} {
		if f.a != f.b {
			return fmt.Sprintf("%s is %v and %v", f.name, f.a, f.b)
		}
	}
	x, y := arch.Shapes(a), arch.Shapes(oneVocabulary(a, b))
	delete(x, "lm_head.weight")
	delete(y, "lm_head.weight")
	if maps.EqualFunc(x, y, slices.Equal) { // heads of another number or size may have the same tensors
		return ""
	}
	for i, x := range a.Layers {
		y := b.Layers[i]
		for _, f := range []struct {
			name string
			a, b int
		}{
			{"num_attention_heads", x.Attn.Heads, y.Attn.Heads}, {"num_key_value_heads", x.Attn.KVHeads, y.Attn.KVHeads}, {"head_dim", x.Attn.HeadDim, y.Attn.HeadDim},
			{"intermediate_size", x.FFN.Width, y.FFN.Width},
		} {
			if f.a != f.b {
				return fmt.Sprintf("%s is %v and %v", f.name, f.a, f.b)
			}
		}
	}
	return differentArithmetic(a, b)
}

// oneVocabulary returns b with as many rows of the vocabulary as a.
func oneVocabulary(a, b arch.Config) arch.Config {
	b.Vocab = a.Vocab
	if b.PLE.Vocab > 0 && a.PLE.Vocab > 0 {
		b.PLE.Vocab = a.PLE.Vocab
	}
	return b
}

// differentArithmetic returns the first field by which models of equal shapes compute differently; empty: none. Numbers of
// files are float32 or float64.
func differentArithmetic(a, b arch.Config) string {
	for _, d := range arch.Compare(a, oneVocabulary(a, b)) {
		if !d.Computes() {
			continue
		}
		x, isX := d.A.(float64)
		y, isY := d.B.(float64)
		if isX && isY && math.Abs(x-y) <= sameLimit*max(math.Abs(x), math.Abs(y)) {
			continue
		}
		return fmt.Sprintf("%s is %v and %v", d.Path, d.A, d.B)
	}
	return ""
}

// tensorPair names a tensor in both files. Its shape is what both have.
type tensorPair struct {
	name, a, b string
	shape      []int
}

// rows returns how many rows both files have: a vector is one.
func (p tensorPair) rows() int {
	rows := 1
	for _, n := range p.shape[:max(0, len(p.shape)-1)] {
		rows *= n
	}
	return rows
}

// tensorPairs returns what is compared, in order of name. A tied head is the embedding, whether the other file writes it out
// or not. Of tables with a row for each id, the rows that both have.
func tensorPairs(a, b arch.Config) []tensorPair {
	const head, embedding = "lm_head.weight", "model.embed_tokens.weight"
	all := arch.Shapes(a)
	for name, shape := range arch.Shapes(b) {
		if x, ok := all[name]; ok {
			shape[0] = min(shape[0], x[0])
		}
		all[name] = shape
	}
	pairs := make([]tensorPair, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := tensorPair{name, name, name, all[name]}
		if name == head {
			p.shape = []int{min(a.Vocab, b.Vocab), a.Hidden}
		}
		if name == head && a.Tied {
			p.a = embedding
		}
		if name == head && b.Tied {
			p.b = embedding
		}
		pairs = append(pairs, p)
	}
	return pairs
}

// stretchValues is about how many values are judged at a time.
const stretchValues = 1 << 18

// finding is what a stretch says.
type finding struct {
	relation   Relation
	tensor     string // of one that is pending
	difference float64
	rounding   string
	values     int64
	narrowed   bool // bit for bit, with errors that are not spread: derived if enough of them
	reach      int  // are near half a step
	err        error
}

// readers returns readers of a tensor of both files, which have the pair's shape, or more rows of it.
func readers(a, b *Files, p tensorPair) (x, y *stretchReader, err error) {
	if x, err = a.stretches(p.a); err != nil {
		return nil, nil, err
	}
	if y, err = b.stretches(p.b); err != nil {
		return nil, nil, err
	}
	if rows := p.rows(); y.t.Rows() < rows || x.t.Rows() < rows || y.t.Cols() != x.t.Cols() {
		return nil, nil, fault.In(fault.Load, b.Path, "has shape %v, in %s %v", y.t.Shape, a.Path, x.t.Shape).At("tensor %q", p.b).WithID("E-MODEL-002")
	}
	return x, y, nil
}

// compare adds a pair of tensors to k. The first stretch is judged alone, because it decides for most pairs of models.
func (k *Kinship) compare(ctx context.Context, a, b *Files, p tensorPair, progress func()) error {
	x, y, err := readers(a, b, p)
	if err != nil {
		return err
	}
	rows, cols := p.rows(), x.t.Cols()
	step := max(1, stretchValues/max(1, cols))
	for lo, width := 0, 1; lo < rows; width = runtime.GOMAXPROCS(0) {
		if err := ctx.Err(); err != nil {
			return err
		}
		findings := make([]finding, min(width, (rows-lo+step-1)/step))
		var wait sync.WaitGroup
		for i := range findings {
			from := lo + i*step
			wait.Go(func() { findings[i] = judge(x, y, from, min(rows, from+step)) })
		}
		wait.Wait()
		for _, f := range findings {
			if f.err != nil {
				return f.err
			}
			if k.add(p.name, f); k.Relation == Different {
				return nil
			}
		}
		lo += len(findings) * step
		progress()
	}
	return nil
}

// add takes over what a stretch of a tensor says.
func (k *Kinship) add(name string, f finding) {
	k.Values += f.values
	if f.relation == Different {
		k.different(name, f)
		return
	}
	if f.relation == Derived {
		k.Relation = Derived
	}
	if f.narrowed {
		f.tensor = name
		k.pending, k.reach = cmp.Or(k.pending, &f), k.reach+f.reach
	}
	if f.difference > k.Difference || k.Tensor == "" {
		k.Tensor, k.Difference, k.Rounding = name, f.difference, cmp.Or(f.rounding, k.Rounding)
	}
}

// different is what k becomes by a stretch that nothing explains.
func (k *Kinship) different(name string, f finding) {
	*k = Kinship{Relation: Different, Tensor: name, Difference: f.difference, Values: k.Values, Rows: k.Rows}
}

// judge compares rows [lo,hi) of two tensors.
func judge(x, y *stretchReader, lo, hi int) finding {
	a, err := x.read(lo, hi)
	if err != nil {
		return finding{err: err}
	}
	b, err := y.read(lo, hi)
	if err != nil {
		return finding{err: err}
	}
	t := compare(a, b)
	f := finding{relation: Different, difference: t.difference(), values: int64(t.n)}
	switch {
	case t.same():
		f.relation = Same
	case roundedOne(a, b):
		f.relation, f.rounding = Derived, finer(a, b, x.t.Held().DType, y.t.Held().DType)
	case x.decodes() && encodesAs(a, b):
		f.relation, f.rounding = Derived, fmt.Sprintf("%s of %s", b.dtype, x.t.Held().DType)
	case y.decodes() && encodesAs(b, a):
		f.relation, f.rounding = Derived, fmt.Sprintf("%s of %s", a.dtype, y.t.Held().DType)
	default:
		if how := cmp.Or(expanded(a, b), recodings(a, b)); how != "" {
			f.relation, f.rounding = Derived, how
		} else if how, reach, ok := narrowed(a, b); ok {
			f.relation, f.rounding, f.narrowed, f.reach = Derived, how, true, reach
		}
	}
	return f
}

// finer says which stretch is the rounded one.
func finer(a, b *stretch, of, to tensor.DType) string {
	var x, y float64
	for i := range a.bounds {
		x, y = x+float64(a.bounds[i].Step), y+float64(b.bounds[i].Step)
	}
	if x < y {
		of, to = to, of
	}
	return fmt.Sprintf("%s of %s", of, to)
}
