// Package device says what a model needs from a machine: weights, memory, and a stream of about thirty operations.
//
// The operations are those of the architecture (embedding, RMSNorm, matrix products with a weight of any type, rotary
// embedding, attention, gated units, distillation loss, AdamW ...), not a general tensor library. Model and training code
// speak to this package only, so they are written once; a device is one folder that implements Device and Stream and
// passes device/devicetest, which compares every operation with float64.
//
// What not every device can do is an interface of its own, beside Stream: Quantizer, Projector, Pager, two that draw
// ids from logits, NextDrawer (a token of each text) and ManyDrawer (a cache's draws; draw.go says why these are two),
// and DrawsLoss, the loss from such draws.
//
// Caveats. Operations return nothing: a stream keeps its first error and every later operation is a no-op, until Wait
// returns it. Shape mistakes are broken preconditions of the program and panic: the Check functions say which they are. Operations may run asynchronously:
// host slices handed to Upload may be reused as soon as it returns; Download and Wait are the only host waits. Results
// are deterministic: the same device kind and inputs give the same bits, whatever the number of worker threads.
package device

import (
	"context"
	"slices"
	"time"

	"apr/tensor"
)

// Buffer is a piece of a device's memory; only the device that made it can look inside.
type Buffer interface {
	// Bytes returns the size that was asked for.
	Bytes() int64
	// State says whether it was given back, and how it has to be.
	State() State
	// Name is what Temp, Alloc or Param called it.
	Name() string
}

// Tensor is a view of device memory as a row-major matrix: element (r,c) stands at Off + r·Stride + c of Buf,
// counted in elements of DType. The zero Tensor means "none".
type Tensor struct {
	Buf        Buffer
	Off        int
	Rows, Cols int
	Stride     int
	DType      tensor.DType
}

// IsZero reports whether t is the absent tensor.
func (t Tensor) IsZero() bool { return t.Buf == nil }

// RowRange returns rows [lo,hi) of t.
func (t Tensor) RowRange(lo, hi int) Tensor {
	if lo < 0 || hi < lo || hi > t.Rows {
		panic("device: row range outside tensor")
	}
	t.Off += lo * t.Stride
	t.Rows = hi - lo
	return t
}

// ColRange returns columns [lo,hi) of t; the rows keep their stride.
func (t Tensor) ColRange(lo, hi int) Tensor {
	if lo < 0 || hi < lo || hi > t.Cols {
		panic("device: column range outside tensor")
	}
	t.Off += lo
	t.Cols = hi - lo
	return t
}

// Component names what a piece of memory is for, in plans and reports.
type Component string

// The components of a distillation step.
const (
	TeacherWeights Component = "teacher"
	StudentWeights Component = "student"
	Gradients      Component = "gradients"
	Moments        Component = "optimizer"
	Activations    Component = "activations"
	Logits         Component = "logits"
	Scratch        Component = "scratch"
	KVCache        Component = "kv-cache"
	Batch          Component = "batch"
)

// Source gives the rows of a stored weight, in the type of the file.
type Source interface {
	// Info describes the matrix (or vector) as stored.
	Info() tensor.Info
	// ReadRows reads the stored bytes of rows [lo,hi) into dst, which has exactly their size.
	ReadRows(dst []byte, lo, hi int) error
}

// WeightSpec describes a frozen matrix [rows, cols] made of one or more stored matrices stacked along the output
// dimension, each perhaps of another type (q, k and v; gate and up).
type WeightSpec struct {
	Name      string
	Component Component
	Parts     []Source
	Rows      []int // rows used of each part, from its first; nil: all. A truncated vocabulary uses fewer.
	Experts   int   // number of experts whose matrices, below each other, are the only part, for grouped products; 0: one matrix
	Layer     int   // with Form.HostLayers: matrices of one layer come together; layers are loaded in the order of use
	Form      Form
}

// Form says how a frozen matrix is kept and multiplied. The zero Form leaves it to the device: a GPU expands to the type
// of activations, a CPU keeps what is stored.
type Form struct {
	// Blocks keeps quantised blocks as they are in the file; products expand or decode them each time. Matrices of other
	// types are kept as with the zero Form.
	Blocks bool
	// FP8 multiplies in 8-bit floats (e4m3) with one scale for the matrix and one for each row of activations. Without
	// Blocks the matrix is kept in them. A device without such products refuses (fault.Unavailable).
	FP8 bool
	// HostExperts keeps the quantised blocks of experts in page-locked memory of the host, from where each product
	// fetches them. A device that computes in the host's memory anyway, or experts without blocks, are refused
	// (fault.Unavailable).
	HostExperts bool
	// HostLayers keeps matrices in page-locked memory of the host, in blocks or, of other types, in that of
	// activations. The first product with a matrix of a layer fetches all of that layer (WeightSpec.Layer).
	// Devices refuse it as HostExperts.
	HostLayers bool
}

// Weight is a matrix [Rows, Cols] = [out, in] in whatever form the device keeps it: float32, bfloat16, quantised
// blocks, repacked. It serves matrix products and row gathers.
type Weight interface {
	Rows() int
	Cols() int
	// Bytes returns the device memory it occupies.
	Bytes() int64
}

// ParamSpec describes a trainable tensor.
type ParamSpec struct {
	Name       string
	Rows, Cols int  // [out, in]; a vector has Rows = 1
	Decay      bool // whether decoupled weight decay applies (tensors of two or more dimensions)
	// Blocks makes Weight read Value as a file of these types holds it; nil: as it is. See Quantizer.
	Blocks []BlockRows
	// Share is what this rank keeps of the moments, and of Value where Weight is a copy of it. Devices that are no Sharer
	// want the zero Share.
	Share Share
}

// Param is a trainable tensor with what training keeps beside it. All tensors are [Rows, Cols] float32, but for Value,
// M and V of one that ranks share: see Companion.
type Param struct {
	ParamSpec
	Value  Tensor // float32 master weights
	Grad   Tensor // summed gradient of the step
	M, V   Tensor // first and second moment of AdamW
	Weight Weight // what matrix products and gathers read: Value itself, or a narrower copy that AdamW refreshes, or Rounded
	// Of a parameter with ParamSpec.Blocks, else zero: the stored rows, bytes [1, n], and the values that they decode to.
	Stored, Rounded Tensor
}

// Read returns the values that Weight reads, as exactly as the device keeps them: Rounded or Value.
func (p *Param) Read() Tensor {
	if p.Rounded.IsZero() {
		return p.Value
	}
	return p.Rounded
}

// Divergence selects D(p,Q) of the distillation loss, p = softmax(t/T) the teacher and Q = softmax(z/T) the student.
type Divergence int

// The divergences; formulas in LossSpec.
const (
	ForwardKL   Divergence = iota // Σ p ln(p/Q)
	ReverseKL                     // Σ Q ln(Q/p)
	JSD                           // β·KL(p‖M) + (1−β)·KL(Q‖M), M = βp+(1−β)Q; β=0 is ForwardKL, β=1 is ReverseKL
	TVD                           // ½ Σ|p−Q|
	SkewForward                   // KL(p‖m), m = λp+(1−λ)Q
	SkewReverse                   // KL(Q‖m), m = (1−λ)p+λQ
)

// LossSpec are the constants of the distillation loss of one position,
//
//	(1−Alpha)·CE + Alpha·T²·D(p,Q),  CE = lse(z) − z_y at temperature 1.
//
// Gradient over z, before 1/N: (1−Alpha)(softmax(z) − e_y) + Alpha·G, where with 𝒮(h)ᵢ = T(hᵢ − Qᵢ Σⱼhⱼ)
//
//	forward KL T(Q−p) · reverse KL 𝒮(Q ln(Q/p)) · JSD 𝒮((1−β)Q ln(Q/M)) · TVD 𝒮(½ sign(Q−p)Q) ·
//	skew forward 𝒮(−(1−λ)pQ/m) · skew reverse 𝒮(Q ln(Q/m) − λQ²/m).
//
// Beta is β of JSD and λ of the skewed divergences. Alpha 0 needs no teacher.
//
// Logits z that are soft-capped come with their Cap: z = Cap·tanh(raw/Cap). The loss is of z; the gradient that is written
// is multiplied by 1−(z/Cap)², which makes it that over raw.
type LossSpec struct {
	Alpha, Temperature, Beta float64
	Divergence               Divergence
	Cap                      float64 // 0: z is not soft-capped
}

// Weights returns 1−Alpha and Alpha·T², what the means of CE and D are multiplied by in the loss.
func (l LossSpec) Weights() (ce, d float64) {
	return 1 - l.Alpha, l.Alpha * l.Temperature * l.Temperature
}

// Objective is a term of the loss of a step beside CE and D.
type Objective int

// The objectives.
const (
	HiddenStates      Objective = iota // the squared error of hidden states: SquaredError
	AttentionTransfer                  // the divergence of attention maps: CompareMaps
	NumObjectives                      // how many there are
)

// String returns the objective's name in records.
func (o Objective) String() string { return [...]string{"hidden", "attention"}[o] }

// Scalars are the numbers of one step, kept on the device: set before the step, completed by it, read by AdamW there
// and by the host once at the end.
type Scalars struct {
	// Set by the host before the step.
	LR        float64                // learning rate
	InvN      float64                // 1/N, N the unmasked targets of the whole step
	BiasCorr1 float64                // 1 − β₁ⁿ for the n-th applied update
	BiasCorr2 float64                // 1 − β₂ⁿ
	MaxNorm   float64                // clip threshold c; 0: no clipping
	CEWeight  float64                // of the mean CE in Loss: 1−α
	DWeight   float64                // of the mean D in Loss: α·T²
	MaxLoss   float64                // highest Loss that is applied; 0: no limit
	Weights   [NumObjectives]float64 // of the mean of each objective in Loss; 0: it is not one of the step
	// Summed by Loss, in float64 or compensated.
	Positions int64   // rows seen
	CE        float64 // Σ CE
	D         float64 // Σ D, the divergence of the spec, before α·T²
	Agree     int64   // rows where the argmax of z equals the argmax of t (lowest id on ties); 0 without teacher
	Entropy   float64 // Σ H(p), the teacher's entropy at the temperature; 0 without teacher
	// Summed by the operations of the objectives, in float64 or compensated.
	Sums [NumObjectives]float64
	// Written by Verdict.
	Loss     float64                  // CEWeight·(CE·InvN) + DWeight·(D·InvN) + Σ Weights·(Sums·InvN): of the whole step, however it was cut
	GradNorm float64                  // ‖g‖₂ over all gradients
	Scale    float64                  // min(1, c/(‖g‖₂+1e-6))
	Phases   [NumPhases]time.Duration // time spent in each phase, as measured on the device
	Finite   bool                     // Σ CE, Σ D, all Sums and ‖g‖₂ are finite
	Diverged bool                     // all are finite, and Loss > MaxLoss > 0
}

// Refused reports whether AdamW leaves weights, moments and narrower copies as they were: the step is not finite, or its
// loss is above the limit.
func (s Scalars) Refused() bool { return !s.Finite || s.Diverged }

// Phase names a part of a step whose time is measured.
type Phase int

// The phases of a distillation step. Time before the first mark of a step belongs to PhaseData.
const (
	PhaseData Phase = iota
	PhaseTeacher
	PhaseForward
	PhaseLoss
	PhaseBackward
	PhaseOptimizer
	PhaseQuantize // making blocks of the weights, if the student has any
	PhaseExchange // waiting for what travels between ranks: see Exchanger.Arrive. It may overlap with others
	NumPhases
)

// String returns the phase's name in records.
func (p Phase) String() string {
	return [...]string{"data", "teacher", "student_forward", "loss", "student_backward", "optimizer", "quantize",
		"exchange"}[p]
}

// AdamW holds the constants of the update; the n-th applied update of a parameter w with gradient g is
//
//	w ← w(1−lr·WeightDecay)  (only if the parameter decays)
//	m ← β₁m+(1−β₁)sg;  v ← β₂v+(1−β₂)(sg)²;  w ← w − (lr/(1−β₁ⁿ))·m/(√v/√(1−β₂ⁿ)+Eps)
//
// with s = Scalars.Scale, computed in float32.
type AdamW struct {
	Beta1, Beta2, Eps, WeightDecay float64
}

// Info describes a device for manifests and reports.
type Info struct {
	Kind        string // "cpu", "cuda", "dry"
	Name        string // processor or card
	ISA         string // instruction set the kernels use: "avx512", "avx2", "neon", "generic"; "sm_90"
	Workers     int
	Activations tensor.DType // element type of activations: F32 on CPU, BF16 on CUDA
	Adds        bool         // a product that adds to its result costs less than a norm that adds the result of one
	TF32        bool         // products of float32, those of attention too, round their operands to the 10 bits of mantissa of tf32
	Lacks       []Feature    // what models may have and this device does not compute
}

// Feature is something of a model that not every device computes.
type Feature string

// The features that a device may lack.
const (
	Experts   Feature = "mixtures of experts"
	DeltaNet  Feature = "Gated DeltaNet layers"
	WideDelta Feature = "Gated DeltaNet layers of more than 128 keys a head or 8 taps"
	Quantizes Feature = "quantisation-aware training"      // its streams are no Quantizer, and Param takes no Blocks
	Projects  Feature = "a teacher with another tokenizer" // its streams are no Projector
	Maps      Feature = "attention transfer"
	Pages     Feature = "attention over pages of many sequences" // its streams are no Pager
	DrawsNext Feature = "drawing the next token on the device"   // its streams are no NextDrawer
	DrawsMany Feature = "drawing a cache's draws on the device"  // its streams are no ManyDrawer

	DrawsTeach Feature = "the loss from draws without logits of the teacher" // its streams are no DrawsLoss
)

// Device owns memory and weights.
type Device interface {
	Info() Info
	// Alloc returns a zeroed tensor that lives until Free or Close: parameters' companions, caches, static inputs.
	Alloc(name string, c Component, d tensor.DType, rows, cols int) Tensor
	// Free gives tensors of Alloc back; any view of one gives back all of it. Streams must have finished with them.
	Free(ts ...Tensor)
	// Weight reads a frozen matrix from its sources. Errors name the source's file and tensor.
	Weight(spec WeightSpec) (Weight, error)
	// Param makes a trainable tensor, all zero.
	Param(spec ParamSpec) *Param
	// Frozen returns a weight that reads t, for matrices that live in device memory as float32.
	Frozen(t Tensor) Weight
	// NewStream returns a stream; one goroutine at a time may use it.
	NewStream() Stream
	// Memory returns the bytes held now and at the highest point, by component.
	Memory() (now, peak map[Component]int64)
	Close() error
}

// Pulse is a Device that shows that it works.
type Pulse interface {
	// Ended returns a number that changes whenever a piece of work has ended: a task, a launch, a submission; pieces take
	// far less than a minute. Any goroutine may call it at any time: it asks no driver and waits for nothing.
	Ended() int64
}

// Fetcher is a Stream that copies values to the host while operations that are queued after them run.
type Fetcher interface {
	// Fetch begins to copy t, float32 without gaps, as it is after what is queued so far. What it returns must be called once,
	// with room for t.Rows·t.Cols values: it waits until they are there, and returns an earlier error of the stream.
	Fetch(t Tensor) func(dst []float32) error
}

// Arranger is a Stream whose device can put a frozen matrix into an order in which products of a few rows read it as it is.
type Arranger interface {
	// Arrange prepares matrices for products of n rows, if the device has kernels that gain from it. Values stay, and every operation
	// stays possible; products of many rows, and gathered rows, become slower.
	Arrange(n int, ws ...Weight)
}

// ReplayKey is all that the operations of a Replay follow from, but for what is in the memory of tensors.
type ReplayKey struct {
	Of      any // what they belong to; comparable
	Numbers []int
	Tensors []Tensor
}

// Equal reports whether two keys are one.
func (k ReplayKey) Equal(other ReplayKey) bool {
	return k.Of == other.Of && slices.Equal(k.Numbers, other.Numbers) && slices.Equal(k.Tensors, other.Tensors)
}

// Replayer is a Stream that can give its device many operations as one launch.
type Replayer interface {
	// Replay runs f, whose operations are those of an earlier call but for addresses and sizes. They take place when f
	// has ended.
	Replay(f func())
	// ReplayAs is Replay where the operations of f follow from the key, and from weights and tensors being as they were:
	// with the key of an earlier call f need not run.
	ReplayAs(key ReplayKey, f func())
	// Replaying says how the operations of the latest Replay ran, as far as the host knows; empty: nobody knows.
	Replaying() string
}

// Repeater is a Stream that computes nothing: it may count again what it recorded before.
type Repeater interface {
	// Repeat runs f, or, if f would do what it did before under an equal key, counts it as run. A key names the shapes in f.
	Repeat(key any, f func())
}

// Repeat runs f, a part that a step runs many times in equal shapes. Only a Repeater may do otherwise.
func Repeat(s Stream, key any, f func()) {
	if r, ok := s.(Repeater); ok {
		r.Repeat(key, f)
		return
	}
	f()
}

// Stream runs operations in order.
type Stream interface {
	// Temp returns a tensor with undefined content for use until Release. Temps are reused across steps: the same
	// sequence of Temp and Release calls gives the same places.
	Temp(name string, c Component, d tensor.DType, rows, cols int) Tensor
	Release(ts ...Tensor)

	// Upload copies host values to t (F32 or, converting, BF16); len(src) = t.Rows·t.Cols.
	Upload(t Tensor, src []float32)
	// UploadInts copies ids to t (I32).
	UploadInts(t Tensor, src []int32)
	// Download copies t (F32 or BF16) to dst and waits; an earlier error of the stream is returned.
	Download(dst []float32, t Tensor) error
	// RefreshWeight makes p.Weight agree with p.Value after an Upload to Value. Of a parameter whose Value is shared, the
	// upload was to Staging, from where Value's share is taken too.
	RefreshWeight(p *Param)
	Zero(t Tensor)
	Copy(dst, src Tensor)

	// Embed gathers rows: dst[i] = w[ids[i]]; ids is I32 [n,1] (or [1,n]), dst [n, w.Cols]. An id outside w is an error
	// of the stream.
	Embed(dst Tensor, w Weight, ids Tensor)
	// EmbedBackward adds rows: grad[ids[i]] += dx[i], in ascending i, deterministically.
	EmbedBackward(grad Tensor, ids, dx Tensor)

	// RMSNorm: with delta, sum = x + delta (sum may be x itself) and v = sum; without (both zero Tensors), v = x.
	// Then rstd[r] = (mean(v[r]²)+eps)^−½ and y = v·rstd·w. x, delta, sum, y [n,h]; w [1,h]; rstd [n,1] F32, or zero
	// when not kept; y zero when only the sum is wanted.
	RMSNorm(y, rstd, sum, x, delta, w Tensor, eps float64)
	// RMSNormBackward: with x̂ = x·rstd, dx += rstd·(dy·w − x̂·mean(dy·w·x̂)) and dw += Σ_rows dy·x̂.
	RMSNormBackward(dx, dw, dy, x, rstd, w Tensor)

	// MatMul: y = x·Wᵀ (+ bias) or, with add, y += x·Wᵀ (+ bias). x [n, in], y [n, out]; bias [1, out] or zero.
	// y may be wider in type than x (F32 logits). y.Cols may be smaller than w.Rows(): only the first rows of W are used.
	MatMul(y, x Tensor, w Weight, bias Tensor, add bool)
	// MatMulInputGrad: dx = dy·W, or dx += dy·W with add. dy.Cols may be smaller than w.Rows(), as in MatMul.
	MatMulInputGrad(dx, dy Tensor, w Weight, add bool)
	// MatMulWeightGrad: dw += dyᵀ·x, and dbias += Σ_rows dy unless dbias is zero. dw [out, in] F32 with out = dy.Cols.
	MatMulWeightGrad(dw, dbias, dy, x Tensor)

	// HeadNorm is RMSNorm over each group of headDim columns of x [n, heads·headDim]: rstd[r,h] = (mean(x_h²)+eps)^−½ and
	// y_h = x_h·rstd·w. w [1, headDim] F32, or zero for ones; rstd [n, heads] F32, or zero when not kept; y may be x. With
	// headDim = x.Cols it is the norm of whole rows.
	HeadNorm(y, rstd, x, w Tensor, headDim int, eps float64)
	// HeadNormBackward writes dx (not added; it may be dy): with x̂ = x·rstd, dx_h = rstd·(dy·w − x̂·mean_h(dy·w·x̂)), and
	// adds dw += Σ_rows Σ_h dy·x̂, [1, headDim] F32; dw is zero if and only if w is.
	HeadNormBackward(dx, dw, dy, x, rstd, w Tensor, headDim int)

	// Rotate applies the rotary embedding in place to x [n, heads·HeadDim].
	Rotate(x Tensor, r Rotary)
	// Attention: o = softmax(cap(Scale·q·kᵀ), masked)·v per head, query head h reading kv head ⌊h·KVHeads/Heads⌋; Attn says
	// what a query sees. q, o [Batch·QLen, Heads·d]; k, v [.., KVHeads·d]; lse [Batch·QLen, Heads] F32, the log-sum-exp of the
	// scaled, capped and masked scores and of the head's sink, or zero when not kept.
	Attention(o, lse, q, k, v Tensor, a Attn)
	// AttentionBackward writes dq, dk, dv (shapes of q, k, v; not added). Rows of keys that no query sees become zero. To a.DSinks
	// it adds −Σ_rows p_b·(do·o) of each head, with p_b = e^(b−lse) the probability of its sink.
	AttentionBackward(dq, dk, dv, do, o, lse, q, k, v Tensor, a Attn)
	// Conv and DeltaNet with their backwards.
	LinearAttention

	// Deinterleave: a and b [n, c] are the even and the odd groups of width columns of x [n, 2c]. c is a multiple of width.
	Deinterleave(a, b, x Tensor, width int)
	// Interleave is its inverse: it writes x.
	Interleave(x, a, b Tensor, width int)

	// GLU: m = act(g)·u, gu [n, 2f] holding g then u; m [n, f]. OSS also changes u: see Activation.
	GLU(m, gu Tensor, act Activation)
	// MatMulGLU: gu = x·Wᵀ and m = act(g)·u of gu as stored, so that GLU of it gives the same bits. x [n, in],
	// w [2f, in] with the rows of g before those of u, gu [n, 2f], m [n, f]. Without keep the content of gu is undefined
	// afterwards, and m is the same bits. m, gu and x do not overlap.
	MatMulGLU(m, gu, x Tensor, w Weight, act Activation, keep bool)
	// GLUBackward writes dgu: dg = dm·u·act'(g), du = dm·act(g). dgu may be gu itself. With σ = σ(g),
	// silu'(g) = σ(1+g(1−σ)); with k = √(2/π) and t = tanh(k(g+0.044715g³)),
	// gelu_tanh'(g) = ½(1+t) + ½g(1−t²)k(1+0.134145g²); sigmoid'(g) = σ(1−σ). Of OSS, with σ = σ(1.702·G):
	// dg = dm·(U+1)·σ(1+1.702·G(1−σ)), 0 where g > 7, and du = dm·G·σ, 0 where |u| > 7.
	GLUBackward(dgu, dm, gu Tensor, act Activation)

	// Add: dst += src, of one shape and type.
	Add(dst, src Tensor)
	// Scale: y = f·x, of one shape and type; y may be x.
	Scale(y, x Tensor, f float64)
	// SoftCap: y = c·tanh(x/c), of one shape and type; y may be x. c > 0.
	SoftCap(y, x Tensor, c float64)
	// Dropout: y[r,c] = 0 if d drops element (d.First+r)·x.Cols + c, else x[r,c]·float32(1/(1−d.Rate)), of one shape and type; y may be x.
	Dropout(y, x Tensor, d Drop)
	// LowRank with its backwards.
	Adapters
	// Mix: y = T·ln(w·softmax(t/T)) by rows, or with add y = T·ln(e^{y/T} + w·softmax(t/T)), so that softmax(y/T) is the mixture of
	// what was added with weights that sum to one. y and t [c,V] F32; without add y may be t. w and T are positive and finite.
	Mix(y, t Tensor, w, temperature float64, add bool)

	// Route chooses experts by the logits z [n, Experts], float32: of each token the Active largest, the lowest of equal ones
	// first; NaN counts as −∞. It writes the tensors of r, and the weights w [n, Active] F32 as r.Renorm says, times
	// scale[e] unless scale [1, Experts] F32 is zero. The weights of a token with a NaN among its logits are NaN.
	Route(w, z, scale Tensor, r Routing)
	// RouteBackward writes dz (not added): with p the softmax of all logits of the token, or with Renorm of the chosen ones and 0
	// for others, and d = dw·scale[e] for the chosen, 0 for others, dz = p·(d − Σ p·d). It adds dscale[e] += Σ p·dw.
	RouteBackward(dz, dscale, dw, z, scale Tensor, r Routing)
	// GroupedMatMul: y[j] = W_e·x[j] (+ bias[e]) for the slots j of each expert e. x [n·Active, in], y [n·Active, out];
	// w is the matrices of all experts below each other, [Experts·out, in], of a WeightSpec with that number of
	// Experts, of Frozen or of a parameter; bias [Experts, out] F32 or zero.
	GroupedMatMul(y, x Tensor, w Weight, bias Tensor, r Routing)
	// GroupedInputGrad: dx[j] = W_eᵀ·dy[j], or with add dx[j] += W_eᵀ·dy[j], for the slots j of each expert e.
	GroupedInputGrad(dx, dy Tensor, w Weight, r Routing, add bool)
	// GroupedWeightGrad: dW_e += Σ_j dy[j]ᵀ·x[j] over the slots j of each expert e, and dbias[e] += Σ_j dy[j] unless dbias is zero.
	// dw [Experts·out, in] F32, dbias [Experts, out] F32. Experts without slots keep what they have.
	GroupedWeightGrad(dw, dbias, dy, x Tensor, r Routing)
	// Combine: y[t] = Σ_s w[t,s]·x[Slots[t·Active+s]], or with add y[t] += it, in the order of s. y [n, h], x [n·Active, h]; w is
	// [n, Active] F32, or zero for ones. Rows of tokens come to slots by Gather with r.Rows, whose backward is this with ones.
	Combine(y, x, w Tensor, r Routing, add bool)
	// CombineBackward writes, with j = Slots[t·Active+s], dx[j] = w[t,s]·dy[t] and dw[t,s] = dy[t]·x[j] (not added); dx may be x.
	CombineBackward(dx, dw, dy, x, w Tensor, r Routing)
	// CountSlots: c[e] += the slots of expert e, Starts[e+1] − Starts[e]. c [1, Experts] F32, exact below 2²⁴.
	CountSlots(c Tensor, r Routing)
	// BalanceBackward: dz[t,e] += f·p[t,e]·(c[e] − Σ_j p[t,j]·c[j]), p[t] the softmax of all logits z[t]: the gradient of f·Σ_t Σ_e
	// c[e]·p[t,e]. dz [n, E], z [n, E] F32, c [1, E] F32, f finite.
	BalanceBackward(dz, z, c Tensor, f float64)

	// Gather copies rows: dst[i] = src[rows[i]]; rows I32.
	Gather(dst, src, rows Tensor)
	// Scatter zeroes dst and copies rows: dst[rows[i]] = src[i]; the rows are distinct.
	Scatter(dst, src, rows Tensor)

	// SetScalars starts a step's record; the clock of its phases starts with PhaseData. Sums that s has are begun with:
	// 0, or what other parts of the step came to.
	SetScalars(s Scalars)
	// Phase marks the beginning of a phase in the order of the stream; the previous one ends there. A phase may come
	// several times in a step: its times add up in Scalars.Phases.
	Phase(p Phase)
	// Loss adds the sums over the rows of z and t [c,V] (float32 logits; t zero when Alpha is 0 and no comparison is
	// wanted) with targets [c,1] I32 to the record, and, if grad is not zero, writes
	// InvN·∂/∂z of the loss to grad [c, V]; grad may be z itself. A target outside [0,V) is an error of the stream.
	Loss(grad, z, t, targets Tensor, spec LossSpec)
	// SquaredError adds Σ_r ‖u[r]−t[r]‖²/m to the record's Sums[HiddenStates] and writes the gradient of weight times its mean over
	// the step's targets, grad = weight·InvN·2/m·(u−t). u [n,m] F32, t [n,m] and grad [n,m] F32 or BF16; grad may be u.
	SquaredError(grad, u, t Tensor, weight float64)
	// CompareMaps compares attention maps.
	MapComparer
	// Verdict computes the loss of the step, the gradient norm over all params and the clip scale into the record, and
	// whether AdamW may apply the step: Finite and not Diverged.
	Verdict(params []*Param)
	// AdamW updates params and their weights as the record says, and leaves all untouched if the verdict refused the step.
	AdamW(params []*Param, a AdamW)
	// ArgMax writes the column of the largest value of each row of x [n,V], the lowest on ties, to ids [n,1] I32. NaN is
	// skipped: a row of NaN alone gives 0, one of NaN and −∞ the first −∞. best [n,2] F32, or zero for none, receives the same
	// column as a number, exact below 2²⁴, and the largest value: NaN if the row has NaN or +∞, −∞ if it has −∞ alone.
	ArgMax(ids, best, x Tensor)

	// Wait runs everything to the end and returns the record and the stream's first error, which it clears.
	Wait(ctx context.Context) (Scalars, error)
}
