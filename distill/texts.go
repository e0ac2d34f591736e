package distill

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"apr/corpus"
	"apr/generate"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
)

// TextJob says what text a teacher writes: Samples answers to each prompt, in the order of the prompts, as lines of
// JSON {prompt, completion, tokens, source, kind, writer, sum}.
//
// What is finished is kept in Output.part, each answer under a hash of all that decides it, so that a job that was
// killed goes on and ends in the same file. Output appears whole, at the end.
type TextJob struct {
	Output    string
	Force     bool   // Output is replaced
	Identity  string // of the model, its device kind and its template
	Writer    string // of the model: what its records name, see adapter.Writer
	Capacity  int    // tokens of a prompt and its answer at most
	Sampling  generate.Options
	Samples   int // answers to each prompt
	MinTokens int // shorter answers are left out
	Target    int // tokens after which no answer is begun; 0: all prompts are answered

	Decode func(ids []int32) (string, error)
}

// TextPrompt is one line of the prompts.
type TextPrompt struct {
	Prompt, Source, Kind string
	IDs                  []int32 // of the prompt, in its template
}

// Texts is what a TextJob wrote.
type Texts struct {
	Output       string   `json:"output"`
	Prompts      int      `json:"prompts"`
	Written      int      `json:"written"`
	Short        int      `json:"too_short"`            // answers left out by MinTokens
	Unreadable   int      `json:"unreadable"`           // answers left out that no reader takes, such as those with NUL
	Resumed      int      `json:"resumed"`              // answers that an earlier call had made
	Tokens       int64    `json:"tokens"`               // of the answers that were written
	Made         int64    `json:"tokens_made"`          // by this call
	PromptTokens int64    `json:"prompt_tokens"`        // of the answers that were written
	Passes       int64    `json:"passes"`               // of this call, over a token of each text that is written or read
	Ran          string   `json:"passes_ran,omitempty"` // how the latest ran, where a device knows several ways
	Writer       string   `json:"writer"`               // that each record names
	TokensPerSec *float64 `json:"tokens_per_second"`    // null: this call made none
	Seconds      float64  `json:"duration_seconds"`
	SHA256       string   `json:"sha256"`
}

// maxPrompt bounds a line of prompts, in bytes.
const maxPrompt = 16 << 20

// ReadTextPrompts reads lines {prompt, source, kind}, source and kind being optional. Prompts of more than maxChars
// characters are left out and counted; 0: none is.
func ReadTextPrompts(paths []string, maxChars int) (prompts []TextPrompt, long int, err error) {
	for _, path := range paths {
		raw, err := readfile.String(path, 1<<33)
		if err != nil {
			return nil, 0, err
		}
		lines := bufio.NewScanner(strings.NewReader(strings.TrimPrefix(raw, "\ufeff")))
		lines.Buffer(nil, maxPrompt)
		for n := 1; lines.Scan(); n++ {
			if strings.TrimSpace(lines.Text()) == "" {
				continue
			}
			p, err := parseTextPrompt(lines.Text())
			if err != nil {
				return nil, 0, fault.In(fault.Invalid, path, `is not {"prompt": "text", "source": "text", "kind": "text"}`).
					At("line %d", n).Because(err).WithHint("%s", promptHint(lines.Text()))
			}
			if maxChars > 0 && utf8.RuneCountInString(p.Prompt) > maxChars {
				long++
				continue
			}
			prompts = append(prompts, p)
		}
		if errors.Is(lines.Err(), bufio.ErrTooLong) {
			return nil, 0, fault.In(fault.Invalid, path, "has a line longer than %d MiB", maxPrompt>>20)
		}
	}
	if len(prompts) == 0 {
		return nil, long, fault.In(fault.Invalid, strings.Join(paths, ", "), "no prompt to answer: %d are longer than --max-prompt-chars", long)
	}
	return prompts, long, nil
}

// promptHint is the command that makes prompts of records of another form, which line is one of; "": none is known.
func promptHint(line string) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(line), &fields) != nil {
		return ""
	}
	switch {
	case fields["messages"] != nil:
		return "prompts of conversations: " +
			"jq -c '{prompt: [.messages[] | select(.role == \"user\")][0].content}' FILE > prompts.jsonl"
	case fields["prompt"] != nil:
		return "prompts alone: jq -c '{prompt}' FILE > prompts.jsonl"
	case fields["instruction"] != nil:
		return "prompts of instructions: jq -c '{prompt: .instruction}' FILE > prompts.jsonl"
	}
	return ""
}

// parseTextPrompt reads one line.
func parseTextPrompt(line string) (p TextPrompt, err error) {
	v, err := strictjson.Parse(line, strictjson.Options{})
	if err != nil {
		return p, err
	}
	f := strictjson.NewFields(v)
	f.Only("prompt", "source", "kind")
	p = TextPrompt{Prompt: f.Str("prompt"), Source: f.StrOr("source", ""), Kind: f.StrOr("kind", "")}
	if f.Err() == nil && p.Prompt == "" {
		return p, errors.New("the prompt is empty")
	}
	if strings.ContainsRune(p.Prompt+p.Source+p.Kind, 0) {
		return p, errors.New(`it holds NUL (\u0000), which is no character of any language`)
	}
	return p, f.Err()
}

// textRecord is a line of the output.
type textRecord struct {
	Prompt     string `json:"prompt"`
	Completion string `json:"completion"`
	Tokens     int    `json:"tokens"`
	Source     string `json:"source,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Writer     string `json:"writer"`
	Sum        string `json:"sum"` // corpus.RecordSum: a record that was edited has another one
}

// line returns the record as a line of JSON.
func (r *textRecord) line() []byte {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		panic(err) // strings and numbers
	}
	return line.Bytes()
}

// partLine is a line of the file of what is finished.
type partLine struct {
	Key    string      `json:"key"`
	Tokens int         `json:"tokens"`
	Record *textRecord `json:"record,omitempty"` // nil: the answer is too short, or Unread
	Unread string      `json:"unread,omitempty"` // why no reader would take the record
	Sum    string      `json:"sum"`              // of the line without it: a torn line is none
}

// reply is one sample of a prompt.
type reply struct {
	prompt *TextPrompt
	sample int
	key    string
	at     span // in the file of what is finished; empty: it is not
}

type span struct {
	offset, bytes int64
	tokens        int
	short, unread bool
}

// texts is a TextJob at work.
type texts struct {
	j       TextJob
	answers []reply
	part    *os.File
	end     int64 // of part
	out     *Texts
	upTo    int   // answers from the first on that are finished
	tokens  int64 // of these
}

// CheckOutput refuses an output that is there, unless it may be replaced.
func (j TextJob) CheckOutput() error {
	if _, err := os.Lstat(j.Output); err == nil && !j.Force {
		return fault.In(fault.Invalid, j.Output, "already exists").WithHint("give --force to replace it")
	}
	return nil
}

// Write answers the prompts. progress gets the answers and the tokens so far, of all answers.
func (j TextJob) Write(ctx context.Context, e *generate.Engine, prompts []TextPrompt, progress func(answers, tokens int64)) (_ *Texts, err error) {
	if err := j.CheckOutput(); err != nil {
		return nil, err
	}
	start, before := time.Now(), e.Stats().Passes
	t := &texts{j: j, out: &Texts{Output: j.Output, Prompts: len(prompts), Writer: j.Writer}}
	t.list(prompts)
	if err := t.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.part.Close()) }()
	t.advance(progress)
	if !t.enough() {
		if err := t.make(ctx, e, progress); err != nil {
			return nil, err
		}
	}
	if s := time.Since(start).Seconds(); t.out.Made > 0 && s > 0 {
		speed := float64(t.out.Made) / s
		t.out.TokensPerSec = &speed
	}
	if t.out.Passes = e.Stats().Passes - before; t.out.Passes > 0 {
		t.out.Ran = e.Ran()
	}
	if err := t.finish(); err != nil {
		return nil, err
	}
	t.out.Seconds = time.Since(start).Seconds()
	return t.out, nil
}

// list names the answers in order. A prompt that comes again gets other answers.
func (t *texts) list(prompts []TextPrompt) {
	o := t.j.Sampling
	settings := fmt.Sprintf("%s writer=%s max_tokens=%d temperature=%g top_p=%g seed=%d", t.j.Identity, t.j.Writer,
		o.MaxTokens, o.Temperature, o.TopP, o.Seed)
	seen := map[string]int{}
	for i := range prompts {
		p := &prompts[i]
		for range t.j.Samples {
			sample := seen[p.Prompt]
			seen[p.Prompt]++
			h := sha256.New()
			for _, part := range []string{settings, p.Prompt, p.Source, p.Kind, fmt.Sprint(sample)} {
				_ = binary.Write(h, binary.LittleEndian, int64(len(part)))
				_, _ = io.WriteString(h, part)
			}
			t.answers = append(t.answers, reply{prompt: p, sample: sample, key: hex.EncodeToString(h.Sum(nil)[:16])})
		}
	}
}

// open finds what is finished.
func (t *texts) open() error {
	path := t.j.Output + ".part"
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return fault.In(fault.IO, path, "cannot be opened").Because(err)
	}
	t.part = f
	found := map[string]span{}
	r := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := r.ReadBytes('\n')
		if n := int64(len(line)); n > 0 {
			if p, ok := parsePart(line); ok {
				found[p.Key] = span{t.end, n, p.Tokens, p.Record == nil && p.Unread == "", p.Unread != ""}
			}
			t.end += n
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fault.In(fault.IO, path, "cannot be read").Because(err)
		}
	}
	if t.end > 0 { // the last line may be torn
		if _, err := f.WriteString("\n"); err != nil {
			return fault.In(fault.IO, path, "cannot be written").Because(err)
		}
		t.end++
	}
	for i := range t.answers {
		a := &t.answers[i]
		if at, ok := found[a.key]; ok && (at.tokens < t.j.MinTokens) == at.short {
			a.at = at
			t.out.Resumed++
		}
	}
	return nil
}

// parsePart reads a line of what is finished, if it is whole.
func parsePart(line []byte) (p partLine, ok bool) {
	if json.Unmarshal(line, &p) != nil {
		return p, false
	}
	sum := p.Sum
	p.Sum = ""
	return p, p.Key != "" && sum == sumOf(p)
}

// sumOf is the checksum of a line without its Sum.
func sumOf(p partLine) string {
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// advance counts what is finished from the first answer on.
func (t *texts) advance(progress func(answers, tokens int64)) {
	for t.upTo < len(t.answers) && !t.enough() && t.answers[t.upTo].at.bytes > 0 {
		if at := t.answers[t.upTo].at; !at.short && !at.unread {
			t.tokens += int64(at.tokens)
		}
		t.upTo++
	}
	if progress != nil {
		progress(int64(t.upTo), t.tokens)
	}
}

// enough reports whether no further answer is wanted.
func (t *texts) enough() bool { return t.j.Target > 0 && t.tokens >= int64(t.j.Target) }

// make writes the answers that are missing, in order.
func (t *texts) make(ctx context.Context, e *generate.Engine, progress func(answers, tokens int64)) error {
	var missing []*reply
	for i := t.upTo; i < len(t.answers); i++ {
		if a := &t.answers[i]; a.at.bytes == 0 {
			missing = append(missing, a)
		}
	}
	request := func(i int) generate.Request {
		a, o := missing[i], t.j.Sampling
		o.MaxTokens = min(o.MaxTokens, t.j.Capacity-len(a.prompt.IDs))
		return generate.Request{Prompt: a.prompt.IDs, Options: o, Sample: a.sample, LogProbs: -1}
	}
	return e.InOrder(ctx, len(missing), request, func(i int, _ *generate.Sequence, r generate.Result) error {
		if err := t.keep(missing[i], r); err != nil {
			return err
		}
		if t.advance(progress); t.enough() {
			return generate.ErrEnough
		}
		return nil
	})
}

// keep appends an answer to the file of what is finished.
func (t *texts) keep(a *reply, r generate.Result) error {
	p := partLine{Key: a.key, Tokens: len(r.IDs)}
	if p.Tokens >= t.j.MinTokens {
		text, err := t.j.Decode(r.IDs)
		if err != nil {
			return err
		}
		sum := corpus.RecordSum(t.j.Writer, a.prompt.Prompt, text)
		p.Record = &textRecord{a.prompt.Prompt, text, p.Tokens, a.prompt.Source, a.prompt.Kind, t.j.Writer, sum}
		if err := corpus.CheckRecord(p.Record.line()); err != nil { // what is written is to be read
			p.Record, p.Unread = nil, err.Error()
		}
	}
	p.Sum = sumOf(p)
	line, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers
	}
	line = append(line, '\n')
	if _, err := t.part.Write(line); err != nil {
		return fault.In(fault.IO, t.part.Name(), "cannot be written").Because(err)
	}
	a.at = span{t.end, int64(len(line)), p.Tokens, p.Record == nil && p.Unread == "", p.Unread != ""}
	t.end += int64(len(line))
	t.out.Made += int64(p.Tokens)
	return nil
}

// finish writes the output from what is finished, which is not needed any more then.
func (t *texts) finish() error {
	f, err := atomicfile.Create(t.j.Output, t.j.Force)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	for _, a := range t.answers[:t.upTo] {
		switch {
		case a.at.short:
			t.out.Short++
			continue
		case a.at.unread:
			t.out.Unreadable++
			continue
		}
		raw := make([]byte, a.at.bytes)
		if _, err := t.part.ReadAt(raw, a.at.offset); err != nil {
			return fault.In(fault.IO, t.part.Name(), "cannot be read").Because(err)
		}
		p, ok := parsePart(raw)
		if !ok || p.Key != a.key {
			return fault.In(fault.Invalid, t.part.Name(), "was changed meanwhile").WithHint("one process at a time writes an output")
		}
		line := p.Record.line()
		h.Write(line)
		if _, err := f.Write(line); err != nil {
			return err
		}
		t.out.Written++
		t.out.Tokens += int64(a.at.tokens)
		t.out.PromptTokens += int64(len(a.prompt.IDs))
	}
	if err := f.Commit(); err != nil {
		return err
	}
	t.out.SHA256 = hex.EncodeToString(h.Sum(nil))
	if err := os.Remove(t.part.Name()); err != nil {
		return fault.In(fault.IO, t.part.Name(), "cannot be removed").Because(err)
	}
	return nil
}
