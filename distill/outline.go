package distill

import (
	"apr/modelfile"
	"apr/tensor"
)

// Outline says what a run is, before its first step.
type Outline struct {
	Teacher, Student ModelOutline
	Files            int   // of the training text; 0: token shards
	Documents        int   // that are trained on
	Tokens           int64 // of them
	HeldDocuments    int
	HeldTokens       int64 // 0: nothing is held out
	Steps            int   // of each leg, as far as this run goes
	StepTokens       int   // of a step
	Epochs           float64
	Control          ControlChoice
}

// ModelOutline describes a model in a line.
type ModelOutline struct {
	Path       string
	Family     string
	Parameters int64
	Hidden     int
	Type       string // of most bytes of its file; empty: a new model
	Bytes      int64  // of its tensors in the file
}

// Outline describes the run.
func (r *Run) Outline() Outline {
	in := r.in
	o := Outline{
		Teacher: outlineOf(in.teacher, r.Config.Teacher), Files: in.files, Documents: len(in.train.Docs), Tokens: int64(len(in.train.IDs)),
		Steps: r.steps, StepTokens: r.Rows() * r.SeqLen, Control: in.control,
		Student: ModelOutline{Path: r.StudentConfig, Family: in.studentConfig.Family, Parameters: in.studentConfig.Parameters(), Hidden: in.studentConfig.Hidden},
	}
	if in.student != nil {
		o.Student = outlineOf(in.student, r.Config.Student)
	}
	if in.held != nil {
		o.HeldDocuments, o.HeldTokens = len(in.held.Docs), int64(len(in.held.IDs))
	}
	if r.MaxSteps > 0 {
		o.Steps = min(o.Steps, r.MaxSteps)
	}
	if in.epochSteps > 0 {
		o.Epochs = float64(o.Steps) / float64(in.epochSteps)
	}
	return o
}

func outlineOf(f *modelfile.Files, path string) ModelOutline {
	return ModelOutline{Path: path, Family: f.Config.Family, Parameters: f.Config.Parameters(), Hidden: f.Config.Hidden, Type: mostBytes(f.File.Tensors()), Bytes: f.Bytes()}
}

// mostBytes returns the type that most bytes of a file are of.
func mostBytes(all []tensor.Stored) string {
	bytes := map[string]int64{}
	most := ""
	for _, t := range all {
		name := t.DType.String()
		bytes[name] += t.Size
		if bytes[name] > bytes[most] {
			most = name
		}
	}
	return most
}
