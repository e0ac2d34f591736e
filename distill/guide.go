package distill

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"apr/arch"
	"apr/device"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/model"
	"apr/teacher"
	"apr/tensor"
)

// Guide says what is compared layer by layer. The zero Guide compares nothing.
type Guide struct {
	Weight    float64 // of the squared error of each pair of hidden states; 0: they are not compared
	Attention float64 // of the divergence of attention maps; 0: they are not compared
	Map       []string
}

// any reports whether anything is compared.
func (g Guide) any() bool { return g.Weight != 0 || g.Attention != 0 }

// MapAuto and MapBottomUp are the layer maps that need no list.
const (
	MapAuto     = "auto"
	MapBottomUp = "bottom-up"
)

// Pair is a layer of the student and the layer of the teacher that it is compared with, both from 0. A layer is the
// residual stream behind its block, before the final norm.
type Pair struct {
	Student int `json:"student"`
	Teacher int `json:"teacher"`
}

// pairs returns the pairs of a student of ls layers and a teacher of lt, in order of the student's layers.
//
//	auto: layer s goes with ⌈(s+1)·lt/ls⌉−1, so that the last layers meet
func (g Guide) pairs(ls, lt int) ([]Pair, error) {
	if len(g.Map) == 1 && (g.Map[0] == MapAuto || g.Map[0] == MapBottomUp) {
		all := make([]Pair, ls)
		for s := range all {
			all[s] = Pair{s, ((s+1)*lt+ls-1)/ls - 1}
		}
		return all, nil
	}
	var all []Pair
	for _, text := range strings.Split(strings.Join(g.Map, ","), ",") {
		s, t, ok := strings.Cut(strings.TrimSpace(text), ":")
		p, err := Pair{}, error(nil)
		if p.Student, err = strconv.Atoi(s); err == nil && ok {
			p.Teacher, err = strconv.Atoi(t)
		}
		switch {
		case err != nil || !ok:
			return nil, fault.New(fault.Usage, "--layer-map: %q is no pair S:T of layers", text).WithHint("auto, bottom-up, or pairs such as 0:3,1:7").WithID("E-GUIDE-001")
		case p.Student < 0 || p.Student >= ls:
			return nil, fault.New(fault.Usage, "--layer-map %s: the student has layers 0 to %d", text, ls-1).WithID("E-GUIDE-002")
		case p.Teacher < 0 || p.Teacher >= lt:
			return nil, fault.New(fault.Usage, "--layer-map %s: the teacher has layers 0 to %d", text, lt-1).WithID("E-GUIDE-002")
		case slices.Contains(all, p):
			return nil, fault.New(fault.Usage, "--layer-map names the pair %s twice", text).WithID("E-GUIDE-003")
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Pair) int {
		if a.Student != b.Student {
			return a.Student - b.Student
		}
		return a.Teacher - b.Teacher
	})
	return all, nil
}

// bottomUp reports whether pairs come in one after another.
func (g Guide) bottomUp() bool { return len(g.Map) == 1 && g.Map[0] == MapBottomUp }

// HiddenEps keeps the RMS of hidden states from zero.
const HiddenEps = 1e-6

// Hidden is the term of the loss that compares hidden states: for each pair it adds
//
//	Weight · mean over the step's targets of ‖P·ĥₛ − ĥₜ‖²/H′,  ĥ = h/√(mean(h²)+10⁻⁶)
//
// with H′ the teacher's width and P [H′, H] learned beside the student. P is in the optimiser and in checkpoints,
// and part of no model. AdamW does not decay it: a pair that is not compared yet keeps the P that it began with.
type Hidden struct {
	Weight float64
	Pairs  []Pair
	Steps  int // over which pairs are brought in one after another, from the first layer up; 0: all are compared from the first step on

	params []*device.Param // P of each pair
	active int             // pairs that the present step compares: the first of them
}

// newHidden makes the term, with the P of each pair, for a student and a teacher of these widths. Init fills them.
func newHidden(dev device.Device, weight float64, pairs []Pair, student, big int) *Hidden {
	h := &Hidden{Weight: weight, Pairs: pairs, active: len(pairs)}
	for _, p := range pairs {
		h.params = append(h.params, dev.Param(device.ParamSpec{Name: p.name(), Rows: big, Cols: student}))
	}
	return h
}

// name is the name of a pair's P in checkpoints.
func (p Pair) name() string { return fmt.Sprintf("guide.hidden.%d.%d.weight", p.Student, p.Teacher) }

// Init gives every P the values it has before training, and no history: between equal widths the identity, for a
// student that was cut from its teacher has the teacher's streams, else N(0, 1/H), which keeps the RMS. Each P draws
// from its own generator, PCG(seed, FNV-1a of its name).
func (h *Hidden) Init(s device.Stream, seed uint64) {
	for _, p := range h.params {
		host := make([]float32, p.Rows*p.Cols)
		name := fnv.New64a()
		name.Write([]byte(p.Name))
		rng := rand.New(rand.NewPCG(seed, name.Sum64()))
		for i := range host {
			if p.Rows != p.Cols {
				host[i] = float32(rng.NormFloat64() / math.Sqrt(float64(p.Cols)))
			} else if i%(p.Cols+1) == 0 {
				host[i] = 1
			}
		}
		s.Upload(p.Value, host)
		s.RefreshWeight(p)
		s.Zero(p.M)
		s.Zero(p.V)
	}
}

// begin says which pairs step k compares: of n pairs over K steps, the i-th, from 0, from step ⌊i·K/n⌋ on.
func (h *Hidden) begin(k int) { h.active = broughtIn(len(h.Pairs), h.Steps, k) }

// guides returns what Backward does at a layer's output for the micro-batch m: the gradients of the layer's pairs, into
// P and dx.
func (h *Hidden) guides(s device.Stream, t teacher.Streams, m model.MicroBatch) func(layer int, x, dx device.Tensor) {
	return func(layer int, x, dx device.Tensor) {
		for i, p := range h.Pairs[:h.active] {
			if p.Student == layer {
				h.compare(s, h.params[i], t.Stream(p.Teacher, m.Lo, m.Hi), m.Keep, x, dx)
			}
		}
	}
}

// compare adds the error of one pair to the record and its gradients to those of P and to dx, given the teacher's
// stream big of the kept rows.
func (h *Hidden) compare(s device.Stream, p *device.Param, big, keep, x, dx device.Tensor) {
	var none device.Tensor
	var all []device.Tensor
	temp := func(name string, d tensor.DType, cols int) device.Tensor {
		t := s.Temp(name, device.Activations, d, big.Rows, cols)
		all = append(all, t)
		return t
	}
	defer func() { s.Release(all...) }()
	if !keep.IsZero() {
		kept := temp("guide.kept", x.DType, x.Cols)
		s.Gather(kept, x, keep)
		x = kept
	}
	own, rstd := temp("guide.student", x.DType, x.Cols), temp("guide.rstd", tensor.F32, 1)
	target, u, du := temp("guide.teacher", big.DType, big.Cols), temp("guide.projected", tensor.F32, big.Cols), temp("guide.gradient", x.DType, big.Cols)
	s.HeadNorm(target, none, big, none, big.Cols, HiddenEps)
	s.HeadNorm(own, rstd, x, none, x.Cols, HiddenEps)
	s.MatMul(u, own, p.Weight, none, false)
	s.SquaredError(du, u, target, h.Weight)
	s.MatMulWeightGrad(p.Grad, none, du, own)
	s.MatMulInputGrad(own, du, p.Weight, false) // over what is not needed again
	s.HeadNormBackward(own, none, own, x, rstd, none, x.Cols)
	if keep.IsZero() {
		s.Add(dx, own)
		return
	}
	wide := s.Temp("guide.wide", device.Activations, dx.DType, dx.Rows, dx.Cols)
	all = append(all, wide)
	s.Scatter(wide, own, keep)
	s.Add(dx, wide)
}

// make makes the term for a student and a teacher, which then keeps the streams that are compared; nil if nothing is.
// steps is the length of the run.
func (g Guide) make(dev device.Device, student, big arch.Config, t teacher.Teacher, steps int) (*Hidden, error) {
	if g.Weight == 0 || t == nil {
		return nil, nil
	}
	pairs, err := g.pairs(len(student.Layers), len(big.Layers))
	if err != nil {
		return nil, err
	}
	h := newHidden(dev, g.Weight, pairs, student.Hidden, big.Hidden)
	if g.bottomUp() {
		h.Steps = steps
	}
	return h, h.ask(t)
}

// ask lets the teacher keep the streams that are compared. Only one model whose layers are computed has them.
func (h *Hidden) ask(t teacher.Teacher) error {
	r, ok := t.(*teacher.Resident)
	if !ok {
		return fault.New(fault.Unavailable, "--strategy progressive needs the hidden states of one teacher that is computed").WithID("E-GUIDE-004")
	}
	r.Layers = layersOf(h.Pairs)
	return nil
}

// few is make for a probe, whose teacher has only its first layers: as many pairs, with layers that are there.
func (g Guide) few(dev device.Device, student, whole, there arch.Config, t teacher.Teacher) (*Hidden, error) {
	if g.Weight == 0 {
		return nil, nil
	}
	pairs, err := g.pairs(len(student.Layers), len(whole.Layers))
	if err != nil {
		return nil, err
	}
	for i := range pairs {
		pairs[i].Teacher = min(pairs[i].Teacher, len(there.Layers)-1)
	}
	h := newHidden(dev, g.Weight, pairs, student.Hidden, there.Hidden)
	return h, h.ask(t)
}

// validateGuide refuses what compares nothing.
func (c Config) validateGuide() error {
	switch w := c.Guide.Weight; {
	case w == 0:
		return nil
	case !(w > 0) || math.IsInf(w, 1):
		return fault.New(fault.Usage, "--hidden-weight %g is not positive", w)
	case c.Loss.Alpha == 0:
		return fault.New(fault.Usage, "--strategy progressive with --alpha 0, which calls no teacher")
	}
	return nil
}

// tensors are P and both moments of every pair, as float32.
func (h *Hidden) tensors(s device.Stream) []tensor.Source {
	var out []tensor.Source
	for _, p := range h.params {
		for _, k := range h.parts(p) {
			out = append(out, model.DownloadSource(s, k.name, []int{p.Rows, p.Cols}, k.t, tensor.F32))
		}
	}
	return out
}

// guidePart is a tensor of a pair that a checkpoint holds.
type guidePart struct {
	name string
	t    device.Tensor
}

func (h *Hidden) parts(p *device.Param) []guidePart {
	return []guidePart{{p.Name, p.Value}, {"optimizer.m." + p.Name, p.M}, {"optimizer.v." + p.Name, p.V}}
}

// restore is the inverse of tensors.
func (h *Hidden) restore(s device.Stream, f *safetensors.File) error {
	for _, p := range h.params {
		for _, k := range h.parts(p) {
			host, err := readState(f, k.name, []int{p.Rows, p.Cols})
			if err != nil {
				return err
			}
			s.Upload(k.t, host)
		}
		s.RefreshWeight(p)
	}
	return nil
}

// elements is how many values the P of all pairs have.
func (g Guide) elements(student, big arch.Config) int64 {
	if g.Weight == 0 {
		return 0
	}
	pairs, err := g.pairs(len(student.Layers), len(big.Layers))
	if err != nil {
		return 0 // refused when the models were opened
	}
	return int64(len(pairs)) * int64(student.Hidden) * int64(big.Hidden)
}

// Share is the part of a step's loss that each of several objectives is, by name: its weighted mean over the loss. All
// weighted terms are of one unit, nats, but hidden, so a share says what is descended, and no norm of a gradient. Nil
// for one objective beside cross-entropy.
func (t *Trainer) Share(r Record) map[string]float64 {
	if t.Hidden == nil && t.Maps == nil || !(r.Loss > 0) {
		return nil
	}
	shares := map[string]float64{"ce": r.CEWeight * r.MeanCE / r.Loss, "kl": r.DWeight * r.MeanD / r.Loss}
	if t.Hidden != nil {
		shares[device.HiddenStates.String()] = t.Hidden.Weight * r.Hidden / r.Loss
	}
	if t.Maps != nil {
		shares[device.AttentionTransfer.String()] = t.Maps.Weight * r.Attention / r.Loss
	}
	return shares
}

// Compared is a pair that a step compares, with its present P [Rows, Cols].
type Compared struct {
	Pair
	Name       string
	P          []float32
	Rows, Cols int
}

// Compared returns the pairs that the next step compares.
func (t *Trainer) Compared() (all []Compared, err error) {
	if t.Hidden == nil {
		return nil, nil
	}
	t.Hidden.begin(t.Steps)
	for i, p := range t.Hidden.params[:t.Hidden.active] {
		c := Compared{t.Hidden.Pairs[i], p.Name, make([]float32, p.Rows*p.Cols), p.Rows, p.Cols}
		if err := t.stream.Download(c.P, p.Value); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}
