package corpus

import (
	"fmt"
	"iter"
	"strings"

	"apr/internal/fault"
)

// A form is one of the ways in which a record holds a text or a conversation. Its text is for people.
type form string

const (
	formText     form = "texts"
	formMessages form = "conversations"
	formShareGPT form = "ShareGPT conversations"
	formPrompt   form = "prompt/completion records"
	formAlpaca   form = "Alpaca records"
)

// A pair is a form of a question and its answer, with the names of its fields.
type pair struct {
	form              form
	ask, more, answer string // more follows the question; "": the form has no such field
}

var pairs = []pair{
	{formPrompt, "prompt", "", "completion"},
	{formAlpaca, "instruction", "input", "output"},
}

// teacherPrompt is the field of words that the teacher sees in the place of the prompt. A record of a prompt with it is
// refused unless ReadOptions.TeacherPrompts asks for it, and so are tables and Parquet; null is as if it were absent.
const teacherPrompt = "teacher_prompt"

// onlyForTeacher is why.
func onlyForTeacher(path, what string) *fault.Error {
	return fault.In(fault.Unavailable, path, "%s %q: a teacher that sees other words than the student is built for "+
		"records of JSON and --on-policy 1", what, teacherPrompt).
		WithHint("take it out, and teacher and student both see the prompt").WithID("E-CORPUS-046")
}

// names are the fields in the order of document's texts: system, ask, more, answer.
func (p pair) names() [4]string { return [4]string{"system", p.ask, p.more, p.answer} }

// optional reports whether field i of names may be absent or null.
func (p pair) optional(i int) bool { return i == 0 || i == 2 }

// document makes a conversation of two turns, or of three where there is a system's text.
func (p pair) document(texts [4]string) Document {
	d := Document{form: p.form}
	if texts[0] != "" {
		d.Messages = append(d.Messages, Message{Role: "system", Content: texts[0]})
	}
	ask := texts[1]
	if texts[2] != "" {
		ask += "\n\n" + texts[2]
	}
	d.Messages = append(d.Messages, Message{Role: "user", Content: ask})
	d.prompt = len(d.Messages)
	d.Messages = append(d.Messages, Message{Role: "assistant", Content: texts[3]})
	return d
}

// shareGPTRole returns the role of who speaks in a ShareGPT record, "" for one that is not known.
func shareGPTRole(from string) string {
	switch from {
	case "human", "user":
		return "user"
	case "gpt", "assistant", "chatgpt", "model":
		return "assistant"
	case "system":
		return "system"
	}
	return ""
}

// sought says which fields are looked for, as in `"text" or "content"`.
func (o ReadOptions) sought() string {
	names, _ := o.fields()
	var all []string
	for _, n := range names {
		all = append(all, fmt.Sprintf("%q", n))
	}
	if o.anyForm() {
		for _, p := range pairs {
			all = append(all, fmt.Sprintf("%q with %q", p.ask, p.answer))
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// maxFieldsNamed and maxFieldName bound what an error says of a record's fields.
const (
	maxFieldsNamed = 8
	maxFieldName   = 40
)

// quotedNames lists the names of fields for an error, as in `"a", "b"`.
func quotedNames(fields iter.Seq[string]) string {
	var names []string
	for name := range fields {
		if len(names) == maxFieldsNamed {
			names = append(names, "…")
			break
		}
		if len(name) > maxFieldName {
			name = strings.ToValidUTF8(name[:maxFieldName], "") + "…"
		}
		names = append(names, fmt.Sprintf("%q", name))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Recognised says how many records of other programs' forms were read as conversations: "5 Alpaca records". It is empty where there
// are none.
func (r *Report) Recognised() string {
	var parts []string
	for _, f := range []form{formShareGPT, formPrompt, formAlpaca} {
		if n := r.Forms[string(f)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, f))
		}
	}
	return strings.Join(parts, ", ")
}
