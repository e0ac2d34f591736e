package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"apr/corpus"
	"apr/device"
	"apr/eval"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/model"
	"apr/modelfile"
)

// evalOptions are the options of apr eval.
type evalOptions struct {
	file, task, dataset, text, teacher, backend string
	data                                        []string
	maxTokens, seqLen, stride, samples, k       int
	threshold, temperature                      float64
	seed                                        int64
	canaries, codeOff, network                  bool
	textField, messagesField, dataCache         string
	documentMask                                bool
	adapter                                     string
	cacheUse                                    *corpus.CacheUse // nil: no corpus was read
}

func evalCommand() *cli.Command {
	o := &evalOptions{}
	fields := fieldOptions(&o.textField, &o.messagesField)
	return &cli.Command{
		Name: "eval", Short: "Score a model: text, agreement with a teacher, questions, programs",
		Long: "Scores a model by one of the tasks of --task. For choice and match, --data is a file of JSON Lines with the fields named\n" +
			"below; for the code tasks with prompt, test and entry_point.\n" +
			"  perplexity  every target of the text once, in windows: window j holds " +
			"ids[j·stride : j·stride+seq-len+1], and documents are joined by end-of-text\n" +
			"  agreement   the same beside --teacher, position by position: KL(teacher‖model), top-1, entropy shift, calibration, " +
			"acceptance of speculative decoding; FILE may be a quantised teacher and --teacher its reference\n" +
			"  choice      prompt, choices, answer: which continuation is likeliest; a tie is wrong\n" +
			"  match       prompt, answer: whether the generated line is the answer\n" +
			"  code, humaneval, mbpp  whether generated programs pass their tests, in child processes without network, " +
			"children, or files outside an empty directory\n" +
			"That the tests of a program ran to their end is checked against accidents, not against a program that attacks its evaluation.\n\n" +
			"--threshold makes a gate: perplexity (not nats) or mean KL (in nats) at most, accuracy or pass@k (0 to 1) at least. Six\n" +
			"broken variants of the model go through the same code. If one of them passes, the gate is void and the command fails.",
		Example: "apr eval runs/mine/student.apr --data val.jsonl\n" +
			"apr eval teacher-q4_k_m.gguf --task agreement --teacher teacher/ --data val.jsonl\n" +
			"apr eval student.apr --data val.jsonl --threshold 20 --json\n" +
			"apr eval student.apr --task humaneval --data HumanEval.jsonl --samples 10 --k 5 --temperature 0.8",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.Load, fault.IO, fault.Inference, fault.Unavailable, fault.Network, fault.HTTP404, fault.Stopped, fault.Memory, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "file", Foreign: []string{"model", "model-path", "pretrained"}, Arg: true, Required: true, Model: true, Value: cli.String(&o.file, ""), Help: "model or run"},
			adapterOption(&o.adapter),
			{Name: "task", Foreign: []string{"tasks"}, Value: cli.Enum(&o.task, "perplexity",
				"perplexity", "agreement", "choice", "match", "countdown", "code", "humaneval", "mbpp"),
				Default: "perplexity; agreement with --teacher", Help: "what to measure"},
			{Name: "data", Replaces: []string{"text"}, Short: "d", Path: true, Value: cli.Strings(&o.data), Help: "text to score: .jsonl, .parquet, .csv, .txt, a folder, or hf://datasets/ORG/NAME; other tasks: a .jsonl of items; repeatable"},
			fields[0], fields[1], cacheOption(&o.dataCache),
			{Name: "dataset", Value: cli.Enum(&o.dataset, "custom", "custom").Unbuilt("wikitext-2", "lambada"), Help: "data set to score; custom is the text of --data"},
			{Name: "text", Replaces: []string{"data", "text-field", "messages-field", "data-cache"}, Value: cli.String(&o.text, ""), Help: "score this text instead of --data"},
			{Name: "teacher", Model: true, Value: cli.String(&o.teacher, ""), Help: "reference model to compare with"},
			{Name: "max-tokens", Foreign: []string{"limit", "max-new-tokens"}, Value: cli.Int(&o.maxTokens, 0).AtLeast(0), Default: "0 = all; match 64, code 512", Help: "targets to score, or tokens to generate, at most"},
			{Name: "seq-len", Foreign: []string{"max-length", "ctx-size"}, Value: cli.Int(&o.seqLen, 512).AtLeast(1), Help: "targets per window"},
			{Name: "stride", Value: cli.Int(&o.stride, 0).AtLeast(1), Default: "seq-len", Help: "tokens between the starts of two windows; below --seq-len each target sees more context"},
			{Name: "document-mask", Value: cli.Bool(&o.documentMask, false), Help: "restart attention and positions at each document of a window"},
			{Name: "threshold", Value: cli.Float(&o.threshold, 0).AtLeast(0), Default: "none", Help: "exit 5 if perplexity or mean KL is above this, if accuracy or pass@k is below it, or if a broken model passes"},
			{Name: "backend", Aliases: []string{"device"}, Value: backendValue(&o.backend),
				Help: backendHelp},
			{Name: "samples", Value: cli.Int(&o.samples, 1).AtLeast(1), Help: "programs to generate for each problem of a code task"},
			{Name: "k", Value: cli.Int(&o.k, 1).AtLeast(1), Help: "compute pass@k of a code task; at most --samples"},
			{Name: "temperature", Value: cli.Float(&o.temperature, 0).AtLeast(0), Help: "sampling temperature of a code task; 0 = greedy"},
			{Name: "seed", Value: cli.Int64(&o.seed, 299792458).AtLeast(0), Help: "seed of sampling, canaries and confidence intervals"},
			{Name: "canaries", Value: cli.Bool(&o.canaries, false), Default: "on with --threshold", Help: "also score six broken variants of the model"},
			{Name: "no-code-execution", Value: cli.Bool(&o.codeOff, false), Help: "refuse to run generated programs"},
			{Name: "allow-network", Value: cli.Bool(&o.network, false), Help: "run generated programs although this machine cannot confine them"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runEval(ctx, e, o) },
	}
}

// task is an evaluation that is ready to score any variant of a model. It gets nothing of a variant but the model.
type task interface {
	// score evaluates a loaded model and writes what it found into r.
	score(ctx context.Context, e *cli.Env, m *loaded, r *evalResult) (eval.Score, error)
	// constant is an id that is often right.
	constant() int32
}

func runEval(ctx context.Context, e *cli.Env, o *evalOptions) (_ cli.Result, err error) {
	if err := o.check(e.Settings); err != nil {
		return nil, err
	}
	f, err := openAdapted(ctx, e, o.file, o.adapter)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t, closeTask, err := o.prepare(ctx, e, f)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeTask()) }()
	r := &evalResult{Task: o.task, Mode: "full", Model: o.file, Dataset: o.dataset, Canaries: []canaryResult{}, Problems: []problemResult{}, PassAtK: []passAtK{}, Limits: []string{}}
	if o.teacher != "" {
		r.TeacherModel = &o.teacher
	}
	healthy, err := o.score(ctx, e, t, f, r)
	if err != nil {
		return nil, err
	}
	if r.failure != nil {
		return r, r.failure
	}
	if !e.Settings.Given("threshold") && !o.canaries {
		return r, nil
	}
	return r, o.gate(ctx, e, f, t, healthy, r)
}

// isCode reports whether the task runs programs.
func (o *evalOptions) isCode() bool {
	return o.task == "code" || o.task == "humaneval" || o.task == "mbpp"
}

func (o *evalOptions) check(s cli.Settings) error {
	if o.task == "perplexity" && o.teacher != "" && !s.Given("task") {
		o.task = "agreement"
	}
	ofText := o.task == "perplexity" || o.task == "agreement"
	var err error
	switch {
	case ofText && (len(o.data) == 0) == (o.text == ""):
		err = fault.New(fault.Usage, "exactly one of --data and --text is needed")
	case o.task == "agreement" && o.teacher == "":
		err = fault.New(fault.Usage, "--task agreement needs --teacher MODEL")
	case o.task != "agreement" && o.teacher != "":
		err = fault.New(fault.Usage, "--teacher belongs to --task agreement")
	case !ofText && len(o.data) != 1:
		err = fault.New(fault.Usage, "--task %s needs one --data FILE of items", o.task)
	case !ofText:
		err = only(s, "--task perplexity and agreement", "text", "seq-len", "stride", "document-mask", "text-field", "messages-field", "data-cache")
	case o.text != "" && (s.Given("text-field") || s.Given("messages-field") || s.Given("data-cache")):
		err = fault.New(fault.Usage, "--text-field, --messages-field and --data-cache belong to --data")
	case len(o.data) > 0 && o.maxTokens > 0 && o.maxTokens < o.seqLen:
		err = fault.New(fault.Usage, "--max-tokens %d is less than the %d targets of one window", o.maxTokens, o.seqLen).
			WithHint("a larger --max-tokens, or --seq-len %d", o.maxTokens)
	}
	if err == nil && !o.isCode() {
		err = only(s, "--task code, humaneval and mbpp", "samples", "k", "temperature", "no-code-execution", "allow-network")
	}
	if err == nil && s.Given("threshold") && s.Given("canaries") && !o.canaries {
		err = fault.New(fault.Usage, "--canaries=false has no effect with --threshold: a gate always tries broken variants of the model")
	}
	if err == nil && s.Given("threshold") {
		err = o.checkThreshold()
	}
	if err == nil && o.task == "choice" {
		err = only(s, "--task perplexity, agreement, match and code", "max-tokens")
	}
	if err != nil {
		return err
	}
	if o.stride == 0 {
		o.stride = o.seqLen
	}
	if o.isCode() {
		return o.checkCode()
	}
	return nil
}

// checkThreshold refuses a gate that no model passes, or every model: its number is of another unit.
func (o *evalOptions) checkThreshold() error {
	switch {
	case o.task == "perplexity" && o.threshold < 1:
		return fault.New(fault.Usage, "--threshold %g: no perplexity is below 1", o.threshold).
			WithHint("a perplexity is exp of the nats per token: 2.3 nats are 10")
	case o.task != "perplexity" && o.task != "agreement" && o.threshold > 1:
		return fault.New(fault.Usage, "--threshold %g: %s is at most 1", o.threshold, o.figure()).WithHint("90 %% is 0.9")
	}
	return nil
}

// only refuses options that were given, and belong to something else.
func only(s cli.Settings, what string, names ...string) error {
	for _, n := range names {
		if s.Given(n) {
			return fault.New(fault.Usage, "--%s belongs to %s", n, what)
		}
	}
	return nil
}

// prepare reads the data of the task.
func (o *evalOptions) prepare(ctx context.Context, e *cli.Env, f *modelfile.Files) (task, func() error, error) {
	nothing := func() error { return nil }
	tok, err := f.Tokenizer()
	if err != nil {
		return nil, nothing, err
	}
	switch {
	case o.isCode():
		return o.prepareCode(ctx, e, tok)
	case o.task == "choice" || o.task == "match" || o.task == "countdown":
		t, err := o.prepareItems(tok)
		return t, nothing, err
	}
	return o.prepareText(ctx, e, f, tok)
}

// loaded is a model on a device of its own, so that the memory of one variant is free before the next: close it.
type loaded struct {
	*opened
	model *model.Model
	files *modelfile.Files
}

// load opens the device and loads the model on it; every task takes its model from here.
func (o *evalOptions) load(ctx context.Context, e *cli.Env, f *modelfile.Files) (*loaded, error) {
	if err := f.CheckTensors(); err != nil {
		return nil, err
	}
	dev, err := backend{name: o.backend, expand: 1 << 30}.openFor(ctx, e, f)
	if err != nil {
		return nil, err
	}
	m := &loaded{opened: dev, files: f}
	if err = dev.prewarm(); err == nil {
		m.model, err = model.LoadFrozen(dev, f, device.StudentWeights)
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return m, nil
}

// score loads a model, or a variant of it, and lets a task score it.
func (o *evalOptions) score(ctx context.Context, e *cli.Env, t task, f *modelfile.Files, r *evalResult) (eval.Score, error) {
	m, err := o.load(ctx, e, f)
	if err != nil {
		return eval.Score{}, err
	}
	defer m.Close()
	r.Backend = m.Info().Kind
	return t.score(ctx, e, m, r)
}

// evalResult is the JSON of apr eval. Numbers that were not measured are null.
type evalResult struct {
	Task         string          `json:"task"`
	Mode         string          `json:"mode"` // full, limited; of a code or match task inference, inference_failed
	Model        string          `json:"model"`
	TeacherModel *string         `json:"teacher_model"` // null: the model is compared with none
	Dataset      string          `json:"dataset"`
	DataSHA256   string          `json:"data_sha256"`
	DataTokens   *int64          `json:"data_tokens"` // all ids of the text, cut by --max-tokens
	DataBytes    *int64          `json:"data_bytes"`  // of these
	Documents    int             `json:"documents"`   // with a scored target
	Tokens       int64           `json:"tokens"`      // scored targets
	Nats         *float64        `json:"nats_per_token"`
	Perplexity   *float64        `json:"perplexity"`
	BitsPerByte  *float64        `json:"bits_per_byte"`
	Threshold    *float64        `json:"threshold"`
	Passed       *bool           `json:"passed"` // null: no gate, or it was not judged to its end
	KL           *float64        `json:"kl"`     // mean
	KLPositions  *klPositions    `json:"kl_positions"`
	Top1         *float64        `json:"top1_agreement"`
	EntropyShift *float64        `json:"entropy_shift"`
	ECE          *float64        `json:"ece"`
	Acceptance   *float64        `json:"acceptance"`
	Draft        *draftResult    `json:"draft"` // null: no reference, or no neighbouring targets
	Teacher      *float64        `json:"teacher_nats_per_token"`
	TeacherH     *float64        `json:"teacher_entropy"`
	TeacherECE   *float64        `json:"teacher_ece"`
	Items        int             `json:"items"` // questions or problems
	Accuracy     *float64        `json:"accuracy"`
	AccuracyNorm *float64        `json:"accuracy_normalised"` // by bytes of the choice
	Samples      int             `json:"samples"`             // executed, of all problems
	Generated    int             `json:"generated"`
	Problems     []problemResult `json:"problems"`
	PassAtK      []passAtK       `json:"pass_at_k"`
	Limits       []string        `json:"limits"` // under which programs ran
	InferenceErr *string         `json:"inference_error"`
	Canaries     []canaryResult  `json:"canaries"`     // scored
	Due          int             `json:"canaries_due"` // all that a gate needs; 0: none was asked for
	SeqLen       int             `json:"seq_len,omitempty"`
	DocumentMask bool            `json:"document_mask,omitempty"`
	Stride       int             `json:"stride,omitempty"`
	Seed         int64           `json:"seed"`
	Backend      string          `json:"backend"`

	DataCache *corpus.CacheUse `json:"data_cache"` // null: no corpus was read

	failure error // of an evaluation that measured, and measured no success
}

// draftResult says what the model is worth as a draft of the teacher; see eval.Draft.
type draftResult struct {
	Drawn         []float64 `json:"acceptance_by_position"`
	Greedy        []float64 `json:"greedy_acceptance_by_position"`
	DrawnPerPass  float64   `json:"tokens_per_pass"`
	GreedyPerPass float64   `json:"greedy_tokens_per_pass"`
}

// byPosition prints acceptance by position.
func byPosition(places []float64, perPass float64) string {
	var b strings.Builder
	for _, a := range places {
		fmt.Fprintf(&b, "%.1f ", 100*a)
	}
	return fmt.Sprintf("%s%%, %.2f tokens a pass of the teacher", b.String(), perPass)
}

// klPositions says how KL(teacher‖model) is spread over positions.
type klPositions struct {
	Median  float64 `json:"median"`
	P95     float64 `json:"p95"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
	MaxAt   int     `json:"max_at"`
	MaxText string  `json:"max_text"`   // the text before the position
	MaxNext string  `json:"max_target"` // the target
}

// Text prints the scores.
func (r *evalResult) Text(p *cli.Page) {
	var pairs []string
	add := func(name string, v *float64, format string, scale float64) {
		if v != nil {
			pairs = append(pairs, name, strings.TrimSpace(fmt.Sprintf(format, *v*scale)))
		}
	}
	if r.Nats != nil {
		pairs = append(pairs, "nats/token", fmt.Sprintf("%.6f over %s targets of %s",
			*r.Nats, cli.Count(r.Tokens), plural(r.Documents, "document")))
	}
	add("perplexity", r.Perplexity, "%.4f", 1)
	add("bits/byte", r.BitsPerByte, "%.6f", 1)
	add("calibration error", r.ECE, "%.3f %%", 100)
	add("teacher nats/token", r.Teacher, "%.6f", 1)
	add("teacher's calibration", r.TeacherECE, "%.3f %%", 100)
	add("KL from teacher", r.KL, "%.6f nats", 1)
	if k := r.KLPositions; k != nil {
		pairs = append(pairs, "KL by position", fmt.Sprintf("median %.6f, 95 %% %.6f, 99 %% %.6f, max %.6f", k.Median, k.P95, k.P99, k.Max),
			"where it is largest", fmt.Sprintf("token %d: %q then %q", k.MaxAt, k.MaxText, k.MaxNext))
	}
	add("top-1 as teacher", r.Top1, "%.3f %%", 100)
	add("entropy shift", r.EntropyShift, "%+.6f nats", 1)
	add("speculative acceptance", r.Acceptance, "%.3f %%", 100)
	if d := r.Draft; d != nil {
		pairs = append(pairs, "by place in a draft", byPosition(d.Drawn, d.DrawnPerPass),
			"the same, greedy", byPosition(d.Greedy, d.GreedyPerPass))
	}
	if r.Accuracy != nil {
		pairs = append(pairs, "accuracy", fmt.Sprintf("%.2f %% of %d", 100**r.Accuracy, r.Items))
	}
	add("accuracy, by byte", r.AccuracyNorm, "%.2f %%", 100)
	if r.Samples > 0 {
		pairs = append(pairs, "samples", fmt.Sprintf("%d of %d problems, %d generated", r.Samples, r.Items, r.Generated))
		if n := r.Samples - r.Generated; n > 0 && r.InferenceErr != nil {
			pairs = append(pairs, "without text", fmt.Sprintf("%d; the first: %s", n, *r.InferenceErr))
		}
	}
	for _, k := range r.PassAtK {
		pairs = append(pairs, fmt.Sprintf("pass@%d", k.K), fmt.Sprintf("%.2f %% (95 %% interval %.2f to %.2f)", 100*k.Rate, 100*k.Low, 100*k.High))
	}
	p.Pairs(pairs...)
	r.canaryTable(p)
}
