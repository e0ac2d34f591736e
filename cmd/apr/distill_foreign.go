package main

import (
	"slices"

	"apr/internal/cli"
)

// distillForeign are the names that transformers, TRL, axolotl, LLaMA-Factory and their like give to options of distill. They
// are not accepted, since a value may mean something else there; the error names the option.
var distillForeign = map[string][]string{
	"teacher":          {"teacher-model", "teacher-model-name-or-path", "kd-teacher", "base-teacher"},
	"student":          {"model", "model-name-or-path", "base-model", "student-model", "model-id", "pretrained-model-name-or-path"},
	"data":             {"datasets", "train-file", "train-data", "data-path", "dataset-path", "dataset-name", "train-dataset", "training-data"},
	"dataset":          {"tokenized-dataset", "dataset-prepared-path"},
	"output":           {"output-dir", "save-dir", "out"},
	"force":            {"overwrite-output-dir", "overwrite"},
	"alpha":            {"kd-alpha", "distillation-alpha"},
	"temperature":      {"kd-temperature", "distillation-temperature", "temp"},
	"divergence":       {"loss-type", "kd-loss"},
	"divergence-beta":  {"beta"},
	"epochs":           {"num-train-epochs", "num-epochs", "max-epochs"},
	"steps":            {"max-steps", "num-steps", "iters", "max-iters", "total-steps"},
	"batch-size":       {"per-device-train-batch-size", "micro-batch-size", "train-batch-size", "per-gpu-train-batch-size", "batch"},
	"grad-accum":       {"gradient-accumulation-steps", "accumulate-grad-batches", "grad-accumulation-steps"},
	"seq-len":          {"max-length", "max-seq-length", "max-seq-len", "sequence-len", "sequence-length", "cutoff-len", "block-size", "context-length"},
	"warmup-steps":     {"num-warmup-steps"},
	"lr-schedule":      {"lr-scheduler-type", "lr-scheduler", "scheduler"},
	"min-lr-ratio":     {"min-lr-rate", "cosine-min-lr-ratio"},
	"beta1":            {"adam-beta1"},
	"beta2":            {"adam-beta2"},
	"adam-eps":         {"adam-epsilon", "eps"},
	"max-grad-norm":    {"gradient-clipping", "grad-clip", "gradient-clip-val", "max-norm"},
	"dtype":            {"precision", "mixed-precision", "torch-dtype", "bf16", "fp16", "fp32", "tf32"},
	"backend":          {"device-map", "accelerator", "no-cuda", "use-cpu"},
	"device":           {"gpu", "gpu-id", "local-rank"},
	"gpus":             {"num-gpus", "nproc-per-node", "num-processes", "n-gpu"},
	"recompute":        {"gradient-checkpointing", "activation-checkpointing"},
	"packing":          {"sample-packing"},
	"chat-template":    {"chat-template-path", "template"},
	"assistant-only":   {"assistant-only-loss", "train-on-inputs", "completion-only-loss"},
	"eval-data":        {"eval-dataset", "validation-file", "test-datasets", "val-data"},
	"val-fraction":     {"val-set-size", "validation-split", "test-size"},
	"eval-every":       {"eval-steps", "eval-strategy", "evaluation-strategy", "eval-interval"},
	"log-every":        {"logging-steps", "log-steps", "log-interval"},
	"checkpoint-every": {"save-steps", "saves-per-epoch", "save-strategy", "save-interval"},
	"keep-checkpoints": {"save-total-limit"},
	"resume":           {"resume-from-checkpoint", "auto-resume-from-checkpoints"},
	"text-field":       {"dataset-text-field", "text-column", "field"},
	"messages-field":   {"messages-column", "conversation-field"},
	"lora-rank":        {"lora-r", "r"},
	"lora-targets":     {"target-modules", "lora-target-modules", "lora-target"},
}

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

// ofDistill are options that the help of a command leaves to that of distill.
func ofDistill(table []cli.Option) []cli.Option {
	for i := range table {
		table[i].ListedBy = "apr distill"
	}
	return table
}
