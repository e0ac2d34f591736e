package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/cli"
	"apr/internal/contracttest"
)

// Every option of distill says whether it decides bits, and nothing else is said.
func TestEveryOptionSaysWhetherItDecidesBits(t *testing.T) {
	left := maps.Clone(distillBits)
	for _, o := range (&distillOptions{}).table() {
		contracttest.Cases(t, 1)
		if o.Bits == cli.BitsUnsaid {
			t.Errorf("--%s does not say whether it can change the bits of a student: enter it in distillBits", o.Name)
		}
		delete(left, o.Name)
		if _, ok := resumedWith[o.Name]; !ok {
			t.Errorf("--%s has no case in resumedWith", o.Name)
		}
	}
	for name := range left {
		t.Errorf("distillBits speaks of --%s, which is no option", name)
	}
}

// What becomes of a run that is resumed with another value of an option.
const (
	goesOn    = "goes on"   // to the bits of the run without the change
	differs   = "differs"   // refused: E-CKPT-004
	cannot    = "cannot"    // refused before: not built, or not on this machine
	elsewhere = "elsewhere" // goes on, and ends elsewhere for a reason of its own
)

// resumed is a change of one option and what becomes of it.
type resumed struct {
	with    string // flag with value, or VARIABLE=value
	without string // flags of the first run that the other replaces, or that have no effect beside it
	want    string
	names   string // that the refusal must hold; empty: the option's key
}

var resumedWith = map[string]resumed{
	"teacher":        {with: "narrow", want: differs, names: "teacher was "},
	"student":        {with: "--student=start", without: "--student-config", want: differs, names: "inputs.student_init was new, seed 42"},
	"student-config": {with: "--student-config=other.json", want: differs, names: "student_config.layers.0.ffn.width was 64, is 96"},
	"data":           {with: "--data=other.jsonl", want: differs, names: "trained_ids was "},
	"dataset":        {with: "--dataset=shards", without: "--data --chat-template", want: differs, names: "trained_ids was "},
	"text-field":     {with: "--text-field=body", without: "--chat-template", want: differs, names: "trained_ids was "},
	"messages-field": {with: "--messages-field=chat", want: differs, names: "trained_ids was "},
	"eval-data":      {with: "--eval-data=held.jsonl", want: differs, names: "inputs.eval_data was not recorded"},
	"expect":         {with: "--expect=data=" + strings.Repeat("0", 64), want: cannot},
	"data-cache":     {with: "--data-cache=off", want: goesOn},
	"output":         {with: "--output=moved", want: goesOn},
	"force":          {with: "--force", want: goesOn},

	"quantize-aware":        {with: "--quantize-aware=q8_0", want: differs},
	"quantize-search-every": {with: "--quantize-search-every=4", want: cannot},

	"alpha":            {with: "--alpha=0.6", want: differs},
	"temperature":      {with: "--temperature=2", want: differs},
	"divergence":       {with: "--divergence=skew-forward", want: differs},
	"align":            {with: "--align=auto", want: differs},
	"divergence-beta":  {with: "--divergence-beta=0.3", want: differs},
	"strategy":         {with: "--strategy=progressive", want: differs},
	"hidden-weight":    {with: "--hidden-weight=2", want: cannot},
	"attention-weight": {with: "--attention-weight=0.1", want: differs},
	"layer-map":        {with: "--layer-map=0:0", want: cannot},
	"teachers":         {with: "--teachers=other", want: cannot},
	"teacher-weights":  {with: "--teacher-weights=1", want: cannot},
	"ensemble":         {with: "--ensemble=logits", want: cannot},
	"route":            {with: "--route=code=other", want: cannot},

	"epochs":         {with: "--epochs=2", want: differs, names: "--epochs: schedule_steps was "},
	"steps":          {with: "--steps=3", want: differs, names: "--steps: schedule_steps was "},
	"max-steps":      {with: "APR_DISTILL_MAX_STEPS=3", want: elsewhere},
	"batch-size":     {with: "--batch-size=3", want: differs},
	"grad-accum":     {with: "--grad-accum=2", want: differs},
	"seq-len":        {with: "--seq-len=24", want: differs},
	"learning-rate":  {with: "--learning-rate=1e-3", want: differs},
	"warmup-steps":   {with: "--warmup-steps=3", want: differs, names: "--warmup-steps: schedule_warmup was 1, is 3"},
	"warmup-ratio":   {with: "--warmup-ratio=0.5", want: differs, names: "--warmup-ratio: schedule_warmup was 1, is "},
	"lr-schedule":    {with: "--lr-schedule=linear", want: differs},
	"min-lr-ratio":   {with: "--min-lr-ratio=0.2", want: differs},
	"beta1":          {with: "--beta1=0.8", want: differs},
	"beta2":          {with: "--beta2=0.9", want: differs},
	"adam-eps":       {with: "--adam-eps=1e-7", want: differs},
	"weight-decay":   {with: "--weight-decay=0", want: differs},
	"max-grad-norm":  {with: "--max-grad-norm=0", want: differs},
	"max-loss-ratio": {with: "--max-loss-ratio=4", want: differs},
	"router-balance": {with: "--router-balance=0.1", want: cannot}, // a student without experts
	"seed":           {with: "--seed=43", want: differs},

	"dtype":         {with: "--dtype=bf16", want: cannot},
	"backend":       {with: "--backend=cuda", want: cannot},
	"device":        {with: "--device=1", want: cannot},
	"gpus":          {with: "--gpus=2", want: cannot},
	"world-size":    {with: "--world-size=2", want: ""}, // processes: TestScripts/worldsize
	"deterministic": {with: "--deterministic=world", want: differs, names: "ranks was not recorded"},
	"rank":          {with: "--rank=1", want: cannot},
	"rendezvous":    {with: "--rendezvous=h:1", want: cannot},
	"elastic":       {with: "--elastic=1:2", want: goesOn},
	"teacher-ranks": {with: "--teacher-ranks=1", want: cannot},
	"teacher-split": {with: "--teacher-split", want: cannot},

	"rendezvous-timeout": {with: "--rendezvous-timeout=1m", want: goesOn},
	"chunk-rows":         {with: "--chunk-rows=256", want: differs},
	"recompute":          {with: "--recompute=blocks", want: goesOn},
	"teacher-backend":    {with: "--teacher-backend=q4k", want: cannot},
	"teacher-cache":      {with: "--teacher-cache=off", want: differs},
	"teacher-gemm":       {with: "--teacher-gemm=fp8", want: cannot},
	"teacher-experts":    {with: "--teacher-experts=host", want: cannot},
	"managed-memory":     {with: "MANAGED_MEMORY=auto", want: goesOn},
	// On a CPU; on a GPU it may choose another backend, which is compared.
	"probe":         {with: "--probe=off", want: goesOn},
	"stall-timeout": {with: "--stall-timeout=400s", want: goesOn},
	"supervise":     {with: "--supervise", want: ""},      // a process of its own: TestSupervise…
	"kernel-log":    {with: "--kernel-log", want: cannot}, // a CPU loads none

	"no-shuffle":     {with: "--no-shuffle", want: differs},
	"packing":        {with: "--no-packing", want: differs},
	"document-mask":  {with: "--document-mask", want: differs},
	"chat-template":  {with: "--chat-template=chat.jinja", want: differs},
	"assistant-only": {with: "--no-assistant-only", want: differs},
	"val-fraction":   {with: "--val-fraction=0.3", want: differs},

	"eval-every":            {with: "--eval-every=1", want: goesOn},
	"samples":               {with: "--samples=1", want: goesOn},
	"log-every":             {with: "--log-every=1", want: goesOn},
	"checkpoint-every":      {with: "--checkpoint-every=1", want: goesOn},
	"checkpoint-interval":   {with: "--checkpoint-interval=1h", want: goesOn},
	"keep-checkpoints":      {with: "--keep-checkpoints=9", want: goesOn},
	"resume":                {with: "--resume=run/checkpoints/step-000002", want: goesOn},
	"allow-changed":         {with: "--allow-changed", want: goesOn},
	"allow-same-model":      {with: "--allow-same-model", want: goesOn},
	"allow-odd-weights":     {with: "--allow-odd-weights", want: goesOn},
	"control":               {with: "--control=ce", want: goesOn},
	"stage":                 {with: "--stage=train", want: goesOn},
	"cache":                 {with: "--cache=other", want: cannot},
	"teacher-logits":        {with: "--teacher-logits=live", want: goesOn},
	"cache-kind":            {with: "--cache-kind=hidden", want: cannot},
	"draws":                 {with: "--draws=20", want: cannot},
	"token-file":            {with: "--token-file=token", want: cannot}, // without a teacher that asks for it
	"tls-ca":                {with: "--tls-ca=ca.pem", want: cannot},
	"cache-entropy":         {with: "--cache-entropy=off", want: cannot},
	"shard":                 {with: "--shard=1/2", want: cannot},
	"shard-count":           {with: "--shard-count=2", want: cannot},
	"shard-size":            {with: "--shard-size=1MB", want: cannot},
	"max-tokens":            {with: "--max-tokens=7", want: cannot},
	"sampling-temperature":  {with: "--sampling-temperature=0.5", want: cannot},
	"top-p":                 {with: "--top-p=0.5", want: cannot},
	"target-tokens":         {with: "--target-tokens=9", want: cannot},
	"samples-per-prompt":    {with: "--samples-per-prompt=3", want: cannot},
	"min-completion-tokens": {with: "--min-completion-tokens=4", want: cannot},
	"max-prompt-chars":      {with: "--max-prompt-chars=99", want: cannot},
	"slots":                 {with: "--slots=2", want: cannot},
	"on-policy":             {with: "--on-policy=0.5", want: differs},
	"plan":                  {with: "--plan", want: elsewhere},
	"runs-dir":              {with: "APR_RUNS_DIR=elsewhere", want: goesOn},

	"on-policy-max-tokens":    {with: "--on-policy-max-tokens=7", want: cannot},
	"on-policy-prompt-tokens": {with: "--on-policy-prompt-tokens=7", want: cannot},
	"on-policy-estimator":     {with: "--on-policy-estimator=sampled", want: cannot},
	"on-policy-lag":           {with: "--on-policy-lag=1", want: cannot},

	"lora":         {with: "--lora", want: cannot},
	"lora-rank":    {with: "--lora-rank=8", want: cannot},
	"lora-alpha":   {with: "--lora-alpha=8", want: cannot},
	"lora-dropout": {with: "--lora-dropout=0.1", want: cannot},
	"lora-targets": {with: "--lora-targets=q", want: cannot},
	"lora-merge":   {with: "--lora-merge=off", want: cannot},
	"adapter":      {with: "--adapter=before", want: cannot},
}

// callIn is call with further variables.
func callIn(t *testing.T, environ []string, args ...string) (int, map[string]any) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(append(args, "--json"), strings.NewReader(""), &out, &errs, append([]string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + t.TempDir()}, environ...))
	var v map[string]any
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatalf("apr %v: exit %d, %v: %s%s", args, code, err, out.String(), errs.String())
	}
	return code, v
}

// resumable goes to a folder with a run that has done two steps of several, and returns its flags. The folder "first" is a copy of
// the run, "whole" the one that was not stopped.
func resumable(t *testing.T) (flags []string) {
	t.Helper()
	teacher, err := filepath.Abs("../../testdata/golden/trajectory/student")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	must := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	ok := func(code int, v map[string]any) {
		if t.Helper(); code != 0 {
			t.Fatal(v["error"])
		}
	}
	must(os.Symlink(teacher, "teacher"))
	ok(call(t, "convert", "teacher", "--quantize", "bf16", "-o", "narrow"))
	config := `{"model_type":"qwen2","hidden_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":64,` +
		`"vocab_size":4096,"max_position_embeddings":64,"rope_theta":10000.0,"rms_norm_eps":1e-06,"tie_word_embeddings":true}`
	must(os.WriteFile("student.json", []byte(config), 0o600))
	must(os.WriteFile("other.json", []byte(strings.Replace(config, ":64,", ":96,", 1)), 0o600))
	template := `{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}` +
		`{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`
	must(os.WriteFile("chat.jinja", []byte(template), 0o600))
	for name, from := range map[string]int{"chat.jsonl": 0, "other.jsonl": 100, "held.jsonl": 200} {
		var text strings.Builder
		for i := from; i < from+20; i++ {
			fmt.Fprintf(&text, `{"messages":[{"role":"user","content":"package p%d"},{"role":"assistant","content":"func f%d() int { return %d }"}],`+
				`"chat":[{"role":"user","content":"%d"},{"role":"assistant","content":"return"}],"body":"var x%d int"}`+"\n", i, i, i*i, i, i)
		}
		must(os.WriteFile(name, []byte(text.String()), 0o600))
	}
	ok(call(t, "tokenize", "encode-corpus", "--corpus", "chat.jsonl", "--content-field", "body", "--tokenizer", "teacher", "--output", "shards"))
	flags = []string{"teacher", "--student-config=student.json", "--data=chat.jsonl", "--chat-template=chatml", "--divergence=jsd", "--batch-size=2", "--seq-len=16", "--backend=cpu",
		"--checkpoint-every=2", "--output=run"}
	ok(call(t, append([]string{"distill"}, flags...)...))
	must(os.Rename("run", "whole"))
	must(os.CopyFS("start", os.DirFS(filepath.Join("whole", "student"))))
	environ := []string{"APR_DISTILL_MAX_STEPS=2"}
	ok(callIn(t, environ, append([]string{"distill"}, flags...)...))
	must(os.Rename("run", "first"))
	return flags
}

// A run that is resumed with another value of an option goes on to the same bits, or is refused: which, says the option.
func TestResumeWithOtherOptions(t *testing.T) {
	flags := resumable(t)
	want, err := os.ReadFile("whole/student/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(resumedWith)) {
		tt, bits := resumedWith[name], distillBits[name]
		if tt.want == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			if bits == cli.SameBits && tt.want == differs || bits == cli.BitsByValue && (tt.want == goesOn || tt.want == elsewhere) {
				t.Errorf("the table says otherwise than this test: %s", tt.want)
			}
			for _, dir := range []string{"run", "moved"} {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			dir := "run"
			if name == "output" {
				dir = "moved"
			}
			if err := os.CopyFS(dir, os.DirFS("first")); err != nil {
				t.Fatal(err)
			}
			args, environ := changed(flags, tt)
			code, v := callIn(t, environ, append([]string{"distill"}, args...)...)
			text := fmt.Sprint(v["error"])
			key := tt.names
			if key == "" {
				key = strings.ReplaceAll(name, "-", "_") + " was "
			}
			switch tt.want {
			case goesOn:
				got, err := os.ReadFile(filepath.Join(dir, "student", "model.safetensors"))
				if code != 0 || err != nil || !bytes.Equal(got, want) || v["resumed_from"] == "" {
					t.Errorf("exit %d, resumed from %v, the same student: %v (%v): %s", code, v["resumed_from"], bytes.Equal(got, want), err, text)
				}
			case elsewhere:
				if code != 0 {
					t.Errorf("exit %d: %s", code, text)
				}
			case differs:
				if code != 5 || errorID(v) != "E-CKPT-004" || !strings.Contains(text, key) {
					t.Errorf("exit %d, want 5 and %q: %s", code, key, text)
				}
			case cannot:
				if code == 0 || errorID(v) == "E-CKPT-004" {
					t.Errorf("exit %d: %s", code, text)
				}
			}
		})
	}
}

// changed returns the arguments and variables of a resumption with one option changed.
func changed(flags []string, c resumed) (args, environ []string) {
	resume, name, with := "--resume", "", []string{c.with}
	switch {
	case !strings.HasPrefix(c.with, "--") && strings.Contains(c.with, "="):
		environ, with = []string{c.with}, nil
	case !strings.HasPrefix(c.with, "--"): // the teacher
		flags, with = append([]string{c.with}, flags[1:]...), nil
	default:
		name, _, _ = strings.Cut(c.with, "=")
	}
	for _, f := range flags {
		if own, _, _ := strings.Cut(f, "="); own != name && !slices.Contains(strings.Fields(c.without), own) {
			args = append(args, f)
		}
	}
	if name == "--resume" {
		resume = ""
	}
	for _, f := range append(with, resume) {
		if f != "" {
			args = append(args, f)
		}
	}
	return args, environ
}
