package runlog

import (
	"encoding/json"
	"fmt"
)

// SamplesFile holds the sample texts of a run.
const SamplesFile = "samples.json"

// Samples are held-out texts as teacher and student see them at the end of a run, token by token.
type Samples struct {
	Schema  string   `json:"schema"` // "apr.samples/1"
	Top     int      `json:"top"`    // how many predictions are listed
	Vocab   int      `json:"vocab"`  // ids that probabilities are over
	Windows []Sample `json:"windows"`
	// Continuations are held-out prompts that the models went on with.
	Continuations []Continuation `json:"continuations,omitempty"`
}

// Continuation is a prompt from the held-out text, what stands there after it, and what each model wrote instead, greedily.
type Continuation struct {
	Prompt  string   `json:"prompt"`
	Text    string   `json:"text"`
	Answers []Answer `json:"answers"`
}

// Answer is what a model wrote after a prompt.
type Answer struct {
	Model  string `json:"model"` // by its name in the held-out evaluation
	Text   string `json:"text"`
	Tokens int    `json:"tokens"`
	Finish string `json:"finish"` // stop, length, or time: it took too long
}

// SizesEvent is the name of the evaluation that holds a list of ModelSize.
const SizesEvent = "size and speed"

// ModelSize is what a model takes, and how fast it wrote the continuations one by one.
type ModelSize struct {
	Name            string  `json:"name"`
	Parameters      int64   `json:"parameters"`
	FileBytes       int64   `json:"file_bytes"`   // of its tensors as given, or of student.apr
	MemoryBytes     int64   `json:"memory_bytes"` // of its weights in this run
	TokensPerSecond *Number `json:"tokens_per_second,omitempty"`
}

// Sample is a piece of a held-out window. The first token has no prediction.
type Sample struct {
	Window int `json:"window"` // its place among the run's held-out windows
	// Own is the number of the step for which the student wrote what counts of it; absent: a held-out window.
	Own    *int          `json:"own,omitempty"`
	Tokens []SampleToken `json:"tokens"`
}

// SampleToken is a token of a text and how the models predicted it from those before it. KL is that of the two
// distributions over all ids, at temperature 1, in nats.
type SampleToken struct {
	ID      int32       `json:"id"`
	Text    string      `json:"text"`   // what is not UTF-8 is U+FFFD
	Counts  bool        `json:"counts"` // the loss mask: it is a target
	KL      *Number     `json:"kl,omitempty"`
	Teacher *Prediction `json:"teacher,omitempty"`
	Student *Prediction `json:"student,omitempty"`
}

// Prediction is what a model expected: the probability of the token that came, and the likeliest tokens.
type Prediction struct {
	P   Number   `json:"p"`
	Top []Choice `json:"top"`
}

// Choice is one of the likeliest tokens.
type Choice struct {
	ID   int32  `json:"id"`
	Text string `json:"text"`
	P    Number `json:"p"`
}

// WriteSamples writes samples.json, without indentation: there are many numbers.
func (d *Dir) WriteSamples(s Samples) error {
	s.Schema = "apr.samples/1"
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("%s: %w", SamplesFile, err)
	}
	return d.write(SamplesFile, append(b, '\n'))
}
