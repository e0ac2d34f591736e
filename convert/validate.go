package convert

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"apr/arch"
	"apr/internal/fault"
	"apr/modelfile"
	"apr/tensor"
)

// Status is the outcome of one check.
type Status string

// The outcomes.
const (
	Passed  Status = "ok"
	Warning Status = "warning"
	Failed  Status = "error"
)

// Check is one judgement about a model file. A check that holds is listed once; one that does not, once for each thing
// that breaks it.
type Check struct {
	ID      string `json:"id"`
	Status  Status `json:"status"`
	Message string `json:"message"`
	Tensor  string `json:"tensor"`
	Offset  *int64 `json:"offset"`
}

// ValidateOptions say how strictly a model is judged.
type ValidateOptions struct {
	Strict  bool // warnings are errors
	Quality bool // also the scale of the weights and outliers
}

// Validation is what Validate found. Score is 100 less 20 for each error and 2 for each warning, at least 0.
type Validation struct {
	Valid    bool    `json:"valid"`
	Checks   []Check `json:"checks"`
	Errors   int     `json:"errors"`
	Warnings int     `json:"warnings"`
	Score    int     `json:"score"`
}

// judge collects checks.
type judge struct {
	Validation
	strict bool
	bad    map[string]bool // checks that something broke
	slots  map[string]arch.Slot
}

// report adds a finding.
func (j *judge) report(id string, s Status, name, format string, args ...any) {
	if s == Warning && j.strict {
		s = Failed
	}
	switch s {
	case Failed:
		j.Errors++
	case Warning:
		j.Warnings++
	}
	j.bad[id] = true
	j.Checks = append(j.Checks, Check{ID: id, Status: s, Message: fmt.Sprintf(format, args...), Tensor: name})
}

// passed adds a check that nothing broke.
func (j *judge) passed(id, format string, args ...any) {
	if !j.bad[id] {
		j.Checks = append(j.Checks, Check{ID: id, Status: Passed, Message: fmt.Sprintf(format, args...)})
	}
}

// Validate judges an opened model: its container (checksums, padding), whether tensors and tokenizer agree with the
// configuration, and the content: values that are not finite, dead, constant and duplicate tensors. Structure errors
// of the file itself are faults of Open. progress gets the bytes done; it may be nil.
func Validate(ctx context.Context, c *Container, opt ValidateOptions, progress func(int64)) (*Validation, error) {
	j := &judge{strict: opt.Strict, bad: map[string]bool{}, slots: map[string]arch.Slot{}}
	j.passed("format.structure", "%s: %d tensors inside the file", c.Format, len(c.File.Tensors()))
	for _, w := range c.Warnings {
		j.report("format.warnings", Warning, "", "%s", w)
	}
	if err := j.container(c); err != nil {
		return nil, err
	}
	j.config(c)
	j.tokenizer(c)
	if err := j.content(ctx, c, opt, progress); err != nil {
		return nil, err
	}
	if len(c.File.Tensors()) == 0 {
		j.report("content.tensors", Failed, "", "the file holds no tensor")
	}
	j.Score = max(0, 100-20*j.Errors-2*j.Warnings)
	j.Valid = j.Errors == 0
	return &j.Validation, nil
}

// Fault returns the error that belongs to a failed validation, or nil.
func (v *Validation) Fault(path string, minScore int) error {
	if !v.Valid {
		i := slices.IndexFunc(v.Checks, func(c Check) bool { return c.Status == Failed })
		first := v.Checks[i]
		f := fault.In(fault.Invalid, path, "%s; the first: %s: %s", fault.Plural(v.Errors, "error"), first.ID, first.Message)
		if first.Tensor != "" {
			f = f.At("tensor %q", first.Tensor)
		}
		return f.WithID("E-VALIDATE-001")
	}
	if v.Score < minScore {
		return fault.In(fault.Invalid, path, "score %d is below %d", v.Score, minScore).WithID("E-VALIDATE-002")
	}
	return nil
}

// config checks that there is a configuration and that the tensors are those it asks for.
func (j *judge) config(c *Container) {
	cfg, err := c.Config()
	if err != nil {
		j.report("config.valid", Failed, "", "%s", err)
		return
	}
	j.passed("config.valid", "%s", cfg)
	for _, s := range arch.Slots(cfg) {
		j.slots[s.Name] = s
	}
	if err := c.CheckStrays(); err != nil {
		j.report("config.tensors", Failed, "", "%s", err)
	}
	want := arch.Shapes(cfg)
	for name, shape := range sorted(want) {
		if err := c.Missing(name); err != nil {
			j.report("config.tensors", Failed, name, "%s", reason(err))
			continue
		}
		switch t, _ := c.File.Tensor(name); {
		case !slices.Equal(t.Shape, shape):
			j.report("config.tensors", Failed, name, "has shape %v; the configuration needs %v", t.Shape, shape)
		case !t.DType.IsFloat() && !t.DType.IsQuantized():
			j.report("config.tensors", Failed, name, "has type %s, which no weight can have", t.DType)
		}
	}
	for _, t := range c.weights("") {
		if _, ok := want[t.Name]; !ok && !strings.HasSuffix(t.Name, rotaryTable) {
			j.report("config.tensors", Failed, t.Name, "is not part of a %s model of this configuration", cfg.Family)
		}
	}
	j.passed("config.tensors", "all %d tensors of the architecture are there, with their shapes", len(want))
	j.head(c, cfg)
}

// reason is what an error says, without file and place.
func reason(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Msg
	}
	return err.Error()
}

// head checks a stored head that ought to be the embedding.
func (j *judge) head(c *Container, cfg arch.Config) {
	t, ok := c.File.Tensor(headName)
	if !cfg.Tied || !ok || t.Size == 0 {
		return
	}
	e, ok := c.File.Tensor(embedName)
	if !ok {
		return
	}
	if same, err := sameBytes(context.Background(), c.Path, c.Path, t, e); err == nil && !same {
		s, err := ReadStats(context.Background(), c.Path, t)
		if err == nil && float64(s.Zero) < 0.999*float64(s.N) {
			j.report("config.tied", Failed, headName, "the configuration ties it to the embedding, but it is another matrix")
		}
	}
	j.passed("config.tied", "the head is the embedding")
}

// tokenizer checks that there is a tokenizer and that it fits the embedding.
func (j *judge) tokenizer(c *Container) {
	tok, err := c.Tokenizer()
	if err != nil {
		s := Failed
		if fault.KindOf(err) == fault.NotFound && c.Format == "safetensors" {
			s = Warning // weights alone are a legal folder
		}
		j.report("tokenizer.valid", s, "", "%s", err)
		return
	}
	j.passed("tokenizer.valid", "%d tokens", tok.RealIDs())
	switch warning, err := tok.CheckMerges(); {
	case err != nil:
		j.report("tokenizer.merges", Failed, "", "%s", reason(err))
	case warning != "":
		j.report("tokenizer.merges", Warning, "", "%s", warning)
	}
	j.passed("tokenizer.merges", "merges make the tokens of the vocabulary")
	for _, line := range c.CheckBeside(tok) {
		j.report("tokenizer.beside", Warning, "", "%s", line)
	}
	cfg, err := c.Config()
	if err != nil {
		return
	}
	if tok.RealIDs() > cfg.Vocab {
		j.report("tokenizer.rows", Failed, embedName, "%d tokens, but %d rows", tok.RealIDs(), cfg.Vocab)
	}
	j.passed("tokenizer.rows", "%d tokens fit %d rows", tok.RealIDs(), cfg.Vocab)
	if len(cfg.EOS) > 0 && tok.EOS() >= 0 && !slices.Contains(cfg.EOS, int(tok.EOS())) {
		j.report("tokenizer.eos", Warning, "", "the tokenizer ends a text with id %d, the configuration says %d", tok.EOS(), cfg.EOS)
	}
	if tok.EOS() < 0 {
		j.report("tokenizer.eos", Warning, "", "no end-of-text token")
	}
	j.passed("tokenizer.eos", "end of text is id %d", tok.EOS())
}

// content reads every value once.
func (j *judge) content(ctx context.Context, c *Container, opt ValidateOptions, progress func(int64)) error {
	zero, content := mayBeZero(c), modelfile.NewContent(c.Container)
	for _, t := range c.weights("") {
		if !t.DType.IsFloat() && !t.DType.IsQuantized() {
			continue // reported by config
		}
		r, err := newRowReader(c.Path, t)
		if err != nil {
			return err
		}
		r.look = func(raw []byte, at int64) error { content.Note(t, raw, at); return nil }
		s, err := r.stats(ctx)
		if err != nil {
			return err
		}
		j.values(t, s, zero)
		if opt.Quality {
			j.quality(t, s)
		}
		if progress != nil {
			progress(t.Size)
		}
	}
	if err := j.findings(content); err != nil {
		return err
	}
	if err := j.holes(c); err != nil {
		return err
	}
	j.passed("content.finite", "no value is NaN or infinite")
	j.passed("content.range", "no value is too large to compute with")
	j.passed("content.zero", "no tensor is dead")
	j.passed("content.constant", "no matrix is constant")
	j.passed("content.duplicate", "no two matrices are equal")
	if opt.Quality {
		j.passed("quality.scale", "the scale of every matrix is plausible")
		j.passed("quality.outliers", "no value is far from all others")
	}
	return nil
}

// findings reports what training and conversion look for too.
func (j *judge) findings(content *modelfile.Content) error {
	all, err := content.Findings()
	for _, f := range all {
		if f.Check == "content.zero" && j.bad[f.Check] { // the values have told that already
			continue
		}
		s := Warning
		if f.Bad {
			s = Failed
		}
		j.report(f.Check, s, f.Tensor, "%s", f.Message)
	}
	return err
}

// holes judges runs of one value in what content has read.
func (j *judge) holes(c *Container) error {
	lines, err := c.Holes(false)
	if err != nil && fault.KindOf(err) != fault.Invalid {
		return err
	}
	if j.bad["content.zero"] || j.bad["content.constant"] { // the same bytes
		return nil
	}
	for _, line := range lines {
		j.report("content.holes", Warning, "", "%s", line)
	}
	if err != nil { // of a part, or of a norm that multiplies by w+1, whose values are −1
		j.report("content.holes", Failed, "", "%s", err)
	}
	j.passed("content.holes", "no long run of one value")
	return nil
}

// mayBeZero reports of a tensor whether all its values may be 0: of a bias, and of what a new model has as zeros.
func mayBeZero(c *Container) func(name string) bool {
	slots := map[string]arch.Slot{}
	if cfg, err := c.Config(); err == nil {
		for _, s := range arch.Slots(cfg) {
			slots[s.Name] = s
		}
		return func(name string) bool {
			s, ok := slots[name]
			return ok && modelfile.MayBeZero(cfg, s)
		}
	}
	return func(name string) bool { return strings.HasSuffix(name, ".bias") }
}

// in names the expert that holds values first to last of a tensor; empty: there is no single one.
func (j *judge) in(name string, first, last int64) string {
	e, ok := j.slots[name].Expert(first)
	if other, _ := j.slots[name].Expert(last); !ok || other != e {
		return ""
	}
	return fmt.Sprintf(" in expert %d", e)
}

// values judges the statistics of one tensor. A bias may be zero.
func (j *judge) values(t tensor.Stored, s Stats, zero func(name string) bool) {
	if s.N == 0 {
		return
	}
	switch {
	case s.NaN+s.Inf > 0:
		where := j.in(t.Name, s.First, s.Last)
		if where != "" {
			where = ", all" + where
		}
		j.report("content.finite", Failed, t.Name, "%d of %d values are NaN, %d infinite%s", s.NaN, s.N, s.Inf, where)
	case s.Zero == s.N && !zero(t.Name):
		j.report("content.zero", Failed, t.Name, "all %d values are zero", s.N)
	case t.Name == headName && float64(s.Zero) >= 0.999*float64(s.N):
		j.report("content.zero", Failed, t.Name, "%d of %d values are zero", s.Zero, s.N)
	}
}

// quality judges scale and outliers of a matrix.
func (j *judge) quality(t tensor.Stored, s Stats) {
	if !isMatrix(t.Info) || math.IsNaN(s.Std) || s.Std == 0 {
		return
	}
	if s.Std < 1e-6 || s.Std > 10 {
		j.report("quality.scale", Warning, t.Name, "standard deviation %.3g", s.Std)
	}
	far, at := s.Max-s.Mean, s.MaxAt
	if low := s.Mean - s.Min; low > far {
		far, at = low, s.MinAt
	}
	if far > 100*s.Std {
		j.report("quality.outliers", Warning, t.Name, "a value%s is %.0f standard deviations from the mean",
			j.in(t.Name, at, at), far/s.Std)
	}
}

// sorted yields a map in order of its keys.
func sorted[V any](m map[string]V) func(yield func(string, V) bool) {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return func(yield func(string, V) bool) {
		for _, k := range keys {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// Broken is the validation of a file whose structure is wrong: err says how.
func Broken(err error) *Validation {
	return &Validation{Checks: []Check{{ID: "format.structure", Status: Failed, Message: err.Error()}}, Errors: 1}
}
