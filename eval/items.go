package eval

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
)

// Choice is a question with continuations to choose from; one is right.
type Choice struct {
	Line    int
	Prompt  string
	Choices []string
	Answer  int // index of the right one
}

// Match is a prompt whose continuation, up to the end of the line, must be one of the answers, blanks around not counted.
type Match struct {
	Line    int
	Prompt  string
	Answers []string
	Judge   func(line string) bool // instead of Answers; nil: an answer is one of them
}

// Problem asks for a program.
type Problem struct {
	ID       string
	Prompt   string // what the model continues
	Program  string // stands before the completion in the program: the prompt, or nothing where it is a mere description
	Test     string // runs after the program
	Entry    string // the function that is asked for
	Language string // python or go
	Style    string // code, humaneval or mbpp: where a completion ends
}

// maxItems bounds a file of items, in bytes.
const maxItems = 1 << 30

// readItems calls read for each line of a JSON Lines file and returns SHA-256 of the file. Errors of read gain file and
// line; a file without items is a fault of kind Invalid: nothing was asked.
func readItems(path string, read func(line int, f *strictjson.Fields) error) (sum string, err error) {
	text, err := readfile.String(path, maxItems)
	if err != nil {
		return "", err
	}
	items, line := 0, 0
	for s := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) { // a byte order mark
		line++
		if strings.TrimSpace(s) == "" {
			continue
		}
		items++
		v, err := strictjson.Parse(s, strictjson.Options{})
		if err == nil {
			f := strictjson.NewFields(v)
			if err = read(line, f); f.Err() != nil {
				err = f.Err()
			}
		}
		if err != nil {
			return "", inLine(path, line, err)
		}
	}
	if items == 0 {
		return "", fault.In(fault.Invalid, path, "holds no item").WithID("E-EVAL-010")
	}
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:]), nil
}

func inLine(path string, line int, err error) error {
	var j *strictjson.Error
	id := "E-EVAL-011"
	if errors.As(err, &j) {
		id = j.Code.ID()
	}
	return fault.In(fault.Format, path, "%v", err).At("line %d", line).WithID(id)
}

// ReadChoices reads {"prompt": …, "choices": [≥ 2 different texts], "answer": index from 0} lines.
func ReadChoices(path string) (items []Choice, sum string, err error) {
	sum, err = readItems(path, func(line int, f *strictjson.Fields) error {
		f.Only("id", "prompt", "choices", "answer")
		c := Choice{Line: line, Prompt: f.Str("prompt"), Choices: strictjson.Field(f, "choices", strictjson.Value.Strings)}
		answer := f.Uint("answer")
		if f.Err() != nil {
			return nil
		}
		if len(c.Choices) < 2 || answer >= uint64(len(c.Choices)) {
			return fmt.Errorf("answer %d of %d choices", answer, len(c.Choices))
		}
		seen := map[string]bool{}
		for _, s := range c.Choices {
			if s == "" || seen[s] {
				return fmt.Errorf("choice %q is empty or given twice", s)
			}
			seen[s] = true
		}
		c.Answer = int(answer)
		items = append(items, c)
		return nil
	})
	return items, sum, err
}

// ReadMatches reads {"prompt": …, "answer": text} or {"prompt": …, "answers": [texts]} lines.
func ReadMatches(path string) (items []Match, sum string, err error) {
	sum, err = readItems(path, func(line int, f *strictjson.Fields) error {
		f.Only("id", "prompt", "answer", "answers")
		m := Match{Line: line, Prompt: f.Str("prompt")}
		if f.Has("answer") {
			m.Answers = append(m.Answers, f.Str("answer"))
		} else {
			m.Answers = strictjson.Field(f, "answers", strictjson.Value.Strings)
		}
		if f.Err() != nil {
			return nil
		}
		for _, a := range m.Answers {
			if t := strings.TrimSpace(a); t == "" || strings.ContainsRune(t, '\n') {
				return fmt.Errorf("answer %q is not one line of text", a)
			}
		}
		if len(m.Answers) == 0 || m.Prompt == "" {
			return errors.New("a prompt and an answer are needed")
		}
		items = append(items, m)
		return nil
	})
	return items, sum, err
}

// ReadProblems reads the problems of a code task. The reference solutions that data sets carry are never read.
//
//	code       {"prompt", "test", "entry_point", "language"}: python (the default) or go
//	humaneval  {"task_id", "prompt", "test", "entry_point"}
//	mbpp       {"task_id", "text" or "prompt", "test_list", "test_setup_code" or "test_imports"}
func ReadProblems(path, style string) (items []Problem, sum string, err error) {
	sum, err = readItems(path, func(line int, f *strictjson.Fields) error {
		p := Problem{ID: fmt.Sprint(line), Language: "python", Style: style}
		if v := f.ValueOr("task_id"); v.Kind() == strictjson.String {
			p.ID, _ = v.Str()
		} else if v.Kind() == strictjson.Number {
			p.ID, _ = v.Literal()
		}
		if style == "mbpp" {
			readMBPP(f, &p)
		} else {
			p.Prompt, p.Test, p.Entry = f.Str("prompt"), f.Str("test"), f.Str("entry_point")
			p.Program = p.Prompt
		}
		if style == "code" {
			f.Only("task_id", "prompt", "test", "entry_point", "language", "canonical_solution")
			p.Language = f.StrOr("language", "python")
		}
		switch {
		case f.Err() != nil:
		case p.Language != "python" && p.Language != "go":
			return fmt.Errorf("language %q is neither python nor go", p.Language)
		case strings.TrimSpace(p.Prompt) == "" || strings.TrimSpace(p.Test) == "":
			return errors.New("prompt or test is empty")
		case style != "mbpp" && !isName(p.Entry):
			return fmt.Errorf("entry point %q is no name", p.Entry)
		}
		items = append(items, p)
		return nil
	})
	return items, sum, err
}

// readMBPP reads a problem of MBPP: the description and the first test are the prompt, in a docstring.
func readMBPP(f *strictjson.Fields, p *Problem) {
	key := "prompt"
	if f.Has("text") {
		key = "text"
	}
	text, tests := f.Str(key), strictjson.Field(f, "test_list", strictjson.Value.Strings)
	if f.Err() != nil || len(tests) == 0 {
		return
	}
	setup := f.StrOr("test_setup_code", "")
	if f.Has("test_imports") {
		setup += "\n" + strings.Join(strictjson.Field(f, "test_imports", strictjson.Value.Strings), "\n")
	}
	p.Prompt = "\"\"\"\n" + text + "\n" + tests[0] + "\n\"\"\"\n"
	p.Test = setup + "\n" + strings.Join(tests, "\n")
}

func isName(s string) bool {
	for i, r := range s {
		if !(r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9') {
			return false
		}
	}
	return s != ""
}
