package convert

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/keep"
	"apr/modelfile"
	"apr/tensor"
)

// Options say how a model is written.
type Options struct {
	Scheme   Scheme
	Force    bool
	Inputs   []string    // what was read besides the model, as a tokenizer
	Version  string      // of the program, written into .apr files as apr/VERSION
	Progress func(int64) // source bytes done; may be nil

	To         string       // what Kind returns; empty: by the name of the output
	Expand     bool         // widen blocks that the output could hold
	DType      tensor.DType // of matrices that are not blocks; Invalid: as they are stored, F32 where they were blocks
	Importance Importance   // of the columns of matrices that become blocks; nil: errors of all count the same
	AllowOdd   bool         // warn of weights that no trained model has, and go on
	MaxShard   int64        // bytes of a file of weights of a folder; 0: 5 GB
	Pruned     Pruned       // how the model was cut out of another, for the file to say; nil: it was not
}

// Pruned says how a model was cut out of another.
type Pruned map[string]any

// kind is the kind of the output.
func (o Options) kind(out string) string { return cmp.Or(o.To, Kind(out)) }

// Report says what was written.
type Report struct {
	Output       string
	Files        []string // written, relative to a folder's path
	OriginalSize int64    // payload bytes
	OutputSize   int64
	DTypes       map[string]string  // tensor → new type
	RMSE         map[string]float64 // tensors whose new type may lose something → error against the stored values
	KeptBF16     []string           // matrices that the scheme would have quantised, were their rows whole blocks
	Widened      []string           // tensors whose type the output cannot hold
	Exceptions   []string           // matrices by the type that they have instead of the scheme's, with the reason
	Warnings     []string
	// Why llama.cpp refuses the file, which is also one of Warnings; empty: nothing is known against it.
	NotInLlamaCpp string
	Doubts        []string // those of Warnings that damage may explain
}

// Kind returns what a path stands for as an output: "apr", "safetensors" (one file), "gguf" or "hf" (a folder).
func Kind(out string) string {
	switch strings.ToLower(filepath.Ext(out)) {
	case ".apr":
		return "apr"
	case ".safetensors":
		return "safetensors"
	case ".gguf":
		return "gguf"
	}
	return "hf"
}

// targets are the containers of the kinds.
var targets = map[string]target{"apr": toAPR, "gguf": toGGUF, "safetensors": toSafetensors, "hf": toSafetensors}

// Plan returns the type every tensor would get, and what Write would report but for the measured errors and sizes on
// disk.
func Plan(c *Container, out string, opt Options) ([]Choice, *Report, error) {
	cfg, err := c.Config()
	if err != nil {
		return nil, nil, err
	}
	return planOf(c, out, rolesOf(cfg, targets[opt.kind(out)]), opt)
}

// planOf is Plan for known roles.
func planOf(c *Container, out string, of roles, opt Options) ([]Choice, *Report, error) {
	used, dropped := split(c.weights(""))
	plan, err := rule{opt.Scheme, targets[opt.kind(out)], opt.Expand, opt.DType, of.apart && opt.kind(out) == "hf"}.plan(used, of)
	if err != nil {
		return nil, nil, err
	}
	r := &Report{Output: out, DTypes: map[string]string{}, RMSE: map[string]float64{}, Warnings: slices.Clone(c.Warnings)}
	if cfg, err := c.Config(); err == nil && opt.kind(out) == "gguf" { // without a configuration nobody runs the file
		if r.NotInLlamaCpp = cfg.NotInLlamaCpp(); r.NotInLlamaCpp != "" {
			r.Warnings = append(r.Warnings, r.NotInLlamaCpp)
		}
	}
	if dropped > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d tables of the rotary embedding are left out: they follow from the configuration", dropped))
	}
	for _, p := range plan {
		name := p.Source.Name
		r.DTypes[name] = p.DType.String()
		r.OriginalSize += p.Source.Held().Size
		r.OutputSize += int64(p.Source.Rows()) * p.DType.RowBytes(p.Source.Cols())
		switch {
		case p.DType == tensor.BF16 && opt.Scheme.Quantises() && opt.Scheme != MXFP4:
			r.KeptBF16 = append(r.KeptBF16, name)
		case strings.HasSuffix(p.Reason, widened):
			r.Widened = append(r.Widened, name)
		}
	}
	if line := encodedAgain(plan); line != "" {
		r.Warnings = append(r.Warnings, line)
	}
	r.Exceptions = misfits(plan, of, opt.Scheme)
	if opt.Importance != nil {
		if names := opt.Importance.missing(plan); len(names) > 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("no importance is known of %s", strings.Join(names, ", ")))
		}
	}
	return plan, r, nil
}

// rotaryTable ends the names of tables that old checkpoints hold beside the weights.
const rotaryTable = ".rotary_emb.inv_freq"

// split leaves out the tables of the rotary embedding.
func split(all []tensor.Stored) (used []tensor.Stored, dropped int) {
	for _, t := range all {
		if !strings.HasSuffix(t.Name, rotaryTable) {
			used = append(used, t)
		}
	}
	return used, len(all) - len(used)
}

// misfits says which matrices have another type than the scheme gives them, since their rows are not whole blocks: a
// line for each type that they have instead.
func misfits(plan []Choice, of roles, s Scheme) []string {
	type kind struct {
		got   string
		block int
	}
	count, columns := map[kind]int{}, map[kind][]int{}
	for _, p := range plan {
		if !p.unfit {
			continue
		}
		k := kind{p.DType.String(), of.mixed(p.Source.Name, s).BlockLen()}
		count[k]++
		if cols := p.Source.Cols(); !slices.Contains(columns[k], cols) {
			columns[k] = append(columns[k], cols)
		}
	}
	var lines []string
	for k, n := range count {
		slices.Sort(columns[k])
		var cols []string
		for _, c := range columns[k] {
			cols = append(cols, strconv.Itoa(c))
		}
		lines = append(lines, fmt.Sprintf("%d as %s because %s columns are not divisible by %d", n, k.got, conjoin(cols), k.block))
	}
	slices.Sort(lines)
	return lines
}

// encodedAgain says which blocks are rounded a second time because their columns move inside them; empty: none.
func encodedAgain(plan []Choice) string {
	count, width, types, first := 0, 0, []string{}, ""
	for _, p := range plan {
		if !p.again() {
			continue
		}
		if count++; count == 1 {
			width, first = p.order.Width, p.Source.Name
		}
		if d := p.DType.String(); !slices.Contains(types, d) {
			types = append(types, d)
		}
	}
	if count == 0 {
		return ""
	}
	what := "tensor is"
	if count > 1 {
		what, first = "tensors are", fmt.Sprintf("%s and %d more", first, count-1)
	}
	return fmt.Sprintf("%d %s encoded again in %s, which rounds the values a second time: a GGUF file orders the "+
		"columns by value head in another way, and the %d columns of a head fill no block (%s); quantise the original "+
		"model to .gguf to round once",
		count, what, conjoin(types), width, first)
}

// conjoin prints "a, b and c".
func conjoin(words []string) string {
	last := len(words) - 1
	if last < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}

// Write converts the model c to the file or folder out. Outputs appear whole or not at all; existing ones are refused
// without opt.Force.
func Write(ctx context.Context, c *Container, out string, opt Options) (*Report, error) {
	plan, r, err := Plan(c, out, opt)
	if err != nil {
		return nil, err
	}
	if err := refuseOverwrite(c, out, opt); err != nil {
		return nil, err
	}
	if err := cmp.Or(c.CheckStated(opt.AllowOdd), c.CheckStrays(), checkComplete(c, r), c.CheckHead()); err != nil {
		return nil, err
	}
	enc, sources, err := encoded(ctx, c, plan, opt, r)
	if err != nil {
		return nil, err
	}
	err = write(c, out, sources, plan, opt, r)
	return r, cmp.Or(enc.damage, err)
}

// encoded returns the tensors in their new types; the errors of these go into the report as they are written. With the
// last of them c has been read: if it is damaged, the output does not appear.
func encoded(ctx context.Context, c *Container, plan []Choice, opt Options, r *Report) (*encoder, []tensor.Source, error) {
	enc := &encoder{ctx: ctx, path: c.Path, progress: opt.Progress, importance: opt.Importance, rmse: r.RMSE, left: len(plan), content: modelfile.NewContent(c.Container)}
	enc.verify = func() error { return verify(c, enc.content, opt, r) }
	var sources []tensor.Source
	for _, p := range plan {
		s, err := enc.source(p)
		if err != nil {
			return nil, nil, err
		}
		sources = append(sources, enc.checked(s))
	}
	if len(sources) == 0 {
		return enc, nil, c.Verify()
	}
	return enc, sources, nil
}

// doubt adds warnings that damage may explain.
func (r *Report) doubt(lines ...string) {
	r.Warnings, r.Doubts = append(r.Warnings, lines...), append(r.Doubts, lines...)
}

// verify judges c after it was read; what is doubtful goes into the report.
func verify(c *Container, content *modelfile.Content, opt Options, r *Report) error {
	if err := c.Verify(); err != nil {
		return err
	}
	lines, err := c.Holes(opt.AllowOdd)
	r.doubt(lines...)
	if err != nil {
		return err
	}
	lines, err = content.Judge(modelfile.Tolerance{Odd: opt.AllowOdd, Zeros: true}) // a student may be converted before it is trained
	r.doubt(lines...)
	return err
}

// write hands the sources to the writer of the output's kind.
func write(c *Container, out string, sources []tensor.Source, plan []Choice, opt Options, r *Report) error {
	switch opt.kind(out) {
	case "apr":
		if err := writeAPR(c, out, sources, opt); err != nil {
			return err
		}
	case "gguf":
		if err := writeGGUF(c, out, sources, opt); err != nil {
			return err
		}
	case "safetensors":
		if err := writeSafetensors(c, out, sources, opt); err != nil {
			return err
		}
	default:
		return writeHF(c, out, sources, plan, opt, r)
	}
	return r.measure(out)
}

// measure notes the one file that was written.
func (r *Report) measure(out string) error {
	st, err := os.Stat(out)
	if err != nil {
		return fault.In(fault.IO, out, "cannot be read back").Because(err)
	}
	r.OutputSize, r.Files = st.Size(), []string{filepath.Base(out)}
	return nil
}

// mainType is the type of most elements, as config.json states it.
func mainType(plan []Choice) tensor.DType {
	count := map[tensor.DType]int64{}
	best := tensor.F32
	for _, p := range plan {
		count[p.DType] += p.Source.Elements()
	}
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
		if count[d] > count[best] {
			best = d
		}
	}
	return best
}

// CheckOutput refuses what Write refuses to replace, before anything is read.
func CheckOutput(c *Container, out string, opt Options) error { return refuseOverwrite(c, out, opt) }

// refuseOverwrite refuses an existing output early; and even with force one that is an input, a folder that holds one, and weights where
// the input's folder, or one with an index, would become another model.
func refuseOverwrite(c *Container, out string, opt Options) error {
	inputs := append(append(keep.ModelFiles(c.Path), c.Files...), opt.Inputs...)
	if err := keep.Inputs(out, inputs...); err != nil {
		return err
	}
	if opt.kind(out) != "hf" && filepath.Base(out) == safetensors.SingleName {
		dir, index := filepath.Dir(out), filepath.Join(filepath.Dir(out), safetensors.IndexName)
		if _, err := os.Lstat(index); err == nil {
			return fault.In(fault.Invalid, out, "would hide the model of several files of %s", index).WithHint("name another output").WithID("E-CONVERT-036")
		}
		if err := keep.Inputs(dir, c.Path); err != nil && c.folder() {
			return fault.In(fault.Invalid, out, "would make another model of the input's folder").WithHint("name another output").WithID("E-CONVERT-036")
		}
	}
	st, err := os.Stat(out)
	if err != nil {
		return nil
	}
	if st.IsDir() {
		entries, err := os.ReadDir(out)
		if err == nil && len(entries) == 0 {
			return nil
		}
	}
	if !opt.Force {
		return fault.In(fault.Invalid, out, "already exists").WithHint("give --force to replace it").WithID("E-CONVERT-032")
	}
	return nil
}

// folder reports whether the model was named by its folder.
func (c *Container) folder() bool {
	st, err := os.Stat(c.Path)
	return err == nil && st.IsDir()
}

// checkComplete refuses a model that lacks tensors of its architecture, and a tokenizer that it cannot use; what is doubtful about that goes into r.
func checkComplete(c *Container, r *Report) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	if tok, err := c.Tokenizer(); err == nil { // the writers that need one ask for it
		warning, err := modelfile.CheckTokenizer(c.Path, tok, cfg.Vocab)
		if err != nil {
			return err
		}
		if warning != "" {
			r.doubt(warning)
		}
		r.doubt(c.CheckBeside(tok)...)
	}
	want := arch.Shapes(cfg)
	for name, shape := range sorted(want) {
		if err := c.Missing(name); err != nil {
			return err
		}
		t, _ := c.File.Tensor(name)
		if n := t.Info; !slices.Equal(n.Shape, shape) {
			return fault.In(fault.Load, c.Path, "has shape %v; the configuration needs %v", n.Shape, shape).At("tensor %q", name).WithID("E-CONVERT-034")
		}
	}
	for _, t := range c.weights("") {
		if _, ok := want[t.Name]; !ok && !strings.HasSuffix(t.Name, rotaryTable) {
			return fault.In(fault.Load, c.Path, "is not part of a %s model of this configuration", cfg.Family).At("tensor %q", t.Name).WithID("E-CONVERT-035")
		}
	}
	return nil
}
