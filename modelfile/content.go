package modelfile

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"

	"apr/arch"
	"apr/internal/fault"
	"apr/quant"
	"apr/tensor"
)

// Weights beyond f16's range are doubtful; those beyond tooLarge are damage: sums and squares with them leave nothing
// of the others.
const (
	suspect  = 65504
	tooLarge = 1e9
)

// Finding is what is wrong with the values of a tensor. Where Bad, no model that was trained is like that.
type Finding struct {
	Check   string // as `apr validate` names it: "content.constant"
	Tensor  string
	Message string
	Bad     bool
}

// Content judges the values of a model by the bytes that are read of it for something else: it reads nothing twice but
// two matrices that begin alike. Each byte is to be looked at once.
type Content struct {
	c    *Container
	seed maphash.Seed

	mu   sync.Mutex
	seen map[string]*values
}

// values is what is known of a tensor.
type values struct {
	t       tensor.Stored
	largest float64 // magnitude, if it is suspect
	at      int64   // byte of the element or block that has it
	large   int     // of F16, how many of those counted are at least 0.25
	counted int
	sampled int    // of F16 and BF16, values that are not zero
	other   int    // of these, those that the other of both types explains
	first   uint64 // bits of the first element that was seen
	began   bool
	varies  bool   // elements differ
	begins  uint64 // hash of the first page

	live, negative bool // of floats: a value is not 0; before the first such, a value is −0
}

// NewContent begins to judge c.
func NewContent(c *Container) *Content {
	return &Content{c: c, seed: maphash.MakeSeed(), seen: map[string]*values{}}
}

// Look is Note, and refuses values that are not finite, as [CheckFinite] does.
func (n *Content) Look(t tensor.Stored, raw []byte, at int64) error {
	if n.Note(t, raw, at) {
		return nil
	}
	return CheckFinite(n.c.Path, t, raw, at)
}

// Note takes whole elements or blocks of t, from byte at of its payload on, and reports whether all of them may be
// finite. It may be called by several goroutines.
func (n *Content) Note(t tensor.Stored, raw []byte, at int64) bool {
	if len(raw) == 0 || !t.DType.IsFloat() && !t.DType.IsQuantized() {
		return true
	}
	largest, large, counted := 0.0, 0, 0
	switch {
	case t.DType.IsFloat():
		largest = tensor.Largest(raw, t.DType)
	case t.DType != tensor.AprQ8 || at == 0:
		largest = quant.Largest(raw, t.DType)
	}
	if t.DType == tensor.F16 {
		sample := raw[:min(len(raw), 64<<10)] // of a piece
		large, counted = tensor.CountF16(sample), len(sample)/2
	}
	sampled, other := otherHalf(raw[:min(len(raw), 8<<10)], t.DType)
	n.mu.Lock()
	defer n.mu.Unlock()
	v := n.seen[t.Name]
	if v == nil {
		v = &values{t: t}
		n.seen[t.Name] = v
	}
	if largest > max(v.largest, suspect) {
		v.at = at + firstOf(raw, t.DType, largest)
	}
	v.largest, v.large, v.counted = max(v.largest, largest), v.large+large, v.counted+counted
	v.sampled, v.other = v.sampled+sampled, v.other+other
	if at == 0 {
		v.begins = maphash.Bytes(n.seed, raw[:min(len(raw), 4096)])
	}
	v.compare(raw, at)
	v.look(raw)
	return !math.IsNaN(largest) && !math.IsInf(largest, 0)
}

// firstOf returns the byte at which the first element or block begins that holds a value of the largest magnitude.
func firstOf(raw []byte, d tensor.DType, largest float64) int64 {
	size, of := d.BlockBytes(), quant.Largest
	if d.IsFloat() {
		of = tensor.Largest
	}
	for i := 0; i+size <= len(raw); i += size {
		if of(raw[i:i+size], d) == largest {
			return int64(i)
		}
	}
	return 0
}

// otherHalf returns how many values of F16 or BF16 are not zero, and how many of these have a magnitude that bits of
// the other type give them: BF16 read as F16 is 0.25 and more, F16 read as BF16 mostly below 2^-30.
func otherHalf(raw []byte, d tensor.DType) (sampled, other int) {
	if d != tensor.F16 && d != tensor.BF16 {
		return 0, 0
	}
	const quarter, tiny = 0x3400, (127 - 30) << 7
	for ; len(raw) >= 2; raw = raw[2:] {
		bits := int(raw[0]) | int(raw[1]&0x7f)<<8
		if bits == 0 {
			continue
		}
		sampled++
		if d == tensor.F16 && bits >= quarter || d == tensor.BF16 && bits < tiny {
			other++
		}
	}
	return sampled, other
}

// fewSampled are too few values to say that a matrix is of another type; of a matrix of that type nearly no value is
// like that: trained values of F16 gather about zero, and those of BF16 are rarely below 2^-30. The limits are
// percentages.
const fewSampled, otherF16, otherBF16 = 64, 98, 50

// compare finds out whether all elements have the same bits: of plain values and codes, or of the numbers of blocks.
func (v *values) compare(raw []byte, at int64) {
	d := v.t.DType
	size := d.BlockBytes()
	switch {
	case v.varies:
		return
	case d == tensor.AprQ8: // codes behind a scale
		raw, size = raw[min(int64(len(raw)), max(0, 4-at)):], 1
	case d.IsQuantized():
		v.compareBlocks(raw)
		return
	}
	if len(raw) < size {
		return
	}
	v.begin(bitsOf(raw[:size]))
	v.varies = v.varies || v.first != bitsOf(raw[:size]) || !bytes.Equal(raw[size:], raw[:len(raw)-size])
}

// look finds the first value that is not 0 among floats, and whether one before it is −0.
func (v *values) look(raw []byte) {
	if !v.t.DType.IsFloat() {
		return
	}
	size := v.t.DType.BlockBytes()
	sign := uint64(1) << (8*size - 1)
	for ; len(raw) >= size && !v.live; raw = raw[size:] {
		bits := bitsOf(raw[:size])
		v.live, v.negative = bits&^sign != 0, v.negative || bits == sign
	}
}

// compareBlocks is compare of whole blocks, up to the first number that differs.
func (v *values) compareBlocks(raw []byte) {
	d := v.t.DType
	block := make([]float32, d.BlockLen())
	for size := d.BlockBytes(); len(raw) >= size && !v.varies; raw = raw[size:] {
		quant.DequantizeRange(block, raw[:size], 0, d)
		v.begin(uint64(math.Float32bits(block[0])))
		v.varies = slices.ContainsFunc(block, func(x float32) bool { return uint64(math.Float32bits(x)) != v.first })
	}
}

func (v *values) begin(bits uint64) {
	if !v.began {
		v.first, v.began = bits, true
	}
}

// bitsOf returns the bytes of an element as a number.
func bitsOf(b []byte) (bits uint64) {
	for i, x := range b {
		bits |= uint64(x) << (8 * i)
	}
	return bits
}

// mostAlike is with how many matrices that begin alike another one is compared: a file may have many such.
const mostAlike = 16

// Findings judges what was looked at, in order of name.
func (n *Content) Findings() (all []Finding, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	names := make([]string, 0, len(n.seen))
	for name := range n.seen {
		names = append(names, name)
	}
	slices.Sort(names)
	type beginning struct {
		dtype tensor.DType
		shape string
		hash  uint64
	}
	alike := map[beginning][]*values{} // matrices that begin alike, each different from those before it
	slots := n.slots()
	for _, name := range names {
		v := n.seen[name]
		all = append(all, v.findings(slots[name])...)
		if v.constant() || !v.matrix() {
			continue
		}
		key := beginning{v.t.DType, fmt.Sprint(v.t.Shape), v.begins}
		twin := ""
		for _, other := range alike[key] {
			same, err := n.c.equalBytes(v.t, other.t)
			if err != nil {
				return nil, err
			}
			if same {
				twin = other.t.Name
				break
			}
		}
		if twin == "" {
			if len(alike[key]) < mostAlike {
				alike[key] = append(alike[key], v)
			}
			continue
		}
		// A head that is a copy of the embedding computes what a tied one does.
		all = append(all, Finding{duplicates, name, fmt.Sprintf("has the same bytes as %q", twin), name != headName && name != embedName})
	}
	return append(all, n.biases()...), nil
}

func (v *values) matrix() bool { return len(v.t.Shape) >= 2 && v.t.Elements() > 1 }

func (v *values) constant() bool { return v.began && !v.varies }

// zero reports whether all values are 0.
func (v *values) zero() bool {
	sign := uint64(1) << 31
	if v.t.DType.IsFloat() {
		sign = 1 << (8*v.t.DType.BlockBytes() - 1)
	}
	return v.constant() && v.first&^sign == 0
}

// slots returns the slots of the model by name; none without a configuration.
func (n *Content) slots() map[string]arch.Slot {
	all := map[string]arch.Slot{}
	if config, err := n.c.ReadConfig(); err == nil {
		for _, s := range arch.Slots(config) {
			all[s.Name] = s
		}
	}
	return all
}

// findings judges a tensor, of a slot, by itself. Zeros are judged by [Container.Holes].
func (v *values) findings(slot arch.Slot) (all []Finding) {
	where := ""
	if e, ok := slot.Expert(indexAt(v.t, v.at)); ok && v.t.DType != tensor.AprQ8 { // whose values share a scale
		where = fmt.Sprintf(" in expert %d", e)
	}
	add := func(check string, bad bool, format string, args ...any) {
		all = append(all, Finding{check, v.t.Name, fmt.Sprintf(format, args...), bad})
	}
	switch {
	case math.IsInf(v.largest, 0):
	case v.largest > tooLarge:
		add("content.range", true, "a value of magnitude %.3g%s: no trained model has such a weight", v.largest, where)
	case v.largest > suspect:
		add("content.range", false, "a value of magnitude %.3g%s: larger than any of a trained model, "+
			"and than f16 can hold", v.largest, where)
	case v.negative && !v.live && (v.matrix() || strings.Contains(v.t.Name, "norm")): // no new model has −0
		add("content.zero", true, "all %d values are 0, and some of them −0: was it multiplied by 0?", v.t.Elements())
	case v.matrix() && v.constant() && !v.zero():
		add("content.constant", true, "all %d values are the same", v.t.Elements())
	}
	switch enough := v.matrix() && v.sampled >= fewSampled && !v.constant(); {
	case enough && v.t.DType == tensor.F16 && 100*v.other >= otherF16*v.sampled:
		add("content.f16", true, "%d of %d magnitudes are 0.25 or more: the values are BF16, labelled F16", v.other,
			v.sampled)
	case enough && v.t.DType == tensor.BF16 && 100*v.other >= otherBF16*v.sampled:
		add("content.bf16", true, "%d of %d magnitudes are below 2^-30: the values are F16, labelled BF16", v.other,
			v.sampled)
	case v.t.DType == tensor.F16 && v.matrix() && 2*v.large >= v.counted:
		add("content.f16", false, "half of the magnitudes are 0.25 or more: probably BF16 stored as F16")
	}
	return all
}

// Checks that a model before its training may fail.
const zeroBiases, duplicates = "content.bias", "content.duplicate"

// biases judges the biases of q, k and v together: those of a new model are all zero, and so are those that a merge or
// a conversion lost.
func (n *Content) biases() []Finding {
	config, err := n.c.ReadConfig()
	if err != nil || !config.TrainsBiases() {
		return nil
	}
	count := 0
	for _, s := range arch.Slots(config) {
		if !s.Bias || s.Role != arch.Q && s.Role != arch.K && s.Role != arch.V {
			continue
		}
		v := n.seen[s.Name]
		if v == nil || !v.zero() {
			return nil
		}
		count++
	}
	if count == 0 {
		return nil
	}
	return []Finding{{zeroBiases, "", fmt.Sprintf("all %d biases of q, k and v are 0, which those of published %s models are not: was it never trained, or were they lost?", count, config.Family), false}}
}

// Tolerance is what Judge lets pass.
type Tolerance struct {
	Odd    bool // what no trained model has: a line instead of a fault
	Copies bool // layers that begin as copies of others, as in a student that was given more: lines too
	Zeros  bool // biases of zero, as a new model has them
}

// Judge returns the lines of what is doubtful, and the first finding that is bad as a fault.
func (n *Content) Judge(may Tolerance) (lines []string, err error) {
	all, err := n.Findings()
	if err != nil {
		return nil, err
	}
	if may.Zeros {
		all = slices.DeleteFunc(all, func(f Finding) bool { return f.Check == zeroBiases })
	}
	for i := range all {
		if may.Odd || may.Copies && all[i].Check == duplicates {
			all[i].Bad = false
		}
	}
	bad := 0
	for _, f := range all {
		if f.Bad {
			bad++
		}
	}
	for _, f := range all {
		if f.Bad {
			e := fault.In(fault.Invalid, n.c.Path, "%s", f.Message).At("tensor %q", f.Tensor).
				WithHint("`apr validate` lists all that is wrong: fetch the file again, or --allow-odd-weights if it is meant").WithID("E-MODEL-050")
			if bad > 1 {
				e.Msg += fmt.Sprintf(" (%d findings like it)", bad)
			}
			return nil, e
		}
		lines = append(lines, n.line(f))
	}
	if more := len(lines) - maxFindings; more > 0 {
		lines = append(lines[:maxFindings], fmt.Sprintf("%s: %d more findings; `apr validate` lists them", n.c.Path, more))
	}
	return lines, nil
}

// maxFindings is how many findings are listed.
const maxFindings = 8

func (n *Content) line(f Finding) string {
	if f.Tensor == "" {
		return n.c.Path + ": " + f.Message
	}
	return fmt.Sprintf("%s: tensor %q: %s", n.c.Path, f.Tensor, f.Message)
}
