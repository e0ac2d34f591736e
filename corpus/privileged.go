package corpus

import (
	"slices"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// A teacher may read other words than the student: of a record with "teacher_prompt" it reads these in the place of the
// prompt, and then the same reply (privileged context; with one model as teacher and student, self-distillation).
//
//	student: prompt          | reply
//	teacher: teacher_prompt  | reply

// Words are what a teacher reads in the place of the first At ids of a document.
type Words struct {
	IDs []int32
	At  int
}

// parsePrivileged reads a record of a question, of what the teacher reads in its place, and perhaps of an answer.
func parsePrivileged(p pair, v strictjson.Value, opt ReadOptions) (d Document, bad *fault.Error) {
	if !opt.TeacherPrompts {
		return d, onlyForTeacher("", "field")
	}
	answer, answers := v.Get(p.answer)
	if answers = answers && answer.Kind() != strictjson.Null; answers {
		d, bad = parsePair(p, v, answer)
	} else {
		d, bad = parseQuestion(p, v)
	}
	if bad != nil {
		return d, bad
	}
	if reply := d.Messages[d.prompt:]; len(reply) != 1 || reply[0].Role != "assistant" {
		return d, fault.New(fault.Format, "field %q beside %q must be one reply of the assistant, it has "+
			"%d messages", p.answer, teacherPrompt, len(reply)).WithID("E-JSONL-014")
	}
	words, _ := v.Get(teacherPrompt)
	if words.Kind() == strictjson.Array {
		t, bad := parseMessages(teacherPrompt, words)
		d.Teacher = t.Messages
		return d, bad
	}
	text, bad := stringField(teacherPrompt, words)
	if bad == nil && text == "" {
		bad = fault.New(fault.Format, "field %q is empty", teacherPrompt).
			WithHint("leave the field out where the teacher reads the prompt").WithID("E-JSONL-014")
	}
	if d.Messages[0].Role == "system" && d.Messages[0].JSON == "" {
		d.Teacher = append(d.Teacher, d.Messages[0])
	}
	d.Teacher = append(d.Teacher, Message{Role: "user", Content: text})
	return d, bad
}

// parseQuestion reads a record without an answer: the place of one stands in the document.
func parseQuestion(p pair, v strictjson.Value) (Document, *fault.Error) {
	ask, _ := v.Get(p.ask)
	if ask.Kind() == strictjson.Array {
		d, bad := parseMessages(p.ask, ask)
		d.prompt, d.form, d.bare = len(d.Messages), p.form, true
		d.Messages = append(d.Messages, Message{Role: "assistant"})
		return d, bad
	}
	var texts [4]string
	for i, name := range p.names() {
		field, ok := v.Get(name)
		if !ok || name == p.answer || p.optional(i) && field.Kind() == strictjson.Null {
			continue
		}
		var bad *fault.Error
		if texts[i], bad = stringField(name, field); bad != nil {
			return Document{}, bad
		}
	}
	d := p.document(texts)
	d.bare = true
	return d, nil
}

// ask prepares a document whose one reply is the student's own: replies within the prompt are no targets, and if the
// record has no reply, e.ids end where it would begin. What the teacher reads in the prompt's place becomes e.words.
func (d *Document) ask(e *encoded, enc Encoder) error {
	at, err := replyAt(e.mask, d.Messages)
	if err != nil {
		return err
	}
	if d.Teacher != nil {
		theirs := slices.Concat(d.Teacher, d.Messages[d.prompt:])
		ids, mask, err := enc.AppendChat(nil, []uint8{}, theirs)
		if err != nil {
			return err
		}
		end, err := replyAt(mask, theirs)
		if err != nil {
			return err
		}
		e.words = &Words{IDs: ids[:end], At: at}
	}
	if d.bare {
		e.ids, e.mask = e.ids[:at], e.mask[:at]
	}
	for i := range at {
		e.mask[i] = 0
	}
	return nil
}

// replyAt returns where the last reply begins in a conversation's ids, of which mask says what counts.
func replyAt(mask []uint8, messages []Message) (int, error) {
	at := lastRun(mask)
	// Without a run for each reply the last one may be another's: a template may write nothing of an empty one.
	if at <= 0 || runs(mask) < replies(messages) {
		return 0, fault.New(fault.Invalid, "the chat template writes no reply of the assistant behind the prompt").
			WithID("E-CORPUS-086")
	}
	return at, nil
}

// lastRun returns where the last run of ones begins; −1: there is none.
func lastRun(mask []uint8) int {
	i := len(mask) - 1
	for i >= 0 && mask[i] == 0 {
		i--
	}
	if i < 0 {
		return -1
	}
	for i > 0 && mask[i-1] != 0 {
		i--
	}
	return i
}

// runs returns how many runs of ones there are.
func runs(mask []uint8) (n int) {
	for i, m := range mask {
		if m != 0 && (i == 0 || mask[i-1] == 0) {
			n++
		}
	}
	return n
}

// replies returns how many messages are the assistant's.
func replies(messages []Message) (n int) {
	for _, m := range messages {
		if m.Role == "assistant" {
			n++
		}
	}
	return n
}

// LongestWords returns the number of positions in the teacher's longest row, and the prompt that needs them. A row holds the
// ids of the prompt's words and all ids that the student draws but the last; the student draws at most `most` ids, and its
// rows have seqLen positions. 0 positions: no prompt has words for the teacher.
func (p *Prompts) LongestWords(most, seqLen int) (positions, document int) {
	for i, w := range p.words {
		if w == nil {
			continue
		}
		n := len(w.IDs) + min(most, seqLen+1-w.At) - 1
		if n > positions {
			positions, document = n, p.docs[i]+1
		}
	}
	return positions, document
}
