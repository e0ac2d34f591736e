package main

import (
	"regexp"
	"slices"
	"strings"

	"apr/internal/cli"
)

// distillForeign are the names that transformers, TRL, axolotl, LLaMA-Factory and their like give to options of distill. They
// are not accepted, since a value may mean something else there; the error names the option.
var distillForeign = map[string][]string{
	"teacher":             {"teacher-model", "teacher-model-name-or-path", "kd-teacher", "base-teacher", "teacher-path", "teacher-name-or-path"},
	"student":             {"model", "model-name-or-path", "base-model", "student-model", "model-id", "pretrained-model-name-or-path", "model-path", "student-name-or-path", "student-path", "init-from"},
	"student-config":      {"config-name", "base-model-config", "model-config"},
	"data":                {"datasets", "train-file", "train-data", "data-path", "dataset-path", "dataset-name", "train-dataset", "training-data", "train-files", "dataset-dir", "data-files", "data-dir"},
	"dataset":             {"tokenized-dataset", "dataset-prepared-path", "tokenized-path"},
	"data-cache":          {"cache-dir"},
	"output":              {"output-dir", "save-dir", "out", "out-dir", "run-name", "project", "output-path"},
	"force":               {"overwrite-output-dir", "overwrite"},
	"alpha":               {"kd-alpha", "distillation-alpha", "kd-ratio", "kd-weight", "alpha-kd", "kd-loss-weight"},
	"temperature":         {"kd-temperature", "distillation-temperature", "temp"},
	"divergence":          {"loss-type", "kd-loss", "kd-objective", "distillation-loss"},
	"divergence-beta":     {"beta", "skew-alpha"},
	"epochs":              {"num-train-epochs", "num-epochs", "max-epochs", "n-epochs", "train-epochs"},
	"steps":               {"max-steps", "num-steps", "iters", "max-iters", "total-steps", "max-train-steps", "num-train-steps", "train-steps", "train-iters"},
	"batch-size":          {"per-device-train-batch-size", "micro-batch-size", "train-batch-size", "per-gpu-train-batch-size", "batch", "global-batch-size", "device-batch-size", "total-batch-size"},
	"grad-accum":          {"gradient-accumulation-steps", "accumulate-grad-batches", "grad-accumulation-steps", "gradient-accumulation"},
	"seq-len":             {"max-length", "max-seq-length", "max-seq-len", "sequence-len", "sequence-length", "cutoff-len", "block-size", "context-length", "seq-length", "model-max-length", "max-sequence-length", "n-ctx"},
	"learning-rate":       {"peak-lr", "base-lr", "max-lr"},
	"warmup-steps":        {"num-warmup-steps", "warmup-iters", "lr-warmup-steps", "warmup"},
	"lr-schedule":         {"lr-scheduler-type", "lr-scheduler", "scheduler", "lr-decay-style"},
	"min-lr-ratio":        {"min-lr-rate", "cosine-min-lr-ratio", "min-lr"},
	"beta1":               {"adam-beta1"},
	"beta2":               {"adam-beta2"},
	"adam-eps":            {"adam-epsilon", "eps"},
	"weight-decay":        {"wd"},
	"max-grad-norm":       {"gradient-clipping", "grad-clip", "gradient-clip-val", "max-norm", "clip-grad"},
	"router-balance":      {"router-aux-loss-coef", "aux-loss-coef"},
	"seed":                {"data-seed", "random-seed"},
	"dtype":               {"precision", "mixed-precision", "torch-dtype", "bf16", "fp16", "fp32", "tf32", "pure-bf16", "half"},
	"backend":             {"device-map", "accelerator", "no-cuda", "use-cpu", "cpu", "use-gpu", "use-mps-device"},
	"device":              {"gpu", "gpu-id", "local-rank", "cuda-device"},
	"gpus":                {"num-gpus", "nproc-per-node", "num-processes", "n-gpu", "devices"},
	"recompute":           {"gradient-checkpointing", "activation-checkpointing", "use-gradient-checkpointing"},
	"no-shuffle":          {"shuffle", "shuffle-dataset", "no-shuffle-dataset"},
	"packing":             {"sample-packing", "neat-packing", "group-texts"},
	"document-mask":       {"varlen", "document-masking", "block-diagonal-mask"},
	"chat-template":       {"chat-template-path", "template", "chat-template-jinja"},
	"assistant-only":      {"assistant-only-loss", "train-on-inputs", "completion-only-loss", "train-on-prompt", "mask-history"},
	"eval-data":           {"eval-dataset", "validation-file", "test-datasets", "val-data", "eval-file", "eval-datasets", "validation-data"},
	"val-fraction":        {"val-set-size", "validation-split", "test-size", "val-size", "validation-split-percentage", "eval-split"},
	"eval-every":          {"eval-steps", "eval-strategy", "evaluation-strategy", "eval-interval", "evals-per-epoch", "do-eval"},
	"log-every":           {"logging-steps", "log-steps", "log-interval", "logging-strategy"},
	"checkpoint-every":    {"save-steps", "saves-per-epoch", "save-strategy", "save-interval", "checkpointing-steps", "save-every"},
	"checkpoint-interval": {"save-minutes"},
	"keep-checkpoints":    {"save-total-limit", "checkpoints-total-limit"},
	"resume":              {"resume-from-checkpoint", "auto-resume-from-checkpoints", "resume-from", "restore"},
	"allow-changed":       {"ignore-data-skip"},
	"supervise":           {"max-restarts", "auto-restart"},
	"text-field":          {"dataset-text-field", "text-column", "field", "content-field", "dataset-text-column", "text-column-name"},
	"messages-field":      {"messages-column", "conversation-field", "field-messages", "messages", "dataset-messages-field"},
	"lora":                {"use-peft", "use-lora", "peft", "finetuning-type", "qlora"},
	"lora-rank":           {"lora-r", "r"},
	"lora-targets":        {"target-modules", "lora-target-modules", "lora-target", "lora-target-linear"},
	"on-policy":           {"lmbda", "on-policy-fraction", "student-data-fraction"},

	"on-policy-max-tokens": {"max-new-tokens", "max-completion-length"},
}

// distillAdvice is what to do about flags and keys of the same programs that no option stands for.
var distillAdvice = advise(map[string]string{
	"apr always uses AdamW: leave it out":                                                                  "optim optimizer optimizer-type",
	"attention is always computed in tiles: leave it out":                                                  "flash-attention attn-implementation flash-attn use-flash-attention-2 sdp-attention xformers-attention",
	"code of a model's repository is never executed: leave it out":                                         "trust-remote-code",
	"the student is what --student names; apr quantize makes a 4-bit teacher, whose blocks stay in memory": "load-in-4bit load-in-8bit quantization quantization-bit bnb-4bit-quant-type",
	"apr runs serve shows runs in a browser; a run also holds a file for TensorBoard":                      "report-to wandb-project wandb-entity wandb-run-name wandb use-wandb logging-dir",
	"one process with one GPU: leave it out":                                                               "fsdp fsdp-config deepspeed ddp-find-unused-parameters tensor-parallel-size",
	"apr export writes the student for a hub; nothing is uploaded":                                         "push-to-hub hub-model-id hub-token",
	"--student-config makes a student with random weights":                                                 "from-scratch random-init",
	"apr distill trains; apr eval scores":                                                                  "do-train do-predict",
	"memory is planned, and the batch cut to fit: leave it out":                                            "auto-find-batch-size dataloader-num-workers dataloader-pin-memory group-by-length",
	"the content decides which form records have: apr help data":                                           "type dataset-format data-format ds-type format",
	"apr does distillation alone":                                                                          "rl reward-model dpo ppo grpo",

	"distill takes what is free; apr plan --memory 24 says what fits": "memory max-memory gpu-memory vram",
})

// advise turns texts with the words they are for into advice by word.
func advise(words map[string]string) map[string]string {
	all := map[string]string{}
	for text, list := range words {
		for _, word := range strings.Fields(list) {
			all[word] = text
		}
	}
	return all
}

// strayOfDistill says what a second argument may have been meant as.
func strayOfDistill(arg string) string {
	switch {
	case strings.HasSuffix(arg, ".json"):
		return "--student-config " + shellWord(arg) + " makes a new student by it"
	case corpusEndings.MatchString(arg):
		return "--data " + shellWord(arg) + " trains on it"
	}
	return "--student " + shellWord(arg) + " starts from that model"
}

// corpusEndings end the names of data.
var corpusEndings = regexp.MustCompile(`(?i)\.(jsonl|ndjson|parquet|csv|tsv|txt|md)(\.(gz|zst|xz))?$`)

// distillFirst are the flags that a first run needs.
var distillFirst = []string{"student", "student-config", "data", "output", "steps", "batch-size", "seq-len", "learning-rate", "control", "resume"}

// known adds to a table the names of other programs, and which flags come first in the help.
func known(table []cli.Option, foreign map[string][]string, first ...string) []cli.Option {
	for i := range table {
		table[i].Foreign = foreign[table[i].Name]
		table[i].First = slices.Contains(first, table[i].Name)
	}
	return table
}

// ofDistill marks options that plan and dispatch share with distill: their help refers to that of distill.
func ofDistill(table []cli.Option) []cli.Option {
	for i := range table {
		table[i].ListedBy = "apr distill"
	}
	return table
}
