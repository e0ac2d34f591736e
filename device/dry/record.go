package dry

import (
	"cmp"
	"maps"
	"slices"

	"apr/device"
	"apr/tensor"
)

// Op is an operation of certain types and sizes in a certain phase. Fields that an operation does not have are zero.
type Op struct {
	Phase device.Phase
	Kind  device.Op
	// In, Out are the element types of the main input and output; Weight is how the matrix is kept, see Kept.Types.
	In, Out tensor.DType
	Weight  string
	// Expands, FP8: see Kept. Direct says that the product reads blocks as they are all the same, Arranged that they were arranged for it.
	Expands, FP8, Direct, Arranged bool
	// Of products: y[M,N] (+)= Σ_K. MatMul M = rows of x, K = its columns; MatMulInputGrad N = columns of W;
	// MatMulWeightGrad M = columns of dy, N = columns of x, K = rows; MatMulGLU as MatMul, of which gu is the output.
	M, N, K             int
	InStride, OutStride int // elements from row to row
	Bias, Add, Keep     bool
	Thin                int               // of the products of LowRank and its backwards: the rank
	Act                 device.Activation // of gated units
	Attn                device.Attn       // of attention, without its tensors; HeadDim also of Rotate and of norms of heads
	Delta               device.Delta      // of the delta rule, without First
	Documents           bool              // attention, a convolution or the delta rule has a First
	Sinks               bool              // attention has Sinks
	Partial             bool              // Rotate is of a part of a head, of given positions, or scales
	Capped              bool              // Loss is of soft-capped logits
	Host                int64             // bytes that come from the host for it
	Experts, Active     int               // of what experts do; M, or K of a weight's gradient, is the slots of all
	Rows, Cols          int               // of everything else
}

// IsProduct reports whether the operation is one matrix product: those of experts are many, whose shapes only the device knows.
func (o Op) IsProduct() bool { return o.K > 0 && !o.Kind.Grouped() }

// Count is an operation and how often it came.
type Count struct {
	Op
	Times        int64
	FLOPs, Bytes float64 // of one
}

// Held is memory by its name at one time.
type Held struct {
	Name      string
	Component device.Component
	Tensors   int
	Bytes     int64
}

// Record is what a device was asked for.
type Record struct {
	Static   map[device.Component]int64 // bytes of weights, parameters and Alloc at the highest point of each component
	Peak     map[device.Component]int64 // highest bytes of each component, temps with the rest, as Device.Memory says
	Temps    int64                      // bytes in which all temps find place
	Most     int64                      // bytes of temps alive at one time; Temps − Most is lost to holes
	AtMost   []Held                     // those temps, the largest first
	Reserved int64                      // as the Target says, Expand and Staging
	Staging  int64                      // bytes in which matrices of the host arrive
	Host     int64                      // bytes of matrices in page-locked memory of the host, not of the device
	Link     float64                    // as the Target says
	Expand   int64                      // bytes in which products expand matrices: the most of Kept.Scratch of those that do
	Ops      []Count                    // in the order of their first coming
	Decode   *device.Decode             // the layers of the latest positions that a device may compute at once; or nil
	Few      int                        // the most positions that it may compute so
	Waits    int                        // times that the host waited
	Exchange Exchange                   // what this rank of several sends
	// Beside is what a second queue does beside the step (device.Beside), in memory of its own, whose total Static has
	// as device.Besides; nil: there is none. Ops and Waits are those of the step alone.
	Beside *Record
}

// Record returns what was recorded so far.
func (d *Device) Record() *Record {
	d.describePeak()
	r := &Record{
		Temps: d.target.Temps.Peak(), Most: d.most, Reserved: d.target.Reserved + d.expand + d.staging, Expand: d.expand,
		Staging: d.staging, Host: d.host, Link: d.target.Link,
		Ops: slices.Clone(d.list), Decode: d.decode, Few: d.few, Waits: d.waits, Exchange: d.exchange,
	}
	_, r.Static = d.static.Memory()
	_, r.Peak = d.Memory()
	type key struct {
		name string
		c    device.Component
	}
	held := map[key]Held{}
	for _, b := range d.atPeak {
		h := held[key{b.name, b.comp}]
		held[key{b.name, b.comp}] = Held{b.name, b.comp, h.Tensors + 1, h.Bytes + b.size}
	}
	r.AtMost = slices.SortedFunc(maps.Values(held), func(a, b Held) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Component, b.Component))
	})
	return r
}

// ResetOps forgets operations and waits, not memory: what comes next is counted from zero.
func (d *Device) ResetOps() {
	clear(d.ops)
	clear(d.repeats)
	d.list, d.decode, d.few, d.waits, d.exchange = nil, nil, 0, 0, Exchange{}
}

// Total returns the bytes that the device must have.
func (r *Record) Total() int64 {
	n := r.Temps + r.Reserved
	for _, b := range r.Static {
		n += b
	}
	return n
}

// ByComponent returns the total by component: what lives long at its highest point, the temps at theirs. What the
// device needs for itself and what is lost to holes counts as scratch.
func (r *Record) ByComponent() map[device.Component]int64 {
	m := maps.Clone(r.Static)
	for _, h := range r.AtMost {
		m[h.Component] += h.Bytes
	}
	m[device.Scratch] += r.Temps - r.Most + r.Reserved
	return m
}

// Products returns the matrix products of the step, phases aside, in the order of their first coming.
func (r *Record) Products() []Count {
	var all []Count
	index := map[Op]int{}
	for _, c := range r.Ops {
		if !c.IsProduct() {
			continue
		}
		c.Phase = 0
		i, ok := index[c.Op]
		if !ok {
			index[c.Op] = len(all)
			all = append(all, c)
			continue
		}
		all[i].Times += c.Times
	}
	return all
}

// Cost is a sum over operations.
type Cost struct {
	Launches     int64
	FLOPs, Bytes float64
	Host         float64 // bytes that come from the host
}

// Costs returns the cost of each phase.
func (r *Record) Costs() (c [device.NumPhases]Cost) {
	for _, o := range r.Ops {
		p := &c[o.Phase]
		p.Launches += o.Times
		p.FLOPs += float64(o.Times) * o.FLOPs
		p.Bytes += float64(o.Times) * o.Bytes
		p.Host += float64(o.Times) * float64(o.Host)
	}
	return c
}

// Cost returns the cost of everything.
func (r *Record) Cost() (c Cost) {
	for _, p := range r.Costs() {
		c.Launches += p.Launches
		c.FLOPs += p.FLOPs
		c.Bytes += p.Bytes
		c.Host += p.Host
	}
	return c
}
