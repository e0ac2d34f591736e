package modelfile

import (
	"fmt"
	"strings"

	"apr/arch"
	"apr/format"
	"apr/internal/fault"
	"apr/tensor"
)

// One rule for runs of one value, zeros or another, in every format and type, whoever reads the model:
//
//	the whole matrix, or 64 KiB of one      refused (E-MODEL-009), or with AllowOdd a line
//	4 KiB of a matrix                       a line
//	64 KiB among rows of tokens, or 4 KiB   a line: tokens that no text of the training had keep rows of zeros
//	at their end
//	norms, and scales of MXFP4 and FP8      zeros only: a whole one is refused, and any run of them a line
//	norms that multiply by w+1              zeros only, and not a whole one, which a new model has: a line
const (
	longHole = 64 << 10
	tailHole = 4 << 10
)

// manyHoles reports whether short runs are together so many bytes that pieces of a download seem to be
// missing: a sixteenth of the tensor.
func manyHoles(bytes, size int64) bool { return bytes >= longHole && bytes >= size/16 }

// maxHoles is how many runs of zeros are listed.
const maxHoles = 8

// Holes judges runs of one value in what was read of the model's matrices and norms: zeros, which a download leaves
// that reserves a file's length and stops, and others, which something wrote over the weights. GGUF and safetensors
// have no checksum that would tell. What is damage is a fault, unless odd weights are allowed; what may be is a line;
// see longHole. A whole matrix of zeros is none where a new model has it so, and a line where it is the last one of a
// branch, with which layers begin that are put between those of a trained model. Of what was not read nothing is said.
func (c *Container) Holes(odd bool) (lines []string, err error) {
	if c.Stored == nil { // random numbers that are made as they are read
		return nil, nil
	}
	judged := c.matrices()
	more := 0
	for _, t := range c.Stored.Tensors() {
		at, ok := judged(t)
		if !ok {
			continue
		}
		holes, err := t.Holes()
		if err != nil {
			return nil, err
		}
		if len(holes) == 0 {
			continue
		}
		slot := at.Slot
		size, end := t.Held().Size, c.tokens(t, slot)
		var short, count int64 // runs that are too short to be told one by one
		for _, h := range holes {
			if slot.Role == arch.Norm && h.Fill != 0 { // most norms of a new model are 1
				continue
			}
			if at.offset && h.Size == size {
				continue
			}
			if damage(h, slot, size) && !(odd && (h.Fill != 0 || h.Size < size)) {
				return nil, refused(h, t.Name, size, at.expert(h, size))
			}
			h.Size = min(h.Size, end-h.From)
			if slot.Role != arch.Norm && h.Size < tailHole || rowsOfTokens(slot) && h.Size < longHole && h.From+h.Size < end {
				short, count = short+max(0, h.Size), count+1
				continue
			}
			if len(lines) == maxHoles {
				more++
				continue
			}
			lines = append(lines, fmt.Sprintf("%s: tensor %q: %s%s", h.Path, t.Name, at.expert(h, size), h))
		}
		if manyHoles(short, size) && len(lines) < maxHoles {
			lines = append(lines, fmt.Sprintf("%s: tensor %q: %d bytes in %d runs are zero, or one value: %s",
				holes[0].Path, t.Name, short, count, "holes of an unfinished download?"))
		}
	}
	if more > 0 {
		lines = append(lines, fmt.Sprintf("%d more runs of one value", more))
	}
	return lines, nil
}

// damage reports whether no trained model has run h in a tensor of size bytes.
func damage(h tensor.Hole, s arch.Slot, size int64) bool {
	if h.Size == size {
		return h.Fill != 0 || !addsNothing(s)
	}
	return h.Size >= longHole && !rowsOfTokens(s) && s.Role != arch.Norm
}

func refused(h tensor.Hole, name string, size int64, where string) error {
	what := where + h.String()
	hint := "fetch the file again and compare its checksum with the publisher's"
	if h.Size == size {
		what = "all " + what
	}
	if h.Size < size || h.Fill != 0 {
		hint += "; --allow-odd-weights, where a command has it, if they are meant"
	}
	return fault.In(fault.Invalid, h.Path, "%s", what).At("tensor %q", name).WithHint("%s", hint).WithID("E-MODEL-009")
}

// matrices reports of a stored tensor whether it is a matrix or a norm that is a part of the model and cannot be zero, and of which slot.
// Biases are zero in a new model; a tied model has no slot for its head. Without a configuration names tell.
func (c *Container) matrices() func(t tensor.Stored) (judgedSlot, bool) {
	config, err := c.ReadConfig()
	if err != nil {
		return func(t tensor.Stored) (judgedSlot, bool) {
			return judgedSlot{}, len(t.Shape) > 1 && t.Name != headName && !strings.HasSuffix(t.Name, "bias")
		}
	}
	slots := map[string]judgedSlot{}
	for _, s := range arch.Slots(config) {
		for _, p := range places(c.Kind, s) {
			if s.Role != arch.Norm && MayBeZero(config, s) {
				continue
			}
			own := judgedSlot{s, s.Role == arch.Norm && multiplier(config, s, p) != 0, stacked(s, p)}
			for _, name := range names(p) {
				slots[name] = own
				if p.Blocks {
					slots[name+"_blocks"], slots[name+"_scales"] = own, judgedSlot{scales.Slot, false, own.experts}
				}
				slots[name+"_scale_inv"] = scales // of FP8
			}
		}
	}
	return func(t tensor.Stored) (judgedSlot, bool) {
		name := t.Name
		if c.Kind != format.GGUF {
			name, _ = arch.TextName(t.Name)
		}
		s, ok := slots[name]
		return s, ok && (len(t.Shape) > 1 || s.Role == arch.Norm)
	}
}

// scales stand for many values each, none of which is zero in a trained model: they are judged as a norm is.
var scales = judgedSlot{Slot: arch.Slot{Role: arch.Norm}}

// judgedSlot is a slot whose zeros are judged.
type judgedSlot struct {
	arch.Slot
	offset bool // a norm that multiplies by w+1: all of it is zero in a new model, and no run of it in a trained one

	experts int64 // that the file's tensor stacks
}

// stacked returns how many experts a tensor at place p of slot s stacks; 1 where it is no stack.
func stacked(s arch.Slot, p arch.Place) int64 {
	if p.Each > 0 {
		return 1
	}
	experts, _, _ := s.Dims()
	return int64(experts)
}

// expert names the expert that holds all of a run in a tensor of size bytes; empty: there is no single one.
func (s judgedSlot) expert(h tensor.Hole, size int64) string {
	if s.experts < 2 || size%s.experts != 0 { // no stack, or a damaged one
		return ""
	}
	const slack = 8 // values next to a run may have some of its bytes
	each := size / s.experts
	if e := (h.From + slack) / each; (h.From+h.Size-1-slack)/each == e {
		return fmt.Sprintf("expert %d: ", e)
	}
	return ""
}

// multiplier is what a norm multiplies by where its file has a zero.
func multiplier(c arch.Config, s arch.Slot, p arch.Place) float64 {
	w := p.Values.FromFile(0)
	if s.Init == arch.Identity { // others have no offset
		w += c.NormOffset
	}
	return w
}

// rowsOfTokens reports whether the rows of a matrix are each of a token.
func rowsOfTokens(s arch.Slot) bool {
	return s.Role == arch.Embedding || s.Role == arch.Head || s.Role == arch.PLETable
}

// MayBeZero reports whether all values of a slot may be 0: of a bias, and of what a new model has as zeros.
func MayBeZero(c arch.Config, s arch.Slot) bool {
	return s.Init == arch.Zeros || s.Init == arch.Identity && c.NormOffset == 1
}

// addsNothing reports whether a layer computes nothing where the slot is zero, and computes otherwise as it would without it.
func addsNothing(s arch.Slot) bool {
	return s.Role == arch.O || s.Role == arch.Down || s.Role == arch.ExpertDown
}

// tokens returns where the rows of tokens end in the payload of t: of a vocabulary that is padded, the rows behind them are not used.
func (c *Container) tokens(t tensor.Stored, s arch.Slot) int64 {
	size, rows := t.Held().Size, t.Shape[0]
	if !rowsOfTokens(s) {
		return size
	}
	o, err := c.Outline()
	if err != nil { // of a model without one; one that cannot be read is refused where it is used
		return size
	}
	return min(size, size/int64(rows)*int64(o.Tokens))
}
