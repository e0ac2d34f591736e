package eval

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"apr/internal/fault"
)

// Writer continues prompts: a model, or a script in a test.
type Writer interface {
	// Continue returns a continuation of prompt. sample numbers independent draws of the same prompt. It may stop as
	// soon as done says that the text so far is complete. An error of kind Inference says that nothing came back.
	Continue(ctx context.Context, prompt string, sample int, done func(text string) bool) (string, error)
}

// Runner judges programs.
type Runner interface {
	// Parses reports whether program is one of the language.
	Parses(ctx context.Context, language, program string) (bool, error)
	// Passes runs the program of a problem, completed by completion, with its tests. It reports whether all tests ran and
	// passed; if not, why.
	Passes(ctx context.Context, p Problem, completion string) (passed bool, why string, err error)
}

// ProblemScore counts what was executed of one problem.
type ProblemScore struct {
	ID        string
	Samples   int    // drawn
	Generated int    // text came back, and the completed program parses
	Passed    int    // its tests ran and passed
	Failure   string // of the first sample that did not pass
}

// CodeReport is what came of all problems. Nothing but executed samples raises a counter.
type CodeReport struct {
	Problems       []ProblemScore
	InferenceError string // the first sample that was not generated; empty if all were
}

// Totals returns the sums over problems.
func (r CodeReport) Totals() (samples, generated, passed int) {
	for _, p := range r.Problems {
		samples, generated, passed = samples+p.Samples, generated+p.Generated, passed+p.Passed
	}
	return samples, generated, passed
}

// Mode returns "inference" if any sample was generated, else "inference_failed".
func (r CodeReport) Mode() string {
	if _, generated, _ := r.Totals(); generated > 0 {
		return "inference"
	}
	return "inference_failed"
}

// Err returns the failure of an evaluation that measured no success: kind Inference if no sample was generated, Invalid
// if some were and none passed.
func (r CodeReport) Err() error {
	samples, generated, passed := r.Totals()
	switch {
	case samples == 0:
		return fault.New(fault.Invalid, "no sample was drawn").WithID("E-EVAL-020")
	case generated == 0:
		return fault.New(fault.Inference, "none of %d samples is a program: %s", samples, r.InferenceError).WithID("E-EVAL-021")
	case passed == 0:
		return fault.New(fault.Invalid, "none of %d generated programs passes its tests", generated).WithID("E-EVAL-022")
	}
	return nil
}

// PassAtK returns the mean over problems of PassAtK(n, c, k), and each problem's.
func (r CodeReport) PassAtK(k int) (mean float64, each []float64, err error) {
	for _, p := range r.Problems {
		x, err := PassAtK(p.Samples, p.Passed, k)
		if err != nil {
			return 0, nil, err
		}
		each = append(each, x)
		mean += x
	}
	return mean / float64(len(r.Problems)), each, nil
}

// RunCode draws n samples of each problem and runs them. progress is called for each sample.
func RunCode(ctx context.Context, problems []Problem, n int, w Writer, run Runner, progress func()) (CodeReport, error) {
	var r CodeReport
	for _, p := range problems {
		score := ProblemScore{ID: p.ID}
		for i := range n {
			why, err := r.sample(ctx, p, i, w, run, &score)
			if err != nil {
				return r, fmt.Errorf("problem %s: %w", p.ID, err)
			}
			if why != "" && score.Failure == "" {
				score.Failure = why
			}
			progress()
		}
		r.Problems = append(r.Problems, score)
	}
	return r, nil
}

// sample draws and runs one program; why says what kept it from passing.
func (r *CodeReport) sample(ctx context.Context, p Problem, i int, w Writer, run Runner, score *ProblemScore) (why string, err error) {
	score.Samples++
	notGenerated := func(why string) (string, error) {
		if r.InferenceError == "" {
			r.InferenceError = fmt.Sprintf("problem %s: %s", p.ID, why)
		}
		return why, nil
	}
	text, err := w.Continue(ctx, p.Prompt, i, func(text string) bool { return p.end(text) >= 0 })
	if fault.KindOf(err) == fault.Inference {
		return notGenerated(err.Error())
	}
	if err != nil {
		return "", err
	}
	if end := p.end(text); end >= 0 {
		text = text[:end]
	}
	if strings.TrimSpace(text) == "" {
		return notGenerated("no text came back")
	}
	parses, err := run.Parses(ctx, p.Language, p.Program+text)
	if err != nil {
		return "", err
	}
	if !parses {
		return notGenerated("the completed program does not parse")
	}
	score.Generated++
	passed, why, err := run.Passes(ctx, p, text)
	if err != nil {
		return "", err
	}
	if passed {
		score.Passed++
	}
	return why, nil
}

// mbppEnds begin something that is no longer the function asked for.
var mbppEnds = []string{"\nassert", "\nprint", "\n\"\"\"", "\n'''", "\nif __name__", "\n```", "\n[DONE]"}

// end returns where the completion ends within text, or −1 if it may go on: for a Python function body before the first
// line that is not indented, for a Go one after the first line that is a closing brace alone, for mbpp before the first
// statement that a solution does not have.
func (p Problem) end(text string) int {
	switch {
	case p.Style == "mbpp":
		first := -1
		for _, s := range mbppEnds {
			if i := strings.Index(text, s); i >= 0 && (first < 0 || i < first) {
				first = i
			}
		}
		return first
	case p.Language == "go":
		if i := strings.Index(text, "\n}\n"); i >= 0 {
			return i + 3
		}
		return -1
	}
	for i := 0; i+1 < len(text); i++ {
		if c := text[i+1]; text[i] == '\n' && c != '\n' && c != '\r' && c != ' ' && c != '\t' {
			return i + 1
		}
	}
	return -1
}

// PassAtK returns the unbiased estimate of the probability that one of k samples passes, when c of n did:
//
//	1 − C(n−c, k)/C(n, k) = 1 − Π_{i=n−c+1…n} (1 − k/i)
//
// (Chen et al. 2021, arXiv:2107.03374, section 2.1). k above n is an error: it cannot be estimated.
func PassAtK(n, c, k int) (float64, error) {
	switch {
	case k < 1 || k > n:
		return 0, fault.New(fault.Usage, "pass@%d of %d samples: k is from 1 to the number of samples", k, n).WithID("E-EVAL-023")
	case c < 0 || c > n:
		return 0, errors.New("eval: more passed than were drawn")
	case n-c < k:
		return 1, nil
	}
	miss := 1.0
	for i := n - c + 1; i <= n; i++ {
		miss *= 1 - float64(k)/float64(i)
	}
	return 1 - miss, nil
}

// Wilson returns the 95 % score interval of a mean of n independent values in [0,1] (Wilson 1927). For yes and no it is
// the usual one; for values between, whose variance is smaller, it is wider than need be.
func Wilson(mean float64, n int) (low, high float64) {
	const z = 1.959963984540054
	m := float64(n)
	centre := (mean + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(mean*(1-mean)/m+z*z/(4*m*m))
	return max(0, centre-half), min(1, centre+half)
}
