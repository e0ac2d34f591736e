package distill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"apr/adapter"
	"apr/arch"
	"apr/corpus"
	"apr/device"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/model"
	"apr/modelfile"
	"apr/plan"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/tensor"
	"apr/tokenizer"
)

// inputs are the opened models and the encoded data of a run.
type inputs struct {
	teacher, student *modelfile.Files   // student nil: a new one
	more             []*modelfile.Files // teachers beside the first
	// that is read instead of the teacher, of which there is the head alone; nil: the teacher is computed
	cache    *said
	taughtBy arch.Config // of the teacher that cache was made by
	// rows that the teacher says once and the run reads in later epochs; nil: the teacher says them in every epoch
	made          *said
	elsewhere     bool // the teacher's layers are on other ranks
	studentConfig arch.Config
	// what trains beside the student's weights, without values; nil: all of them train
	adapter     *adapter.Adapter
	tokenizer   *tokenizer.Tokenizer    // of the student: the teacher's for a new one; nil: it has none
	vocab       int                     // V: ids that both models share
	conventions []runlog.Convention     // in which their tokenizers differ all the same
	unproven    string                  // why nothing proves that they mean the same by them; empty: their tokenizers do
	choice      *teacherChoice          // how the teacher is computed
	planned     plan.Plan               // how steps are cut
	types       map[string]tensor.DType // of a student in blocks, by slot; nil: it is trained as it is
	fallbacks   []string                // lines about types that are not the scheme's
	projected   *projected              // a teacher with another tokenizer; nil: it has the student's
	aligned     teacher.AlignCounts     // of some rows of the data

	rows        *corpus.Rows
	train, held *corpus.Tokens // held nil: nothing is held out
	clock       time.Time      // what a chat template's strftime_now reads
	dated       bool           // the chat template reads it
	unsaid      string         // why nothing proves that the ids of shards are the models'; empty: their manifest does, or there are none
	trained     string         // SHA-256 of what train is made of: ids, targets, ends of documents
	heldOut     string         // the same of what is held out; empty: nothing is
	heldName    string         // what is held out of the data, for people; empty: --val-fraction or --eval-data says it
	cut         int            // ids that are held out of a document whose head is trained on
	loaderSteps int64          // optimiser steps of Config.Epochs
	epochSteps  int64          // of one epoch
	files       int            // of the training text; 0: token shards
	talks       int64          // conversations of it
	talksOnly   bool           // it has no other documents
	control     ControlChoice
	logits      LogitsChoice // whether the teacher is computed in every epoch
	doubts      []string     // what is doubtful about the models' files
	records     map[string]runlog.Input
	cached      map[string]corpus.CacheUse // by the names of records
	written     authors                    // who wrote the training text, where models did
	kin         *runlog.Kinship            // of teacher and student; nil: not compared, or a new student
	kins        []*runlog.Kinship          // of each of several teachers; nil: there are none

	prompts     *corpus.Prompts // that the student goes on with; nil: it writes nothing
	ends, never []int32         // ids that end what it writes, and that it must not write
	words       *privileged     // a teacher that reads other words than the student; nil: it reads the same
	chatEnd     int32           // what ends a turn; tokenizer.None without conversations
}

func (in *inputs) close() error {
	var errs []error
	if in.cache != nil && in.cache.client != nil {
		errs = append(errs, in.cache.client.Close())
	}
	for _, f := range in.openFiles() {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// openInputs opens and checks everything; on error nothing stays open.
func openInputs(ctx context.Context, c Config, dev device.Device, obs Observer) (_ *inputs, err error) {
	in := &inputs{records: map[string]runlog.Input{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.close())
		}
	}()
	if err := in.openModels(c, obs); err != nil {
		return nil, err
	}
	if err := findData(c); err != nil { // before the models are read
		return nil, err
	}
	if err := in.identifyAll(ctx, c, obs); err != nil { // before a probe
		return nil, err
	}
	if err := in.loadPrompts(ctx, c, obs); err != nil {
		return nil, err
	}
	if err := in.choose(ctx, c, dev, obs); err != nil {
		return nil, err
	}
	if in.cache != nil {
		in.choice.Reason = "read from a cache"
	}
	if err := in.hashModels(c); err != nil {
		return nil, err
	}
	if err := in.loadData(ctx, c, obs); err != nil {
		return nil, err
	}
	if err := in.checkExpected(c); err != nil {
		return nil, err
	}
	in.dropIdleControl()
	if err := in.shortControl(c, dev, obs); err != nil {
		return nil, err
	}
	return in, nil
}

// findData tells which of the paths of the data is missing.
func findData(c Config) error {
	for _, path := range slices.Concat(c.Data, c.EvalData, slices.DeleteFunc([]string{c.Dataset}, func(s string) bool { return s == "" })) {
		if _, err := os.Stat(path); err != nil {
			return readfile.Fault(path, err)
		}
	}
	return nil
}

// doubt has a file's doubtful weights shown and kept where c lets them pass.
func (in *inputs) doubt(f *modelfile.Files, c Config, obs Observer) {
	f.AllowOdd = c.AllowOddWeights
	f.Warn = func(line string) { in.say(line, obs) }
}

// say shows a doubt about the inputs, and keeps it for the records of the run.
func (in *inputs) say(line string, obs Observer) {
	in.doubts = append(in.doubts, line)
	obs.Message("warning: %s", line)
}

// sayUnended warns of the chat template that conversations are written by, unless it is a model's and was told.
func (in *inputs) sayUnended(c Config, said string, obs Observer) {
	if said == "" || slices.ContainsFunc(in.doubts, func(line string) bool { return strings.HasSuffix(line, said) }) {
		return
	}
	in.say(fmt.Sprintf("--chat-template %s: %s", cmp.Or(c.ChatTemplate, "auto"), said), obs)
}

// openModels opens teacher and student and checks that they fit each other.
func (in *inputs) openModels(c Config, obs Observer) (err error) {
	in.elsewhere = c.Ranks.Teachers > 0
	if err := in.openTeacher(c); err != nil {
		return err
	}
	if err := errors.Join(in.openMore(c), in.openStudent(c)); err != nil {
		return err
	}
	for _, w := range in.warnings() {
		obs.Message("warning: %s", w)
	}
	for _, f := range in.openFiles() {
		f.Fresh = f == in.student || c.NoTeacher
		in.doubt(f, c, obs)
	}
	if err := errors.Join(in.align(c, obs), in.quantize(c, obs)); err != nil {
		return err
	}
	if err := in.alignMore(c); err != nil {
		return err
	}
	in.checkBeside()
	if why := in.studentConfig.NotInLlamaCpp(); why != "" {
		obs.Message("warning: the student: %s", why)
	}
	if err := in.checkCache(c); err != nil {
		return err
	}
	if c.Guide.any() {
		if _, err := c.Guide.pairs(len(in.studentConfig.Layers), len(in.teacher.Config.Layers)); err != nil {
			return err
		}
	}
	if err := c.Guide.checkMaps(in.studentConfig, in.teacher.Config, c.SeqLen); err != nil {
		return err
	}
	most, apart := in.studentConfig.MaxPositions, []error{model.Separable(in.studentConfig, c.SeqLen)}
	for _, f := range in.teachers() {
		most = min(most, f.Config.MaxPositions)
		apart = append(apart, model.Separable(f.Config, c.SeqLen))
	}
	if c.SeqLen > most {
		return fault.New(fault.Usage, "--seq-len %d exceeds the models' %d positions", c.SeqLen, most).WithHint("--seq-len %d is the most", most)
	}
	if c.DocumentMask {
		return errors.Join(apart...)
	}
	return nil
}

// checkBeside warns of files of a tokenizer that contradict the one that is used.
func (in *inputs) checkBeside() {
	seen := map[string]bool{}
	for _, f := range in.openFiles() {
		tok, err := f.Tokenizer()
		if err != nil || seen[f.Folder] { // of ids alone, and reported where a tokenizer is needed
			continue
		}
		seen[f.Folder] = true
		for _, line := range f.CheckBeside(tok) {
			f.Warn(line)
		}
	}
}

// warnings are what was tolerated in the models' files, as a checksum that is missing.
func (in *inputs) warnings() (all []string) {
	for _, f := range in.openFiles() {
		for _, w := range f.Warnings {
			all = append(all, f.Path+": "+w)
		}
	}
	if in.adapter != nil {
		all = append(all, in.adapter.Warnings...)
	}
	return all
}

// openStudent opens the student to start from, or reads the configuration of a new one.
func (in *inputs) openStudent(c Config) (err error) {
	if c.StudentConfig != "" {
		if in.studentConfig, err = modelfile.ReadConfig(c.StudentConfig, c.AllowKeys...); err == nil {
			err = model.Computed(in.studentConfig)
		}
		if f := (*fault.Error)(nil); errors.As(err, &f) && f.ID == "E-FILE-002" {
			return f.WithHint("--student %s starts from a model's weights; its config.json here makes a new student of that shape", c.StudentConfig)
		}
		return err
	}
	if in.student, err = modelfile.Open(c.Student, c.AllowKeys...); err != nil {
		return err
	}
	in.studentConfig = in.student.Config
	if err := model.Computed(in.studentConfig); err != nil {
		return err
	}
	if err := in.student.CheckTensors(); err != nil || c.LoRA == nil {
		return err
	}
	in.adapter, err = in.newAdapter(c.LoRA)
	return err
}

// What the hashes of inputs cover: the content, in whatever files and compression it comes.
const (
	ofWeights   = "name, type, shape and payload of each tensor, in order of name; bytes are those of the payloads"
	ofDocuments = "the SHA-256 of each document's text, in order; bytes are those of the texts"
)

// hashModels records what was opened.
func (in *inputs) hashModels(c Config) error {
	if in.cache != nil {
		in.recordTeacherCache()
	}
	for i, f := range in.teachers() {
		if in.cache != nil {
			break
		}
		if err := in.hashModel(nameOf(i), c.Teachers()[i], f); err != nil {
			return err
		}
	}
	if in.student == nil {
		sum, _, err := hashFile(c.StudentConfig)
		if err != nil {
			return err
		}
		in.records["student_init"] = runlog.Input{Path: c.StudentConfig, SHA256: sum, Of: "the configuration file", Detail: fmt.Sprintf("new, seed %d: %s", c.Seed, in.studentConfig), Config: in.studentConfig.Hash()}
		return nil
	}
	return in.hashModel("student_init", c.Student, in.student)
}

// hashModel records a model that was opened by path.
func (in *inputs) hashModel(name, path string, f *modelfile.Files) error {
	sum, err := f.WeightsSHA256()
	if err != nil {
		return err
	}
	in.records[name] = runlog.Input{Path: path, SHA256: sum, Of: ofWeights, Bytes: f.Bytes(),
		Detail: f.Config.String(), Config: f.Config.Hash()}
	return nil
}

// loadPrompts is loadData for a student that writes rows itself: how long the teacher's rows are depends on the data.
func (in *inputs) loadPrompts(ctx context.Context, c Config, obs Observer) error {
	if !c.OnPolicy.On() {
		return nil
	}
	return in.loadData(ctx, c, obs)
}

// loadData encodes training and held-out text.
func (in *inputs) loadData(ctx context.Context, c Config, obs Observer) error {
	if in.train != nil { // read before a step was planned
		return nil
	}
	obs.Phase("reading and encoding text")
	var err error
	if c.Dataset != "" {
		err = in.readShards(c, obs)
	} else {
		in.train, err = in.encode(ctx, c, "data", c.Data, obs)
	}
	if err != nil {
		return err
	}
	err = in.holdOut(c, func() (*corpus.Tokens, error) { return in.encode(ctx, c, "eval_data", c.EvalData, obs) }, obs)
	if err != nil {
		return err
	}
	read := in.train
	if in.train, err = in.route(c, read); err != nil {
		return err
	}
	if err := c.checkRoutes(read); err != nil {
		return err
	}
	if in.held, err = in.route(c, in.held); err != nil {
		return err
	}
	if err := in.judgeTexts(c); err != nil {
		return err
	}
	in.trained = in.train.ContentSHA256()
	if err := in.findPrompts(c, in.chatEnd, obs); err != nil {
		return err
	}
	if in.prompts != nil && c.OnPolicy.Rows(c.Rows()) == c.Rows() { // no row is of the data
		in.loaderSteps, in.epochSteps = in.ownSteps(c, c.Epochs), in.ownSteps(c, 1)
		return nil
	}
	if c.Packing {
		in.rows, err = corpus.Pack(in.train, c.SeqLen)
	} else {
		in.rows, err = corpus.OnePerRow(in.train, c.SeqLen)
	}
	if err != nil {
		return err
	}
	if r := in.rows; r.Truncated > 0 {
		obs.Message("warning: %d of %d documents are longer than a row of %d tokens and are cut; %d tokens are not trained on", r.Truncated, r.Len(), c.SeqLen, r.Dropped)
	}
	if err := in.checkCachedRows(c, obs); err != nil {
		return err
	}
	if err := in.sampleAlignment(c, obs); err != nil {
		return err
	}
	l, err := in.loader(c)
	if err != nil {
		return err
	}
	in.loaderSteps, in.epochSteps = l.Steps(c.Epochs), l.Steps(1)
	return nil
}

func (in *inputs) loader(c Config) (*corpus.Loader, error) {
	return corpus.NewLoader(in.rows, corpus.LoaderOptions{
		BatchRows: c.Rows() - c.OnPolicy.Rows(c.Rows()), Shuffle: c.Shuffle, Seed: c.Seed, Documents: c.DocumentMask,
	})
}

// templateTime is what a chat template's strftime_now reads: the start of the run, also when it is resumed.
func (in *inputs) templateTime(c Config) time.Time {
	if in.clock.IsZero() {
		in.clock = time.Now().UTC().Truncate(time.Second)
		if c.Resume != "" {
			if m := runlog.ReadManifest(c.Output); m != nil && m.TemplateTime != nil {
				in.clock = *m.TemplateTime
			}
		}
	}
	return in.clock
}

// encode reads documents and turns them into ids.
func (in *inputs) encode(ctx context.Context, c Config, name string, paths []string, obs Observer) (*corpus.Tokens, error) {
	enc, err := corpus.ForTokenizerAt(in.tokenizer, c.ChatTemplate, in.templateTime(c))
	if err != nil {
		return nil, err
	}
	in.dated, in.chatEnd = in.dated || enc.ReadsClock(), enc.End()
	in.sayUnended(c, enc.Unended(), obs)
	eos, err := corpus.EndOfText(in.tokenizer)
	if err != nil {
		return nil, err
	}
	turns := corpus.AllTurns
	if c.AssistantOnly {
		turns = corpus.AutoTurns
	}
	t, report, use, err := c.TokenCache.Load(ctx, paths, enc, corpus.EncodeOptions{
		Read: corpus.ReadOptions{TextField: c.TextField, MessagesField: c.MessagesField, Sources: c.Ensemble.routed(),
			TeacherPrompts: c.OnPolicy.On(), PromptsAlone: c.OnPolicy.On() && c.OnPolicy.Rows(c.Rows()) == c.Rows()},
		EOS: eos, Vocab: in.vocab, Turns: turns,
	})
	if err != nil {
		return nil, err
	}
	if name == "data" {
		in.files, in.talks, in.written.writers = len(report.Files), report.Talks, report.Writers
		in.talksOnly = report.Talks > 0 && report.Talks == report.Documents
		if err := report.Idle(c.ForTalks, c.ForRecords); err != nil {
			return nil, err
		}
	}
	if empty := report.Empty(); empty != "" && report.Bytes == 0 {
		return nil, fault.New(fault.Invalid, "there is no text to read: %s", empty).WithID("E-CORPUS-085")
	}
	for _, bad := range report.Bad {
		obs.Message("left out: %v", bad)
	}
	detail := fmt.Sprintf("%d documents, %d tokens, %d bad records left out", report.Documents, len(t.IDs), report.BadRecords)
	if forms := report.Recognised(); forms != "" {
		obs.Message("%s: %s, read as conversations", strings.ReplaceAll(name, "_", "-"), forms)
		detail += "; " + forms
	}
	if note := report.NotText(); note != "" {
		obs.Message("warning: %s", note)
		detail += "; " + note
	}
	if note := report.RecordsAsText(); note != "" {
		obs.Message("warning: %s", note)
	}
	if note := report.Empty(); note != "" {
		obs.Message("warning: %s", note)
	}
	in.noteCache(name, use, obs)
	in.records[name] = runlog.Input{
		Path: strings.Join(paths, ", "), SHA256: t.SHA256(), Of: ofDocuments, Bytes: report.Bytes,
		Detail: detail,
	}
	return t, nil
}

// noteCache says what the cache did, and keeps it for the run's events.
func (in *inputs) noteCache(name string, use corpus.CacheUse, obs Observer) {
	if in.cached == nil {
		in.cached = map[string]corpus.CacheUse{}
	}
	in.cached[name] = use
	if use.Problem != "" {
		obs.Message("cache of tokens: %s", use.Problem)
	}
	switch use.State {
	case corpus.CacheHit:
		obs.Detail("tokens of %s from %s", name, use.Path)
	case corpus.CacheWritten:
		obs.Detail("tokens of %s are kept in %s", name, use.Path)
	}
}

// learned says what the student will have learned, for its file: plain text alone, conversations alone, or "" for
// anything else. A student that starts from another model's weights may have learned more there; of conversations, it
// answers in their form.
func (in *inputs) learned() string {
	switch {
	case in.talksOnly:
		return modelfile.LearnedTalks
	case in.files == 0 || in.talks > 0:
		return ""
	}
	if in.student == nil {
		return modelfile.LearnedText
	}
	return in.student.Learned()
}

// manifest starts the run's manifest with the inputs, to which the caller may add what decides nothing here.
func (in *inputs) manifest() runlog.Manifest {
	m := runlog.Manifest{Inputs: maps.Clone(in.records), Kinship: in.kin, Conventions: in.conventions, Warnings: slices.Concat(in.warnings(), in.doubts)}
	if in.dated {
		m.TemplateTime = &in.clock
	}
	return m
}
