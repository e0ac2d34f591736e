package arch

import "strings"

// Role says what a tensor does.
type Role string

// The roles. A bias has the role of its matrix.
const (
	Embedding  Role = "embedding"
	Head       Role = "head"
	Norm       Role = "norm"
	Q          Role = "q"
	K          Role = "k"
	V          Role = "v"
	O          Role = "o"
	Sinks      Role = "sinks"
	Gate       Role = "gate"
	Up         Role = "up"
	Down       Role = "down"
	Router     Role = "router"
	SharedGate Role = "shared_gate" // w_s of a shared expert
	ExpertGate Role = "expert_gate"
	ExpertUp   Role = "expert_up"
	ExpertDown Role = "expert_down"
	Scale      Role = "scale"     // a factor: of a layer's output, of a router's input, of an expert
	PLETable   Role = "ple_table" // per-layer embeddings
	PLEModel   Role = "ple_model" // their projection from the embedding
	PLEGate    Role = "ple_gate"  // Wg
	PLEOut     Role = "ple_out"   // Wp
	DeltaQKV   Role = "delta_qkv"
	DeltaZ     Role = "delta_z" // the gate of the output
	DeltaA     Role = "delta_a" // the decay
	DeltaB     Role = "delta_b" // the step
	DeltaConv  Role = "delta_conv"
	DeltaALog  Role = "delta_a_log"
	DeltaDT    Role = "delta_dt"
)

// Slot is one tensor of a model as the arithmetic sees it.
type Slot struct {
	Name  string // unique in the model; Hugging Face's, where Hugging Face stores the tensor by itself
	Role  Role
	Bias  bool
	Layer int   // −1 outside the layers
	Shape []int // [out, in], [n], or with experts first: [E, out, in], [E, n]
	Decay bool  // weight decay applies
	Fixed bool  // stored, not trained
	Init  Init
	HF    Place
	GGUF  Place
}

// Init says how a new model's tensor begins.
type Init string

// The beginnings.
const (
	Normal   Init = "normal" // N(0, InitRange²)
	Zeros    Init = "zeros"
	Ones     Init = "ones"
	Identity Init = "identity" // a norm that multiplies by 1: 1−NormOffset
	Uniform  Init = "uniform"  // of an adapter's A: U(−1/√in, 1/√in)
)

// Elements returns the number of values.
func (s Slot) Elements() int64 {
	n := int64(1)
	for _, d := range s.Shape {
		n *= int64(d)
	}
	return n
}

// Dims returns the experts, rows and columns of the slot: a vector is a column.
func (s Slot) Dims() (experts, rows, cols int) {
	shape, experts := s.Shape, 1
	if s.perExpert() {
		experts, shape = shape[0], shape[1:]
	}
	if len(shape) == 1 {
		return experts, shape[0], 1
	}
	return experts, shape[0], shape[1]
}

// Expert returns the expert that value i of the slot belongs to; false: the slot holds no experts.
func (s Slot) Expert(i int64) (e int, ok bool) {
	if !s.perExpert() {
		return 0, false
	}
	e = int(i / (s.Elements() / int64(s.Shape[0])))
	return e, e < s.Shape[0]
}

func (s Slot) perExpert() bool {
	return s.Role == ExpertGate || s.Role == ExpertUp || s.Role == ExpertDown
}

// Parameters returns the number of trained values.
func (c Config) Parameters() (n int64) {
	for _, s := range Slots(c) {
		if !s.Fixed {
			n += s.Elements()
		}
	}
	return n
}

// nestedPrefixes are what multimodal checkpoints put before the names of their text model, with what they mean.
var nestedPrefixes = [][2]string{
	{"model.language_model.lm_head.", "lm_head."}, {"language_model.lm_head.", "lm_head."},
	{"model.language_model.model.", "model."}, {"language_model.model.", "model."}, {"model.language_model.", "model."},
}

// TextName returns the name of a stored tensor within the text model, and false if it belongs to another part of a
// multimodal checkpoint or to a head that predicts further tokens.
func TextName(stored string) (string, bool) {
	for _, part := range strings.Split(stored, ".") {
		if part == "visual" || part == "mtp" || part == "embed_vision" || part == "embed_audio" ||
			strings.HasSuffix(part, "_tower") || strings.HasSuffix(part, "_projector") {
			return "", false
		}
	}
	for _, p := range nestedPrefixes {
		if rest, ok := strings.CutPrefix(stored, p[0]); ok {
			return p[1] + rest, true
		}
	}
	return stored, true
}
