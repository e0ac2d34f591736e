package prune

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// part says where a tensor of the cut model is in the teacher's of the same kind, both as matrices.
type part struct {
	from       string
	rows, cols []int   // nil: all
	factor     float64 // of what is multiplied: values, or for a norm value+offset
	offset     float64
}

// whole reports whether the tensor is the teacher's.
func (p part) whole() bool { return p.rows == nil && p.cols == nil && p.factor == 1 }

// cut says where all tensors of a cut model are.
type cut struct {
	old, config arch.Config
	kept        Kept
	im          *Importance
}

// Apply makes c, a teacher, what is kept of it. im is needed if channels or heads go.
func Apply(c *modelfile.Container, kept Kept, im *Importance) (arch.Config, error) {
	old, err := c.ReadConfig()
	if err != nil {
		return old, err
	}
	config, err := kept.Config(old)
	if err != nil {
		return old, err
	}
	k := &cut{old, config, kept, im}
	f := &file{File: c.File, byName: map[string]tensor.Stored{}}
	for _, s := range arch.Slots(config) {
		p := k.part(s)
		t, ok := c.File.Tensor(p.from)
		if !ok {
			return old, c.Missing(p.from)
		}
		if t, err = taken(c.Path, t, s, p); err != nil {
			return old, err
		}
		f.byName[s.Name] = t
		f.list = append(f.list, t)
	}
	slices.SortFunc(f.list, func(a, b tensor.Stored) int { return strings.Compare(a.Name, b.Name) })
	c.File = f
	c.ReadConfig = func() (arch.Config, error) { return config, nil }
	return config, nil
}

// part returns where slot s of the cut model comes from.
func (k *cut) part(s arch.Slot) part {
	p := part{from: s.Name, factor: 1}
	i := -1
	if s.Layer >= 0 {
		i = k.kept.Layers[s.Layer]
		_, rest, _ := strings.Cut(strings.TrimPrefix(s.Name, "model.layers."), ".")
		p.from = fmt.Sprintf("model.layers.%d.%s", i, rest)
	}
	p.rows, p.cols = k.axes(s, i)
	p.factor = k.factor(s, p.from)
	if s.Role == arch.Norm && s.Init == arch.Identity {
		p.offset = k.old.NormOffset
	}
	return p
}

// axes returns the rows and columns of slot s that stay of the teacher's layer i.
func (k *cut) axes(s arch.Slot, i int) (rows, cols []int) {
	channels := k.kept.Channels
	switch s.Role {
	case arch.Embedding, arch.Head, arch.PLEGate, arch.DeltaQKV, arch.DeltaZ, arch.DeltaA, arch.DeltaB:
		return nil, channels
	case arch.PLETable:
		return nil, k.slices()
	case arch.PLEModel:
		return k.slices(), channels
	case arch.PLEOut:
		return channels, nil
	case arch.Norm, arch.Scale:
		switch {
		case overStream(s):
			return nil, channels
		case s.Role == arch.Norm && overHeads(k.config, s):
			return nil, k.heads(i, 1)
		case strings.HasSuffix(s.Name, "router.per_expert_scale"):
			return nil, k.kept.Experts[i]
		}
		return nil, nil
	case arch.DeltaConv, arch.DeltaALog, arch.DeltaDT:
		return nil, nil
	case arch.ExpertGate, arch.ExpertUp, arch.ExpertDown, arch.Router:
		return k.experts(s, i)
	}
	return k.dense(s, i)
}

// dense is axes of attention and of a dense feed-forward network.
func (k *cut) dense(s arch.Slot, i int) (rows, cols []int) {
	channels, layer := k.kept.Channels, k.old.Layers[i]
	switch s.Role {
	case arch.Q:
		times := 1
		if layer.Attn.Gate { // d rows of a gate behind those of each head
			times = 2
		}
		rows, cols = k.heads(i, times), channels
	case arch.K, arch.V:
		if s.Bias {
			return nil, nil
		}
		return nil, channels
	case arch.O:
		if rows = channels; !s.Bias && !layer.Linear() {
			cols = k.heads(i, 1)
		}
	case arch.Sinks:
		return nil, k.kept.Heads[i]
	case arch.Gate, arch.Up:
		return k.kept.Neurons[i], channels
	case arch.Down:
		return channels, k.kept.Neurons[i]
	default:
		panic("prune: no rule for " + s.Name)
	}
	if s.Bias { // a vector is one row
		return nil, rows
	}
	return rows, cols
}

// experts is axes of a router and of experts, whose matrices are below each other.
func (k *cut) experts(s arch.Slot, i int) (rows, cols []int) {
	channels, experts := k.kept.Channels, k.kept.Experts[i]
	switch {
	case s.Role == arch.Router && s.Bias:
		return nil, experts
	case s.Role == arch.Router:
		return experts, channels
	case s.Bias && s.Role == arch.ExpertDown:
		return experts, channels
	case s.Bias:
		return experts, nil
	case s.Role == arch.ExpertDown:
		return k.below(i, k.old.Hidden, channels), nil
	}
	return k.below(i, s.Shape[1], nil), channels
}

// below returns rows of matrices that are below each other, n rows for each expert of layer i: of the experts that
// stay, the rows given.
func (k *cut) below(i, n int, rows []int) (list []int) {
	experts := k.kept.Experts[i]
	if experts == nil && rows == nil {
		return nil
	}
	for _, e := range orAll(experts, k.old.Layers[i].FFN.MoE.Experts) {
		for _, r := range orAll(rows, n) {
			list = append(list, e*n+r)
		}
	}
	return list
}

// heads returns the columns of the query heads that stay, times the width of one.
func (k *cut) heads(i, times int) (list []int) {
	width := times * k.old.Layers[i].Attn.HeadDim
	for _, h := range k.kept.Heads[i] {
		for c := range width {
			list = append(list, h*width+c)
		}
	}
	return list
}

// slices returns the columns of the per-layer embeddings of the layers that stay.
func (k *cut) slices() (list []int) {
	if len(k.kept.Layers) == len(k.old.Layers) {
		return nil
	}
	width := k.old.PLE.Width
	for _, i := range k.kept.Layers {
		for c := range width {
			list = append(list, i*width+c)
		}
	}
	return list
}

// orAll returns list, or all n indices for nil.
func orAll(list []int, n int) []int {
	if list != nil {
		return list
	}
	list = make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// factor returns what a tensor is multiplied by so that the cut model computes what the teacher does as far as what
// goes was zero: norms see the mean of fewer squares, a family's factor of the embedding may follow from the width,
// and a tied head reads the same matrix.
func (k *cut) factor(s arch.Slot, from string) float64 {
	f, embed := 1.0, k.old.EmbedScale/k.config.EmbedScale
	if k.kept.Channels != nil && overStream(s) {
		f = math.Sqrt(k.im.norms[from].share(k.kept.Channels) * float64(k.old.Hidden) / float64(k.config.Hidden))
		if s.Role == arch.Scale { // the input of such a router is divided by √hidden as well
			f *= math.Sqrt(float64(k.config.Hidden) / float64(k.old.Hidden))
		}
	}
	switch {
	case s.Role == arch.Norm && s.Layer >= 0 && overHeads(k.config, s):
		if i := k.kept.Layers[s.Layer]; k.kept.Heads[i] != nil {
			columns := k.heads(i, 1)
			f = math.Sqrt(k.im.norms[from].share(columns) * float64(k.old.Layers[i].Attn.QDim()) / float64(len(columns)))
		}
	case s.Role == arch.Embedding:
		f = embed
	case s.Name == "model.norm.weight" && k.config.Tied:
		f /= embed
	}
	return f
}

// check refuses a part that does not give slot s: a mistake of the program.
func (p part) check(t tensor.Stored, s arch.Slot) {
	want := tensor.Info{Shape: s.Shape}
	if count(p.rows, t.Rows()) != want.Rows() || count(p.cols, t.Cols()) != want.Cols() {
		panic(fmt.Sprintf("prune: %d rows and %d columns of %s %v for shape %v", count(p.rows, t.Rows()), count(p.cols, t.Cols()), p.from, t.Shape, s.Shape))
	}
}

// taken returns slot s of the cut model, which is part p of t.
func taken(path string, t tensor.Stored, s arch.Slot, p part) (tensor.Stored, error) {
	p.check(t, s)
	if p.whole() && t.DType.IsFloat() {
		t.Name = s.Name
		return t, nil
	}
	if !t.DType.IsFloat() && !t.DType.IsQuantized() {
		return t, fault.In(fault.Load, path, "has type %s, which is no weight's", t.DType).At("tensor %q", t.Name)
	}
	if int64(t.Rows())*t.DType.RowBytes(t.Cols()) != t.Size {
		return t, fault.In(fault.Load, path, "stores rows of %d values in one stream of %s blocks, which cannot be read by row", t.Cols(), t.DType).
			At("tensor %q", t.Name).WithHint("convert the model first").WithID("E-MODEL-005")
	}
	info := tensor.Info{Name: s.Name, DType: t.DType, Shape: s.Shape}
	if t.DType.IsQuantized() || len(s.Shape) == 1 && p.factor != 1 {
		info.DType = tensor.F32
	}
	info.Size = info.Elements() * int64(info.DType.BlockBytes())
	return tensor.Stored{Info: info, ReaderAt: &taker{path, t, p, info}}, nil
}
