package main

import (
	"context"
	"fmt"
	"strings"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/tokenizer"
)

// evalOptions are the options of apr eval.
type evalOptions struct {
	file, task, dataset, text, teacher, backend string
	data                                        []string
	maxTokens, seqLen, stride                   int
	threshold                                   float64
}

func evalCommand() *cli.Command {
	o := &evalOptions{}
	return &cli.Command{
		Name: "eval", Short: "Score a model on held-out text",
		Long: "Perplexity: documents are joined by end-of-text; window j holds ids[j·stride : j·stride+seq-len+1] and every target is\n" +
			"scored once. Agreement: the same, with mean KL and top-1 agreement against --teacher.",
		Example: "apr eval runs/mine/student.apr --data val.jsonl\n" +
			"apr eval student.apr --task agreement --teacher teacher.apr --data val.jsonl\n" +
			"apr eval student.apr --data val.jsonl --threshold 20 --json",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.Inference, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "file", Arg: true, Required: true, Model: true, Value: cli.String(&o.file, ""), Help: "model"},
			{Name: "task", Value: cli.Enum(&o.task, "perplexity", "perplexity", "agreement").Unbuilt("choice", "match", "code", "humaneval", "mbpp"), Default: "perplexity; agreement with --teacher", Help: "what is measured"},
			{Name: "data", Short: "d", Path: true, Value: cli.Strings(&o.data), Help: ".jsonl, .parquet, .txt or directory; repeatable"},
			{Name: "dataset", Value: cli.Enum(&o.dataset, "custom", "custom").Unbuilt("wikitext-2", "lambada"), Help: "custom: the text of --data"},
			{Name: "text", Value: cli.String(&o.text, ""), Help: "the text itself, instead of --data"},
			{Name: "teacher", Model: true, Value: cli.String(&o.teacher, ""), Help: "reference model of the agreement"},
			{Name: "max-tokens", Value: cli.Int(&o.maxTokens, 0).AtLeast(0), Help: "score at most about so many targets; 0 = all"},
			{Name: "seq-len", Value: cli.Int(&o.seqLen, 512).AtLeast(1), Help: "targets of a window"},
			{Name: "stride", Value: cli.Int(&o.stride, 0).AtLeast(1), Default: "seq-len", Help: "distance of two windows; smaller gives more context"},
			{Name: "threshold", Value: cli.Float(&o.threshold, 0).Above(0), Default: "none", Help: "fail (exit 5) when the perplexity is above"},
			{Name: "backend", Aliases: []string{"device"}, Value: cli.Enum(&o.backend, "auto", "auto", "cpu", "cuda"), Help: "where to compute; auto takes a GPU if there is one"},
			{Name: "samples", NotBuilt: "code tasks", Value: cli.Int(new(int), 1), Help: "samples of a code task"},
			{Name: "k", NotBuilt: "code tasks", Value: cli.Int(new(int), 1), Help: "pass@k of a code task"},
			{Name: "temperature", NotBuilt: "code tasks", Value: cli.Float(new(float64), 0), Help: "sampling temperature of a code task"},
			{Name: "canaries", NotBuilt: "canary models", Value: cli.Bool(new(bool), false), Help: "also score broken models, which must fail"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runEval(ctx, e, o) },
	}
}

// evalResult is the JSON of apr eval. Numbers that were not measured are null.
type evalResult struct {
	Task        string   `json:"task"`
	Mode        string   `json:"mode"`
	Dataset     string   `json:"dataset"`
	DataSHA256  string   `json:"data_sha256"`
	Documents   int      `json:"documents"`
	Tokens      int64    `json:"tokens"` // scored targets
	Nats        float64  `json:"nats_per_token"`
	Perplexity  float64  `json:"perplexity"`
	BitsPerByte *float64 `json:"bits_per_byte"`
	Threshold   *float64 `json:"threshold"`
	Passed      *bool    `json:"passed"`
	KL          *float64 `json:"kl"`
	Top1        *float64 `json:"top1_agreement"`
	Teacher     *float64 `json:"teacher_nats_per_token"`
	EntropyGap  *float64 `json:"teacher_entropy"`
	SeqLen      int      `json:"seq_len"`
	Stride      int      `json:"stride"`
	Backend     string   `json:"backend"`
}

func runEval(ctx context.Context, e *cli.Env, o *evalOptions) (cli.Result, error) {
	if err := o.check(e.Settings); err != nil {
		return nil, err
	}
	f, err := openFiles(ctx, e, o.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, err
	}
	text, err := o.read(ctx, tok, e)
	if err != nil {
		return nil, err
	}
	if n := len(text.IDs) - 1; o.text != "" && n < o.seqLen {
		o.seqLen, o.stride = n, min(o.stride, n) // a short text is one window
	}
	w, err := corpus.NewWindows(limit(text, o.maxTokens), o.seqLen, o.stride)
	if err != nil {
		return nil, err
	}
	dev, err := backend{name: o.backend, expand: 1 << 30}.open(e)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if err := dev.prewarm(); err != nil {
		return nil, err
	}
	subjects, reference, err := o.load(ctx, e, dev, f, tok)
	if err != nil {
		return nil, err
	}
	bar := e.Progress("evaluating", int64(w.Len()), cli.Count)
	defer bar.Close()
	last := 0
	scores, err := eval.Compare(ctx, dev.NewStream(), reference, subjects, w, eval.Options{
		Vocab: tok.RealIDs(), Progress: func(done, _ int) { bar.Add(int64(done - last)); last = done },
	})
	if err != nil {
		return nil, err
	}
	return o.result(text, scores, e.Settings, dev.Info().Kind)
}

func (o *evalOptions) check(s cli.Settings) error {
	if o.task == "perplexity" && o.teacher != "" && !s.Given("task") {
		o.task = "agreement"
	}
	switch {
	case (len(o.data) == 0) == (o.text == ""):
		return fault.New(fault.Usage, "exactly one of --data and --text is needed")
	case o.task == "agreement" && o.teacher == "":
		return fault.New(fault.Usage, "--task agreement needs --teacher MODEL")
	case o.task == "perplexity" && o.teacher != "":
		return fault.New(fault.Usage, "--teacher belongs to --task agreement")
	}
	if o.stride == 0 {
		o.stride = o.seqLen
	}
	return nil
}

// read encodes the text.
func (o *evalOptions) read(ctx context.Context, tok *tokenizer.Tokenizer, e *cli.Env) (*corpus.Tokens, error) {
	eos, err := corpus.EndOfText(tok)
	if err != nil {
		return nil, err
	}
	enc, err := corpus.ForTokenizer(tok, "auto")
	if err != nil {
		return nil, err
	}
	if o.text != "" {
		ids := append(enc.AppendText(nil, o.text), eos)
		return &corpus.Tokens{IDs: ids, EOS: eos, Docs: []corpus.Doc{{End: int64(len(ids)), Bytes: int64(len(o.text))}}}, nil
	}
	text, report, err := corpus.Load(ctx, o.data, enc, corpus.EncodeOptions{EOS: eos, Vocab: tok.RealIDs(), Turns: corpus.AllTurns})
	if err != nil {
		return nil, err
	}
	for _, bad := range report.Bad {
		e.Log.Warn("left out: " + bad.Error())
	}
	return text, nil
}

// limit returns the first n+1 ids of t, or all.
func limit(t *corpus.Tokens, n int) *corpus.Tokens {
	if n == 0 || n+1 >= len(t.IDs) {
		return t
	}
	return &corpus.Tokens{IDs: t.IDs[:n+1], Mask: nil, EOS: t.EOS}
}

// load puts the models on the device. The teacher must have the same tokenizer.
func (o *evalOptions) load(ctx context.Context, e *cli.Env, dev device.Device, f *model.Files, tok *tokenizer.Tokenizer) ([]eval.Subject, *model.Model, error) {
	if err := f.CheckTensors(); err != nil {
		return nil, nil, err
	}
	m, err := model.LoadFrozen(dev, f, device.StudentWeights)
	if err != nil {
		return nil, nil, err
	}
	subjects := []eval.Subject{{Name: o.file, Model: m}}
	if o.teacher == "" {
		return subjects, nil, nil
	}
	tf, err := openFiles(ctx, e, o.teacher)
	if err != nil {
		return nil, nil, err
	}
	defer tf.Close()
	other, err := tf.Tokenizer()
	if err != nil {
		return nil, nil, err
	}
	if d := tokenizer.Compare(other, tok); d != nil {
		return nil, nil, fault.In(fault.Invalid, o.teacher, "the teacher's tokenizer differs from the model's: %s", d)
	}
	if err := tf.CheckTensors(); err != nil {
		return nil, nil, err
	}
	t, err := model.LoadFrozen(dev, tf, device.TeacherWeights)
	return append(subjects, eval.Subject{Name: o.teacher, Model: t}), t, err
}

func (o *evalOptions) result(text *corpus.Tokens, scores []eval.Scores, s cli.Settings, kind string) (cli.Result, error) {
	m := scores[0]
	r := &evalResult{
		Task: o.task, Mode: "full", Dataset: o.dataset, DataSHA256: text.SHA256(), Documents: len(text.Docs), Tokens: m.Targets,
		Nats: m.NatsPerToken(), Perplexity: m.Perplexity(), SeqLen: o.seqLen, Stride: o.stride, Backend: kind,
	}
	if o.maxTokens > 0 {
		r.Mode = "limited"
	}
	if bytes := text.TextBytes(); bytes > 0 {
		bits := m.BitsPerByte(int64(len(text.IDs)), bytes)
		r.BitsPerByte = &bits
	}
	if kl, ok := m.KL(); ok {
		top1, _ := m.Top1()
		entropy, _ := m.Entropy()
		teacher := scores[1].NatsPerToken()
		r.KL, r.Top1, r.EntropyGap, r.Teacher = &kl, &top1, &entropy, &teacher
	}
	if !s.Given("threshold") {
		return r, nil
	}
	passed := r.Perplexity <= o.threshold
	r.Threshold, r.Passed = &o.threshold, &passed
	if !passed {
		return r, fault.New(fault.Invalid, "perplexity %.4f is above the threshold %g", r.Perplexity, o.threshold)
	}
	return r, nil
}

// Text prints the scores.
func (r *evalResult) Text(p *cli.Page) {
	pairs := []string{
		"nats/token", fmt.Sprintf("%.6f over %s targets of %d documents", r.Nats, cli.Count(r.Tokens), r.Documents),
		"perplexity", fmt.Sprintf("%.4f", r.Perplexity),
	}
	add := func(name string, v *float64, format string, scale float64) {
		if v != nil {
			pairs = append(pairs, name, strings.TrimSpace(fmt.Sprintf(format, *v*scale)))
		}
	}
	add("bits/byte", r.BitsPerByte, "%.6f", 1)
	add("teacher nats/token", r.Teacher, "%.6f", 1)
	add("KL from teacher", r.KL, "%.6f nats", 1)
	add("top-1 as teacher", r.Top1, "%.3f %%", 100)
	p.Pairs(pairs...)
}
