package corpus

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// parseRecord reads one line of JSON Lines. Its faults name the column, a byte counted from 1. A text with NUL is
// refused, raw or escaped, as those of tables and Parquet are.
func parseRecord(line []byte, opt ReadOptions) (Document, *fault.Error) {
	if i := bytes.IndexByte(line, 0); i >= 0 {
		return Document{}, fault.New(fault.Format, "column %d: NUL", i+1).WithID("E-JSONL-004")
	}
	d, bad := parseFields(line, opt)
	if bad == nil && bytes.Contains(line, []byte(`\u0000`)) {
		bad = d.checkNUL()
	}
	return d, bad
}

// checkNUL refuses a document that holds NUL.
func (d *Document) checkNUL() *fault.Error {
	refuse := func(where string) *fault.Error {
		return fault.New(fault.Format, `NUL (\u0000) in %s`, where).WithHint("take it out of the text: it is no character of any language").WithID("E-JSONL-004")
	}
	if i := strings.IndexByte(d.Text, 0); i >= 0 {
		return refuse(fmt.Sprintf("the text, at byte %d", i+1))
	}
	for i, m := range slices.Concat(d.Messages, d.Teacher) {
		if strings.IndexByte(m.Role, 0) >= 0 || strings.IndexByte(m.Content, 0) >= 0 {
			return refuse(fmt.Sprintf("message %d", i+1))
		}
		if v, err := strictjson.Parse(m.JSON, strictjson.Options{MaxValues: 1 << 20}); m.JSON != "" && (err != nil || holdsNUL(v)) {
			return refuse(fmt.Sprintf("message %d", i+1))
		}
	}
	return nil
}

// holdsNUL reports whether a string of v, or a key, holds NUL.
func holdsNUL(v strictjson.Value) bool {
	switch v.Kind() {
	case strictjson.String:
		s, err := v.Str()
		return err == nil && strings.IndexByte(s, 0) >= 0
	case strictjson.Array:
		for item := range v.Items() {
			if holdsNUL(item) {
				return true
			}
		}
	case strictjson.Object:
		for key, item := range v.Members() {
			if strings.IndexByte(key, 0) >= 0 || holdsNUL(item) {
				return true
			}
		}
	}
	return false
}

// parseFields makes a document of the fields of a record.
func parseFields(line []byte, opt ReadOptions) (Document, *fault.Error) {
	v, err := strictjson.Parse(string(line), strictjson.Options{MaxValues: 1 << 20})
	if err != nil {
		return Document{}, recordFault(err)
	}
	if v.Kind() != strictjson.Object {
		return Document{}, fault.New(fault.Format, "the record is %s, not an object", v.Kind()).WithID("E-JSONL-006")
	}
	d, bad := contentOf(v, opt)
	if bad == nil {
		d.writer, d.edited = writerOf(v)
	}
	if bad == nil && opt.Sources {
		d.Source, bad = sourceOf(v)
	}
	return d, bad
}

// sourceField names where a document comes from, in records and tables.
const sourceField = "source"

// sourceOf returns the source of a record, empty if it has none.
func sourceOf(v strictjson.Value) (string, *fault.Error) {
	field, ok := v.Get(sourceField)
	if !ok || field.Kind() == strictjson.Null {
		return "", nil
	}
	return stringField(sourceField, field)
}

// contentOf reads the text or the conversation of a record.
func contentOf(v strictjson.Value, opt ReadOptions) (Document, *fault.Error) {
	names, texts := opt.fields()
	own, words := v.Get(teacherPrompt)
	words = words && own.Kind() != strictjson.Null && opt.anyForm()
	for i, name := range names {
		field, ok := v.Get(name)
		if !ok {
			if other := otherCase(v, name); other != "" {
				return Document{}, fault.New(fault.Format, "field %q is not %q", other, name).WithID("E-JSONL-008")
			}
			continue
		}
		if words && opt.TeacherPrompts {
			return Document{}, fault.New(fault.Format, "field %q goes with \"prompt\" or \"instruction\", and the record has %q",
				teacherPrompt, name).WithID("E-JSONL-014")
		}
		if i >= texts {
			return parseMessages(name, field)
		}
		s, bad := stringField(name, field)
		return Document{Text: s, form: formText}, bad
	}
	if opt.anyForm() {
		for _, p := range pairs {
			_, asks := v.Get(p.ask)
			answer, answers := v.Get(p.answer)
			if asks && words {
				return parsePrivileged(p, v, opt)
			}
			if asks && answers && !(opt.PromptsAlone && answer.Kind() == strictjson.Null) {
				return parsePair(p, v, answer)
			}
		}
		for _, p := range pairs {
			if _, asks := v.Get(p.ask); asks {
				return parsePromptAlone(p, v, opt)
			}
		}
	}
	return Document{}, fault.New(fault.Format, "no field %s; the record has %s", opt.sought(), quotedNames(keys(v))).
		WithHint("name the field with --text-field or --messages-field").WithID("E-JSONL-007")
}

// parsePromptAlone reads a record of a question without an answer, where a model writes it.
func parsePromptAlone(p pair, v strictjson.Value, opt ReadOptions) (Document, *fault.Error) {
	if opt.PromptsAlone {
		return parseQuestion(p, v)
	}
	return Document{}, fault.New(fault.Format, "field %q without %q; the record has %s", p.ask, p.answer,
		quotedNames(keys(v))).
		WithHint("prompts alone are enough where the student writes every row (--on-policy 1); --stage generate lets a " +
			"teacher answer them").WithID("E-JSONL-015")
}

// keys are the names of an object's fields.
func keys(v strictjson.Value) iter.Seq[string] {
	return func(yield func(string) bool) {
		for key := range v.Members() {
			if !yield(key) {
				return
			}
		}
	}
}

func stringField(name string, field strictjson.Value) (string, *fault.Error) {
	s, err := field.Str()
	if err != nil {
		return "", fault.New(fault.Format, "field %q is %s, not a string", name, field.Kind()).WithID("E-JSONL-009")
	}
	return s, nil
}

// parsePair reads a record of a question and its answer. Either may be a list of messages.
func parsePair(p pair, v, answer strictjson.Value) (Document, *fault.Error) {
	ask, _ := v.Get(p.ask)
	if ask.Kind() == strictjson.Array || answer.Kind() == strictjson.Array {
		d, bad := parseMessages(p.ask, ask)
		if bad != nil {
			return d, bad
		}
		more, bad := parseMessages(p.answer, answer)
		d.prompt = len(d.Messages)
		d.Messages, d.form = append(d.Messages, more.Messages...), p.form
		return d, bad
	}
	var texts [4]string
	for i, name := range p.names() {
		field, ok := v.Get(name)
		if !ok || p.optional(i) && field.Kind() == strictjson.Null {
			continue
		}
		var bad *fault.Error
		if texts[i], bad = stringField(name, field); bad != nil {
			return Document{}, bad
		}
	}
	return p.document(texts), nil
}

// recordFault turns strictjson's error into a fault.
func recordFault(err error) *fault.Error {
	var e *strictjson.Error
	if !errors.As(err, &e) {
		return fault.New(fault.Format, "%v", err)
	}
	return fault.New(fault.Format, "column %d: %s", e.Offset+1, e.Msg).WithID(e.Code.ID())
}

// otherCase returns a key of v that differs from name in nothing but case, "" if there is none.
func otherCase(v strictjson.Value, name string) string {
	for key := range v.Members() {
		if strings.EqualFold(key, name) {
			return key
		}
	}
	return ""
}

// parseMessages reads [{"role": …, "content": …}, …].
func parseMessages(name string, v strictjson.Value) (Document, *fault.Error) {
	if v.Kind() != strictjson.Array {
		return Document{}, fault.New(fault.Format, "field %q is %s, not an array", name, v.Kind()).WithID("E-JSONL-010")
	}
	d := Document{Messages: make([]Message, 0, v.Len()), form: formMessages}
	for item := range v.Items() {
		n := len(d.Messages) + 1
		parse := parseMessage
		if _, from := item.Get("from"); from {
			if _, role := item.Get("role"); !role {
				parse, d.form = parseShareGPT, formShareGPT
			}
		}
		m, err := parse(item)
		if err != nil {
			bad := recordFault(err)
			bad.Msg = strings.Replace(bad.Msg, ": ", ": message "+strconv.Itoa(n)+": ", 1)
			return Document{}, bad
		}
		d.Messages = append(d.Messages, m)
	}
	if len(d.Messages) == 0 {
		return Document{}, fault.New(fault.Format, "field %q has no message", name).WithID("E-JSONL-011")
	}
	return d, nil
}

// parseMessage reads one message. A content of parts, and one that is null or absent beside tool_calls, is the chat
// template's to read, and so are keys of other names.
func parseMessage(v strictjson.Value) (m Message, err error) {
	f := strictjson.NewFields(v)
	m.Role = f.Str("role")
	switch kind := f.ValueOr("content").Kind(); {
	case kind == strictjson.Array, f.Has("tool_calls") && (kind == strictjson.Null || kind == strictjson.Absent):
	default:
		m.Content = f.Str("content")
		if f.Err() == nil && v.Len() == 2 {
			return m, nil
		}
	}
	if f.Err() != nil {
		return m, f.Err()
	}
	m.JSON, err = rawJSON(v)
	return m, err
}

// parseShareGPT reads {"from": …, "value": …}; other keys, such as a weight, are passed over.
func parseShareGPT(v strictjson.Value) (m Message, err error) {
	f := strictjson.NewFields(v)
	from := f.Str("from")
	m.Content = f.Str("value")
	if f.Err() != nil {
		return m, f.Err()
	}
	if m.Role = shareGPTRole(from); m.Role == "" {
		return m, v.Errorf("from %q is none of human, gpt, system", from)
	}
	return m, nil
}

// rawJSON is the text of v, which has been parsed.
func rawJSON(v strictjson.Value) (string, error) {
	var raw json.RawMessage
	err := json.NewDecoder(strings.NewReader(v.Source()[v.Offset():])).Decode(&raw)
	return string(raw), err
}
