package corpus

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// parseRecord reads one line of JSON Lines. Its faults name the column, a byte counted from 1.
func parseRecord(line []byte, opt ReadOptions) (Document, *fault.Error) {
	if i := bytes.IndexByte(line, 0); i >= 0 {
		return Document{}, fault.New(fault.Format, "column %d: NUL", i+1).WithID("E-JSONL-004")
	}
	v, err := strictjson.Parse(string(line), strictjson.Options{MaxValues: 1 << 20})
	if err != nil {
		return Document{}, recordFault(err)
	}
	if v.Kind() != strictjson.Object {
		return Document{}, fault.New(fault.Format, "the record is %s, not an object", v.Kind()).WithID("E-JSONL-006")
	}
	names, texts := opt.fields()
	for i, name := range names {
		field, ok := v.Get(name)
		if !ok {
			if other := otherCase(v, name); other != "" {
				return Document{}, fault.New(fault.Format, "field %q is not %q", other, name).WithID("E-JSONL-008")
			}
			continue
		}
		if i >= texts {
			return parseMessages(name, field)
		}
		s, err := field.Str()
		if err != nil {
			return Document{}, fault.New(fault.Format, "field %q is %s, not a string", name, field.Kind()).WithID("E-JSONL-009")
		}
		return Document{Text: s}, nil
	}
	return Document{}, fault.New(fault.Format, "no field %s", quotedList(names)).
		WithHint("name the field with --text-field or --messages-field").WithID("E-JSONL-007")
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

// quotedList returns `"a", "b" or "c"`.
func quotedList(names []string) string {
	var b strings.Builder
	for i, n := range names {
		switch {
		case i > 0 && i == len(names)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(`"` + n + `"`)
	}
	return b.String()
}

// parseMessages reads [{"role": …, "content": …}, …].
func parseMessages(name string, v strictjson.Value) (Document, *fault.Error) {
	if v.Kind() != strictjson.Array {
		return Document{}, fault.New(fault.Format, "field %q is %s, not an array", name, v.Kind()).WithID("E-JSONL-010")
	}
	d := Document{Messages: make([]Message, 0, v.Len())}
	for item := range v.Items() {
		n := len(d.Messages) + 1
		m, err := parseMessage(item)
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

// rawJSON is the text of v, which has been parsed.
func rawJSON(v strictjson.Value) (string, error) {
	var raw json.RawMessage
	err := json.NewDecoder(strings.NewReader(v.Source()[v.Offset():])).Decode(&raw)
	return string(raw), err
}
