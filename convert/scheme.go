package convert

import (
	"cmp"
	"fmt"
	"strings"

	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

// Scheme names a choice of element types for a whole model.
type Scheme string

// The schemes. Keep leaves every tensor as it is where the output can hold it.
const (
	Keep   Scheme = ""
	Q4_K_M Scheme = "q4_k_m" // Q4_K with Q6_K where llama.cpp's Q4_K_M has it
	Q5_K_M Scheme = "q5_k_m" // Q5_K, likewise
	Q4_0   Scheme = "q4_0"   // Q4_0 with Q6_K for the output matrix, as llama.cpp's Q4_0 has it
	Q5_0   Scheme = "q5_0"   // Q5_0, likewise
	Q3_K_M Scheme = "q3_k_m" // Q3_K with Q4_K and Q5_K where llama.cpp's Q3_K_M has them, and Q6_K for the output matrix
	Q2_K   Scheme = "q2_k"   // Q2_K with Q3_K or Q4_K where llama.cpp's Q2_K has them, and Q6_K for the output matrix
	Q3_K   Scheme = "q3k"
	Q4_K   Scheme = "q4k"
	Q5_K   Scheme = "q5k"
	Q6_K   Scheme = "q6k"
	Q8_0   Scheme = "q8_0"
	MXFP4  Scheme = "mxfp4" // experts in MXFP4, other matrices BF16, as gpt-oss is published
	BF16   Scheme = "bf16"
	F16    Scheme = "f16"
	F32    Scheme = "f32"
)

// Schemes lists the names that --scheme and --quantize take.
func Schemes() []string {
	return []string{"q4_k_m", "q5_k_m", "q8_0", "q4_0", "q5_0", "q4k", "q5k", "q6k", "q3_k_m", "q2_k", "q3k", "mxfp4", "bf16", "f16", "f32"}
}

// UnbuiltSchemes lists the names that other tools have and this one does not.
func UnbuiltSchemes() []string {
	return []string{
		"int4", "int8", "awq", "gptq", "fp8", "nf4", "q2_k_s", "q3_k_s", "q3_k_l", "q4_k_s", "q5_k_s", "q4_1", "q5_1",
		"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m", "iq3_xxs", "iq3_xs", "iq3_s", "iq3_m", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0",
	}
}

// base is the element type of an ordinary matrix.
var base = map[Scheme]tensor.DType{
	Q4_K_M: tensor.Q4_K, Q5_K_M: tensor.Q5_K, Q4_0: tensor.Q4_0, Q5_0: tensor.Q5_0,
	Q3_K_M: tensor.Q3_K, Q2_K: tensor.Q2_K, Q3_K: tensor.Q3_K,
	Q4_K: tensor.Q4_K, Q5_K: tensor.Q5_K, Q6_K: tensor.Q6_K, Q8_0: tensor.Q8_0, MXFP4: tensor.MXFP4,
	BF16: tensor.BF16, F16: tensor.F16, F32: tensor.F32,
}

// Quantises reports whether the scheme has block types.
func (s Scheme) Quantises() bool { return base[s].IsQuantized() }

// Type names the element type of an ordinary matrix under the scheme; "" for Keep.
func (s Scheme) Type() string {
	if d, known := base[s]; known {
		return d.String()
	}
	return ""
}

// Choice is the planned type of one tensor and, where it is not what the scheme says, why.
type Choice struct {
	Source tensor.Stored
	DType  tensor.DType
	Reason string // "", "rows of 896 are not whole blocks of q4_k: q5_0", "norm", …

	unfit bool       // the rows are not whole blocks of the scheme's type
	order arch.Order // in which the output has columns that its blocks cannot move; zero: as the source has them
}

// again reports whether blocks of the output's type are decoded and encoded again.
func (c Choice) again() bool { return c.order != (arch.Order{}) && c.Source.DType == c.DType }

// target says which container the tensors are for.
type target int

const (
	toAPR target = iota
	toSafetensors
	toGGUF
)

// rule says which type every tensor gets.
type rule struct {
	scheme Scheme
	to     target
	expand bool         // blocks are widened, also where the output can hold them
	dtype  tensor.DType // of matrices that are not blocks; Invalid: as they are stored, F32 where they were blocks
	apart  bool         // safetensors that hold experts in MXFP4 as codes and scales
}

// plan chooses the type of every tensor of a model by its role. With tied heads the head's type is that of the embedding,
// for both are one tensor.
func (r rule) plan(tensors []tensor.Stored, of roles) ([]Choice, error) {
	s := r.scheme
	if _, known := base[s]; s != Keep && !known {
		return nil, fault.New(fault.Usage, "unknown scheme %q", string(s))
	}
	if s.Quantises() && r.to == toSafetensors && !(s == MXFP4 && r.apart) {
		return nil, fault.New(fault.Unavailable, "safetensors cannot hold the blocks of %s", string(s)).
			WithHint("write an .apr file, or choose bf16, f16 or f32").WithID("E-CONVERT-002")
	}
	if s == MXFP4 && !of.experts() {
		return nil, fault.New(fault.Invalid, "mxfp4 is a type of experts, and this model has none").
			WithHint("q4_k_m and q8_0 are for models without experts").WithID("E-CONVERT-006")
	}
	var plan []Choice
	for _, t := range tensors {
		c := Choice{Source: t}
		c.DType, c.Reason = r.choose(t, of)
		c.unfit = strings.Contains(c.Reason, unfit)
		if c.DType == tensor.MXFP4 && t.Cols()%c.DType.BlockLen() != 0 {
			return nil, fault.New(fault.Invalid, "rows of %d values are not whole blocks of 32 of mxfp4", t.Cols()).At("tensor %q", t.Name).WithID("E-CONVERT-007")
		}
		if c.DType == tensor.Invalid {
			return nil, fault.New(fault.Unavailable, "type %s is no weight's and cannot be converted", t.DType).At("tensor %q", t.Name).WithID("E-CONVERT-003")
		}
		plan = append(plan, c)
	}
	of.together(plan)
	if r.to == toGGUF {
		of.reorder(plan)
	}
	return plan, nil
}

const (
	headName  = "lm_head.weight"
	embedName = "model.embed_tokens.weight"
)

// choose returns the type of one tensor and the reason of an exception; Invalid for a type that is no weight's.
func (r rule) choose(t tensor.Stored, of roles) (tensor.DType, string) {
	if !t.DType.IsFloat() && !t.DType.IsQuantized() {
		return tensor.Invalid, ""
	}
	if of.kept(t.Info) {
		switch {
		case r.to == toSafetensors || of.slots[t.Name].Role == arch.PLEModel:
			return r.plain(t)
		case isMatrix(t.Info):
			return tensor.F32, "router, convolution or bias"
		}
		return tensor.F32, "norm or bias"
	}
	if !r.scheme.Quantises() {
		return r.plain(t)
	}
	d := base[r.scheme]
	if r.scheme == MXFP4 {
		if !of.expert(t.Name) {
			return tensor.BF16, "not of an expert"
		}
		return d, ""
	}
	d = of.mixed(t.Name, r.scheme)
	if t.Cols()%d.BlockLen() != 0 {
		if r.to == toGGUF {
			return fallback(d, t.Cols())
		}
		return tensor.BF16, fmt.Sprintf("rows of %d"+unfit+"%s", t.Cols(), d)
	}
	return d, ""
}

// fallback is the type that llama.cpp gives a matrix whose rows are not whole blocks of d.
func fallback(d tensor.DType, cols int) (tensor.DType, string) {
	instead := map[tensor.DType]tensor.DType{tensor.Q4_K: tensor.Q5_0, tensor.Q5_K: tensor.Q8_0, tensor.Q6_K: tensor.Q8_0,
		tensor.Q3_K: tensor.IQ4_NL, tensor.Q2_K: tensor.IQ4_NL}[d]
	if instead == tensor.Invalid || cols%instead.BlockLen() != 0 {
		instead = tensor.F16
	}
	return instead, fmt.Sprintf("rows of %d"+unfit+"%s: %s", cols, d, instead)
}

// unfit is in the reason of a matrix whose rows the scheme's type cannot hold.
const unfit = " are not whole blocks of "

// isMatrix reports whether a tensor is a weight matrix, not a norm or bias.
func isMatrix(t tensor.Info) bool { return len(t.Shape) >= 2 && t.Rows() > 0 && t.Cols() > 0 }

// plain is the type of a tensor under a scheme without blocks, or under none.
func (r rule) plain(t tensor.Stored) (tensor.DType, string) {
	if r.scheme != Keep && !r.scheme.Quantises() {
		return base[r.scheme], ""
	}
	float := cmp.Or(r.dtype, tensor.F32)
	if held := t.Held().DType; held != t.DType { // decoded on the way
		return float, held.String() + widened
	}
	switch t.DType {
	case tensor.F32, tensor.F16, tensor.BF16:
		return cmp.Or(r.dtype, t.DType), ""
	case tensor.MXFP4:
		if (r.to != toSafetensors || r.apart) && t.Cols()%t.DType.BlockLen() == 0 && !r.expand {
			return t.DType, ""
		}
	case tensor.F64:
		return float, "f64 is narrowed"
	case tensor.Q4_0, tensor.Q5_0, tensor.Q8_0, tensor.Q4_K, tensor.Q5_K, tensor.Q6_K, tensor.IQ4_NL, tensor.IQ4_XS, tensor.Q3_K, tensor.Q2_K:
		if r.to != toSafetensors && t.Cols()%t.DType.BlockLen() == 0 && !r.expand {
			return t.DType, ""
		}
	}
	return float, t.DType.String() + widened
}

// widened ends the reason of a tensor whose blocks become plain numbers.
const widened = " is widened"

// layerNumber reads the decimal number of a layer.
func layerNumber(text string) (int, bool) {
	i := 0
	for _, c := range text {
		if c < '0' || c > '9' || i > 1<<20 {
			return 0, false
		}
		i = 10*i + int(c-'0')
	}
	return i, text != ""
}
