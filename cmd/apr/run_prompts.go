package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"apr/corpus"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
	"apr/tokenizer"
)

// prompt is a text to continue.
type prompt struct {
	text string
	line int // of --batch-jsonl; 0: there is no file
	ids  []int32
}

// in adds the place of a prompt to an error about it.
func (o *runOptions) in(p prompt, err error) error {
	if f := (*fault.Error)(nil); p.line > 0 && errors.As(err, &f) && f.Path+f.Place == "" {
		f.Path, f.Place = o.batch, fmt.Sprintf("line %d", p.line)
	}
	return err
}

// prompts returns what to continue: one prompt, or those of a file.
func (o *runOptions) prompts() ([]prompt, error) {
	if o.prompt != "" && o.argPrompt != "" {
		return nil, fault.New(fault.Usage, "a prompt is given twice: as argument and by --prompt")
	}
	p := o.prompt + o.argPrompt
	if o.batch == "" {
		if p == "" {
			return nil, fault.New(fault.Usage, "no prompt").WithHint("apr run %s 'some text'", o.source)
		}
		return []prompt{{text: p}}, nil
	}
	if p != "" {
		return nil, fault.New(fault.Usage, "--batch-jsonl and a prompt exclude each other")
	}
	return readPrompts(o.batch)
}

// maxPromptLine bounds a line of --batch-jsonl, in bytes.
const maxPromptLine = 16 << 20

// readPrompts reads {"prompt": …} lines; blank ones are passed over.
func readPrompts(path string) ([]prompt, error) {
	f, err := os.Open(path) // a pipe may be meant, which readfile refuses
	if err != nil {
		return nil, readfile.Fault(path, err)
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.IsDir() {
		return nil, fault.In(fault.NotFound, path, "not a file: it is a directory").WithHint(`a file of {"prompt": "text"} lines is expected`)
	}
	var prompts []prompt
	lines, line := bufio.NewScanner(f), 1
	lines.Buffer(nil, maxPromptLine)
	for ; lines.Scan(); line++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		text, err := parsePrompt(lines.Text())
		if err != nil {
			return nil, fault.In(fault.Invalid, path, `is not {"prompt": "text"}`).At("line %d", line).Because(err)
		}
		prompts = append(prompts, prompt{text: text, line: line})
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fault.In(fault.Invalid, path, "is longer than %d MiB", maxPromptLine>>20).At("line %d", line)
	case err != nil:
		return nil, fault.In(fault.IO, path, "cannot be read").Because(err)
	case len(prompts) == 0:
		return nil, fault.In(fault.Invalid, path, "holds no prompt")
	}
	return prompts, nil
}

// parsePrompt reads one line.
func parsePrompt(line string) (string, error) {
	v, err := strictjson.Parse(line, strictjson.Options{})
	if err != nil {
		return "", err
	}
	f := strictjson.NewFields(v)
	f.Only("prompt")
	text := f.Str("prompt")
	if f.Err() == nil && text == "" {
		return "", errors.New("the prompt is empty")
	}
	return text, f.Err()
}

// encode turns prompts into ids, those of a conversation in its template, and returns the length of the longest. Each must
// leave room among the positions of the model.
func (o *runOptions) encode(tok *tokenizer.Tokenizer, prompts []prompt, positions int) (longest int, err error) {
	ids := func(p string) ([]int32, error) { return tok.Append(tok.Begin(nil), p, tokenizer.PlainText), nil }
	if o.chat || o.system != "" {
		if ids, err = o.conversation(tok); err != nil {
			return 0, err
		}
	}
	for i := range prompts {
		p := &prompts[i]
		if p.ids, err = ids(p.text); err != nil {
			return 0, err
		}
		if n := len(p.ids); o.gen.MaxTokens > positions-n {
			err := fault.New(fault.Inference, "a prompt of %d tokens and %d more exceed the model's %d positions", n, o.gen.MaxTokens, positions)
			if n < positions {
				err = err.WithHint("--max-tokens %d fits", positions-n)
			}
			return 0, o.in(*p, err)
		}
		longest = max(longest, len(p.ids))
	}
	return longest, nil
}

// conversation returns how a user's turn becomes ids. The end of a turn ends the answer.
func (o *runOptions) conversation(tok *tokenizer.Tokenizer) (func(prompt string) ([]int32, error), error) {
	chat, _, err := corpus.Chat(tok, o.template, time.Now())
	if err != nil {
		return nil, err
	}
	if end := chat.End(); end != tokenizer.None && !slices.Contains(o.gen.Stop, end) {
		o.gen.Stop = append(o.gen.Stop, end)
	}
	var system []tokenizer.Message
	if o.system != "" {
		system = append(system, tokenizer.Message{Role: "system", Content: o.system})
	}
	return func(prompt string) (ids []int32, _ error) {
		segments, err := chat.Render(append(system[:len(system):len(system)], tokenizer.Message{Role: "user", Content: prompt}), true)
		for _, s := range segments {
			ids = append(ids, s.IDs...)
		}
		return ids, err
	}, nil
}
