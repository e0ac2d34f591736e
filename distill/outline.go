package distill

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"apr/arch"
	"apr/modelfile"
	"apr/tensor"
)

// Outline says what a run is, before its first step.
type Outline struct {
	Teacher, Student ModelOutline
	More             []ModelOutline // teachers beside the first
	NoTeacher        bool           // nothing teaches: Teacher is the student's own file
	Files            int            // of the training text; 0: token shards
	Documents        int            // that are trained on
	Tokens           int64          // of them
	HeldDocuments    int
	HeldTokens       int64 // 0: nothing is held out
	Steps            int   // of each leg, as far as this run goes
	StepTokens       int   // of a step
	Epochs           float64
	Control          ControlChoice
	Talks            int64         // conversations among the documents
	Writes           int           // tokens that each model writes after held-out prompts, at most
	WritesFor        time.Duration // the most time that it may take for them
	OutputBytes      int64         // of the student's files
	Begins           string        // the first words of the training text that a person would type; empty: none
}

// ModelOutline describes a model in a line.
type ModelOutline struct {
	Path       string
	Family     string
	Parameters int64
	New        bool
	Type       string // of most bytes of its file; of a new model, as it will be written
	Bytes      int64  // of its tensors in that file
	Cache      string // what the teacher's cache holds, whose Path and Bytes these are; empty: it is a model
}

// Outline describes the run.
func (r *Run) Outline() Outline {
	in := r.in
	o := Outline{
		Teacher: outlineOf(in.teacher, r.Config.Teacher), Files: in.files, Documents: len(in.train.Docs), Tokens: int64(len(in.train.IDs)),
		NoTeacher: r.NoTeacher, Steps: r.steps, StepTokens: r.Rows() * r.SeqLen, Control: in.control, Talks: in.talks,
		Student: ModelOutline{Path: r.StudentConfig, Family: in.studentConfig.Family, New: true},
	}
	if in.cache != nil {
		o.Teacher = ModelOutline{Path: in.cache.Dir, Cache: "cache of " + in.cacheText(), Bytes: in.cache.Bytes}
	}
	for i, f := range in.more {
		o.More = append(o.More, outlineOf(f, r.Teachers()[1+i]))
	}
	if in.student != nil {
		o.Student = outlineOf(in.student, r.Config.Student)
	} else {
		n := in.studentConfig.Parameters()
		o.Student.Parameters, o.Student.Type, o.Student.Bytes = n, tensor.F32.String(), 4*n
	}
	if in.held != nil {
		o.HeldDocuments, o.HeldTokens = len(in.held.Docs), int64(len(in.held.IDs))
	}
	if in.held != nil && in.tokenizer != nil && in.cache == nil {
		o.Writes, o.WritesFor = r.Samples*newTokens, continuationTime
	}
	o.Begins = r.begins()
	o.OutputBytes = in.diskNeed(r.Config, r.steps).Outputs
	if r.MaxSteps > 0 {
		o.Steps = min(o.Steps, r.MaxSteps)
	}
	if in.epochSteps > 0 {
		o.Epochs = float64(o.Steps) / float64(in.epochSteps)
	}
	return o
}

// begins returns the first words of the first document that begins with some a person would type.
func (r *Run) begins() string {
	const ids, fewest, most = 24, 4, 32
	t := r.in.train
	if r.in.tokenizer == nil || t == nil {
		return ""
	}
	at := int64(0)
	for _, d := range t.Docs[:min(len(t.Docs), 8)] {
		first := t.IDs[at:min(at+ids, d.End)]
		if at = d.End; len(first) > 0 && first[0] == r.in.tokenizer.BOS() {
			first = first[1:]
		}
		line, _, _ := strings.Cut(strings.TrimSpace(r.join(first)), "\n")
		for cut := len(line); cut >= 0 && utf8.RuneCountInString(line) > most; cut = strings.LastIndexByte(line, ' ') {
			line = line[:cut]
		}
		if n := utf8.RuneCountInString(line); n >= fewest && n <= most && strings.ContainsFunc(line, unicode.IsLetter) &&
			!strings.ContainsFunc(line, strange) {
			return line
		}
	}
	return ""
}

// strange reports whether people do not type a character, or a shell may read it as something else in double quotes.
func strange(c rune) bool {
	return !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune(" .,:;/#*()_-", c)
}

func outlineOf(f *modelfile.Files, path string) ModelOutline {
	n := f.Config.Parameters()
	return ModelOutline{Path: path, Family: f.Config.Family, Parameters: n, Type: weightsType(f), Bytes: f.Bytes()}
}

// weightsType names the type of a model's weights: what its configuration says beyond plain numbers, mxfp4 where
// experts have it, else the type that most bytes are of.
func weightsType(f *modelfile.Files) string {
	if f.Config.Stored != "" {
		return f.Config.Stored
	}
	bytes := map[string]int64{}
	most := ""
	for _, t := range f.File.Tensors() {
		held := t.Held()
		if held.DType == tensor.MXFP4 { // in .apr and GGUF files; a small model's embedding may have more bytes
			return arch.MXFP4
		}
		name := held.DType.String()
		bytes[name] += held.Size
		if bytes[name] > bytes[most] {
			most = name
		}
	}
	return most
}
