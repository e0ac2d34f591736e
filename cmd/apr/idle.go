package main

import (
	"apr/internal/cli"
	"apr/internal/fault"
)

// idle is an option that changes nothing as long as others stand as they do. A value that is accepted and has no effect passes for
// one that has: its figures would be another setting's. Defaults and values that say "off" are no such mistake.
type idle struct {
	option string // its name
	when   bool   // it was asked for, and others make it idle
	why    string // these others: "with --alpha 0", "without --resume"
}

// refuseIdle refuses the first idle option.
func refuseIdle(all []idle) error {
	for _, i := range all {
		if i.when {
			return fault.New(fault.Usage, "--%s has no effect %s", i.option, i.why)
		}
	}
	return nil
}

// idleOptions are those of a distillation. What only the data shows is refused when it is read.
func (o *distillOptions) idleOptions(s cli.Settings) []idle {
	plain := o.Divergence == "forward-kl" || o.Divergence == "reverse-kl" || o.Divergence == "tvd"
	ce, constant := o.Alpha == 0, o.LRSchedule == "constant"
	nothingHeld := len(o.EvalData) == 0 && o.ValFraction == 0
	shards := o.Dataset != "" && len(o.EvalData) == 0 // no document is read
	withoutLoRA, withAdapter := "without --lora", "with --adapter, which has its own"
	withShards := "with --dataset: token shards hold no documents"
	return append(o.policyIdle(s), []idle{
		{"teacher-split", o.TeacherSplit && o.TeacherRanks == 0, "without --teacher-ranks"},
		{"quantize-search-every", s.Given("quantize-search-every") && o.QuantizeAware == "", "without --quantize-aware"},
		{"divergence-beta", s.Changed("divergence-beta") && plain, "with --divergence " + o.Divergence + ": it belongs to jsd, skew-forward and skew-reverse"},
		{"divergence", s.Changed("divergence") && ce, "with --alpha 0: no loss compares with the teacher"},
		{"divergence-beta", s.Changed("divergence-beta") && ce, "with --alpha 0: no loss compares with the teacher"},
		{"temperature", s.Changed("temperature") && ce, "with --alpha 0: no loss compares with the teacher"},
		{"align", s.Changed("align") && ce, "with --alpha 0: no loss compares with the teacher"},
		{"control", o.Control == "ce" && ce, "with --alpha 0: the control would be the same student"},
		{"min-lr-ratio", s.Changed("min-lr-ratio") && o.MinLRRatio != 1 && constant, "with --lr-schedule constant"},
		{"eval-every", s.Changed("eval-every") && o.EvalEvery > 0 && nothingHeld, "with --val-fraction 0 and without --eval-data: no text is held out"},
		{"samples", s.Changed("samples") && o.Samples > 0 && nothingHeld, "with --val-fraction 0 and without --eval-data: no text is held out"},
		{"allow-changed", o.AllowChanged && o.Resume == "", "without --resume"},
		{"teacher-cache", o.TeacherCache == "bf16" && o.TeacherBackend == "q4k", "with --teacher-backend q4k, which keeps blocks"},
		{"teacher-cache", o.TeacherCache == "bf16" && o.TeacherBackend == "stream",
			"with --teacher-backend stream, which keeps blocks"},
		{"teacher-cache", o.TeacherCache == "off" && o.TeacherBackend == "cublas", "with --teacher-backend cublas, which expands blocks"},
		{"lora-rank", s.Changed("lora-rank") && !o.LoRA, withoutLoRA},
		{"lora-alpha", s.Changed("lora-alpha") && !o.LoRA, withoutLoRA},
		{"lora-dropout", s.Changed("lora-dropout") && !o.LoRA, withoutLoRA},
		{"lora-targets", s.Changed("lora-targets") && !o.LoRA, withoutLoRA},
		{"lora-merge", s.Changed("lora-merge") && !o.LoRA, withoutLoRA},
		{"adapter", o.Adapter != "" && !o.LoRA, withoutLoRA},
		{"lora-rank", s.Changed("lora-rank") && o.Adapter != "", withAdapter},
		{"lora-alpha", s.Changed("lora-alpha") && o.Adapter != "", withAdapter},
		{"lora-targets", s.Changed("lora-targets") && o.Adapter != "", withAdapter},
		{"text-field", s.Changed("text-field") && shards, withShards},
		{"messages-field", s.Changed("messages-field") && shards, withShards},
		{"chat-template", s.Changed("chat-template") && o.ChatTemplate != "none" && shards, withShards},
		{"assistant-only", s.Given("assistant-only") && o.AssistantOnly && shards, withShards},
		{"data-cache", s.Changed("data-cache") && o.DataCache != "off" && shards, withShards},
	}...)
}

// forTalks are the options that were asked for and only have a meaning for conversations.
func (o *distillOptions) forTalks(s cli.Settings) []string {
	flags := s.Asked("messages-field")
	if s.Changed("chat-template") && o.ChatTemplate != "none" {
		flags = append(flags, "--chat-template")
	}
	if s.Given("assistant-only") && o.AssistantOnly {
		flags = append(flags, "--assistant-only")
	}
	return flags
}
