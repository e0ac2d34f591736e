package convert

import (
	"apr/arch"
	"apr/internal/fault"
	"apr/tensor"
)

// TrainedTypes returns the element type that a scheme gives each matrix of a model in a GGUF file, by slot, for a student that is
// trained in these types, and a line for each kind of exception. Refused are rows that no block type divides, and columns that
// a GGUF file has in another order inside blocks.
func TrainedTypes(s Scheme, c arch.Config) (map[string]tensor.DType, []string, error) {
	var tensors []tensor.Stored
	for _, slot := range arch.Slots(c) {
		tensors = append(tensors, tensor.Stored{Info: tensor.Info{Name: slot.Name, DType: tensor.F32, Shape: slot.Shape}})
	}
	of := rolesOf(c, toGGUF)
	plan, err := rule{scheme: s, to: toGGUF}.plan(tensors, of)
	if err != nil {
		return nil, nil, err
	}
	types := map[string]tensor.DType{}
	for _, p := range plan {
		name, what := p.Source.Name, ""
		switch {
		case !isMatrix(p.Source.Info) || p.DType == tensor.F32:
			continue
		case p.DType == tensor.F16 && p.Reason != "":
			what = "rows of %d values are not whole blocks of any type: " + string(s) + " cannot be trained"
		case p.order != (arch.Order{}):
			what = "a GGUF file has the columns of rows of %d values in another order inside blocks: " + string(s) + " cannot be trained"
		}
		if what != "" {
			return nil, nil, fault.New(fault.Invalid, what, p.Source.Cols()).At("tensor %q", name).
				WithHint("q8_0, q4_0 and mxfp4 have blocks of 32, other types of 256 or, where rows do not fill these, 32").WithID("E-CONVERT-038")
		}
		types[name] = p.DType
	}
	return types, misfits(plan, of, s), nil
}

// GGUFTypes returns the element type that a scheme gives each tensor of a model in a GGUF file, by slot.
func GGUFTypes(s Scheme, c arch.Config, tensors []tensor.Stored) (map[string]tensor.DType, error) {
	plan, err := rule{scheme: s, to: toGGUF}.plan(tensors, rolesOf(c, toGGUF))
	if err != nil {
		return nil, err
	}
	types := map[string]tensor.DType{}
	for _, c := range plan {
		types[c.Source.Name] = c.DType
	}
	return types, nil
}
