package main

import "apr/internal/cli"

// distillBits says of every option of distill whether it can change the bits of the student. A resumed run is compared in those
// that can: by value, or by what they lead to (distill/resume.go). The tests of this table fail on an option that is not in it.
var distillBits = map[string]cli.Bits{
	// weights, configurations and ids are compared by their hashes
	"teacher": cli.BitsByEffect, "teachers": cli.BitsByEffect, "route": cli.BitsByEffect, "student": cli.BitsByEffect, "student-config": cli.BitsByEffect,
	"data": cli.BitsByEffect, "dataset": cli.BitsByEffect, "text-field": cli.BitsByEffect, "messages-field": cli.BitsByEffect,
	"eval-data":  cli.BitsByEffect, // given, nothing of --data is held out
	"data-cache": cli.SameBits, "output": cli.SameBits, "force": cli.SameBits,

	"alpha": cli.BitsByValue, "temperature": cli.BitsByValue, "divergence": cli.BitsByValue,
	"divergence-beta": cli.BitsByValue, "strategy": cli.BitsByValue, "align": cli.BitsByValue,
	"hidden-weight": cli.BitsByValue, "layer-map": cli.BitsByValue, "attention-weight": cli.BitsByValue, "teacher-weights": cli.BitsByValue, "ensemble": cli.BitsByValue,

	// the schedule is compared as resolved: its steps and those of its warm-up
	"epochs": cli.BitsByEffect, "steps": cli.BitsByEffect, "warmup-steps": cli.BitsByEffect, "warmup-ratio": cli.BitsByEffect,
	"max-steps":  cli.SameBits,
	"batch-size": cli.BitsByValue, "grad-accum": cli.BitsByValue, "seq-len": cli.BitsByValue,
	"learning-rate": cli.BitsByValue, "lr-schedule": cli.BitsByValue, "min-lr-ratio": cli.BitsByValue,
	"beta1": cli.BitsByValue, "beta2": cli.BitsByValue, "adam-eps": cli.BitsByValue, "weight-decay": cli.BitsByValue,
	"max-grad-norm": cli.BitsByValue, "max-loss-ratio": cli.BitsByValue, "router-balance": cli.BitsByValue, "seed": cli.BitsByValue,

	// the device, its arithmetic and the teacher's backend are compared as chosen
	"dtype": cli.BitsByEffect, "backend": cli.BitsByEffect, "device": cli.BitsByEffect, "teacher-backend": cli.BitsByEffect,
	"teacher-gemm": cli.BitsByEffect, "probe": cli.BitsByEffect, "teacher-experts": cli.SameBits,
	// how the rows of a step are added is compared as "ranks"
	"world-size": cli.BitsByEffect, "deterministic": cli.BitsByEffect, "rank": cli.SameBits, "rendezvous": cli.SameBits,
	"rendezvous-timeout": cli.SameBits, "elastic": cli.SameBits, "teacher-ranks": cli.SameBits,
	"teacher-split": cli.SameBits,
	"gpus":          cli.BitsByEffect, "chunk-rows": cli.BitsByValue, "teacher-cache": cli.BitsByValue,
	"recompute": cli.SameBits, "managed-memory": cli.SameBits,
	"stall-timeout": cli.SameBits, "supervise": cli.SameBits, "kernel-log": cli.SameBits,

	"no-shuffle": cli.BitsByValue, "packing": cli.BitsByValue, "document-mask": cli.BitsByValue, "chat-template": cli.BitsByValue, "assistant-only": cli.BitsByValue, "val-fraction": cli.BitsByValue,

	"eval-every": cli.SameBits, "samples": cli.SameBits, "log-every": cli.SameBits, "checkpoint-every": cli.SameBits, "checkpoint-interval": cli.SameBits,
	"keep-checkpoints": cli.SameBits, "resume": cli.SameBits, "allow-changed": cli.SameBits, "allow-same-model": cli.SameBits, oddWeights: cli.SameBits,
	"control": cli.SameBits,                            // a student of its own
	"stage":   cli.SameBits, "cache": cli.BitsByEffect, // of a cache the manifest is compared
	// of draws their number and seed are compared; hidden states are the live run's
	"teacher-logits": cli.BitsByEffect, "cache-kind": cli.BitsByEffect, "draws": cli.BitsByEffect,
	// of no student
	"token-file": cli.SameBits, "tls-ca": cli.SameBits, "cache-entropy": cli.SameBits, "shard": cli.SameBits,
	"shard-count": cli.SameBits, "shard-size": cli.SameBits,
	"plan": cli.SameBits, "runs-dir": cli.SameBits,
	"expect": cli.SameBits, // other inputs are refused

	// of text, which training reads as any other
	"max-tokens": cli.SameBits, "sampling-temperature": cli.SameBits, "top-p": cli.SameBits, "target-tokens": cli.SameBits,
	"min-completion-tokens": cli.SameBits, "max-prompt-chars": cli.SameBits, "slots": cli.SameBits,

	"on-policy": cli.BitsByValue, "on-policy-max-tokens": cli.BitsByValue, "on-policy-prompt-tokens": cli.BitsByValue,
	"on-policy-estimator": cli.BitsByValue, "on-policy-lag": cli.BitsByValue, "samples-per-prompt": cli.BitsByValue,

	"quantize-aware": cli.BitsByValue, "quantize-search-every": cli.BitsByValue,

	"lora": cli.BitsByValue, "lora-rank": cli.BitsByValue, "lora-alpha": cli.BitsByValue, "lora-dropout": cli.BitsByValue,
	"lora-targets": cli.BitsByValue, "lora-merge": cli.SameBits, "adapter": cli.BitsByEffect,
}
