package distill

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"apr/modelfile"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/tokenizer"
)

// align finds V, the number of ids that both models share. Tokenizers must agree on every real id, string by string.
// Only data of ids alone, without text, can do without them.
func (in *inputs) align(c Config, obs Observer) (err error) {
	path, rows := c.Student+c.StudentConfig, in.studentConfig.Vocab
	if c.Align == AlignProject {
		return in.project(c, obs)
	}
	if c.Dataset != "" && len(c.EvalData) == 0 {
		in.tokenizer, in.vocab, in.unproven, err = teacher.AlignIDs(in.teacher, in.student, path, rows)
	} else {
		in.tokenizer, in.vocab, err = teacher.Align(in.teacher, in.student, path, rows)
	}
	if projects(c, err) {
		return in.project(c, obs)
	}
	if err != nil {
		return in.suggestProject(c, err)
	}
	if in.unproven != "" {
		obs.Message("warning: %s", in.unproven)
	}
	if in.tokenizer != nil {
		in.recordTokenizer(c)
		if in.student == nil {
			in.endAsTokenizer(path, obs)
		}
		if err := in.compareConventions(c, obs); err != nil {
			return err
		}
	}
	if more := in.studentConfig.Vocab - in.vocab; in.student == nil && more > 0 {
		obs.Message("warning: %s: vocab_size is %d, the tokenizer has %d ids: %d rows of the student's embedding are never used",
			path, in.studentConfig.Vocab, in.vocab, more)
	}
	if t, s := in.teacher.Config.Vocab, in.studentConfig.Vocab; t != s || t != in.vocab {
		obs.Detail("vocabulary: %d ids; teacher's %d and student's %d rows are cut to them before the softmax", in.vocab, t, s)
	}
	return nil
}

// endAsTokenizer gives a new student the ids by which its tokenizer, the teacher's, begins and ends a text, where its
// configuration, often copied from another model, names others: programs that read the files alone would stop at a
// token of the text, or never.
func (in *inputs) endAsTokenizer(path string, obs Observer) {
	c, big := &in.studentConfig, in.teacher.Config
	ends := []int{int(in.tokenizer.EOS())}
	for _, id := range in.tokenizer.Ends() {
		ends = append(ends, int(id))
	}
	ends = append(ends, big.EOS...)
	if in.tokenizer.EOS() == tokenizer.None || len(c.EOS) == 0 ||
		slices.ContainsFunc(c.EOS, func(id int) bool { return slices.Contains(ends, id) }) {
		return
	}
	was := c.EOS
	if c.EOS = slices.Clone(big.EOS); len(c.EOS) == 0 {
		c.EOS = ends[:1]
	}
	c.BOS = big.BOS
	obs.Message("warning: %s: eos_token_id is %d, which ends no text in the teacher's tokenizer; the student gets the teacher's "+
		"eos_token_id %d and bos_token_id %d", path, was, c.EOS, c.BOS)
}

// compareConventions says in what the tokenizers differ beside their ids. A new student has the teacher's.
func (in *inputs) compareConventions(c Config, obs Observer) error {
	if in.student == nil {
		return nil
	}
	big, err := in.teacher.Tokenizer()
	if modelfile.HasNoTokenizer(err) {
		return nil // in.unproven says so
	}
	if err != nil {
		return err
	}
	in.conventions = teacher.Conventions(big, in.tokenizer)
	for i := range in.conventions {
		if k := &in.conventions[i]; k.Name == "chat_template" && c.ChatTemplate != "auto" && c.ChatTemplate != "" {
			k.Used = "--chat-template " + c.ChatTemplate
		}
	}
	if len(in.conventions) > 0 {
		obs.Message("warning: %s", conventionsText(in.conventions))
	}
	return nil
}

// conventionsText says what differs, and which of both the run uses.
func conventionsText(all []runlog.Convention) string {
	var parts []string
	for _, k := range all {
		used := "the student's"
		if k.Used != "student" {
			used = k.Used
		}
		parts = append(parts, fmt.Sprintf("%s: %s of the teacher, %s of the student; the run uses %s", k.Name, k.Teacher, k.Student, used))
	}
	return "teacher and student differ in " + strings.Join(parts, "; ")
}

func (in *inputs) recordTokenizer(c Config) {
	detail := fmt.Sprintf("%d ids, the same for teacher and student", in.vocab)
	if in.unproven != "" {
		detail = "the student's; the teacher has none"
	}
	if in.projected != nil {
		detail = fmt.Sprintf("%d ids, the student's; the teacher has a tokenizer of its own", in.vocab)
	}
	for name, r := range TokenizerRecords(in.tokenizer) {
		r.Path, r.Detail = cmp.Or(c.Teacher, c.FromCache), detail
		in.records[name] = r
	}
}

// TokenizerRecords returns the records of a tokenizer by their names: of its tokens, and of its template and special
// ids.
func TokenizerRecords(t *tokenizer.Tokenizer) map[string]runlog.Input {
	record := func(text []byte, of string) runlog.Input {
		return runlog.Input{SHA256: fmt.Sprintf("%x", sha256.Sum256(text)), Of: of, Bytes: int64(len(text))}
	}
	return map[string]runlog.Input{
		"tokenizer": record(t.MarshalTokenizer(), "the tokenizer.json that is written with the student"),
		"tokenizer_config": record(t.MarshalConfig(0),
			"the tokenizer_config.json that is written with the student, without model_max_length: chat template, special ids"),
	}
}
