package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"apr/internal/fault"
)

// A choice is a way to set one thing of a run.
type choice struct {
	name  string
	flags []string
}

const pairedText = `
{"text": "package one\n\nimport \"fmt\"\n\nfunc main() {\n\tfmt.Println(1, 2, 3, 4)\n}\n", "source": "x"}
{"text": "package two\n\nfunc main() {\n\tos.Exit(2)\n}\n\nfunc add(a, b int) int { return a + b }\n", "source": "y"}
{"text": "package three\n\nimport \"io\"\n\nfunc all(w io.Writer) (int, error) { return 0, nil }\n", "source": "x"}
{"text": "package four\n\ntype pair struct{ a string }\n\nfunc (p pair) Text() string { return p.a }\n", "source": "y"}
`

const pairedStudent = `{"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64,
 "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4096,
 "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true,
 "eos_token_id": 4093}`

const pairedExperts = `{"model_type": "qwen3_moe", "hidden_size": 32, "intermediate_size": 64,
 "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "num_hidden_layers": 2, "num_attention_heads": 2,
 "head_dim": 16, "num_key_value_heads": 1, "vocab_size": 4096, "max_position_embeddings": 2048,
 "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true, "eos_token_id": 4093}`

// Every pair of settings trains, or is refused with a reason, while all other settings have their defaults. Settings
// that work one at a time may fail together.
func TestPairsOfOptions(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"text.jsonl": pairedText[1:], "student.json": pairedStudent,
		"experts.json": pairedExperts} {
		if err := os.WriteFile(path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	apr := func(args ...string) (int, string) {
		var out, log bytes.Buffer
		args = append(args, "-d", path("text.jsonl"), "--val-fraction", "0", "--backend", "cpu", "-q")
		environ := []string{"CUDA_VISIBLE_DEVICES=-1", "HOME=" + dir, "XDG_CACHE_HOME=" + dir}
		code := run(append([]string{"distill"}, args...), strings.NewReader(""), &out, &log, environ)
		return code, log.String()
	}
	must := func(args ...string) {
		if code, log := apr(args...); code != 0 {
			t.Fatalf("apr distill %q: exit %d: %s", args, code, log)
		}
	}
	teacher, blocks := "../../testdata/models/gosrc", "../../testdata/models/gosrc-q4_k_m.gguf"
	must(teacher, "--seq-len", "16", "--stage", "precompute", "-o", path("draws"))
	must(teacher, "--seq-len", "16", "--stage", "precompute", "--cache-kind", "hidden", "-o", path("hidden"))
	must(teacher, "--seq-len", "16", "--steps", "1", "--batch-size", "4", "--control", "none", "--student-config",
		path("student.json"), "-o", path("old"))
	old := path("old/student.apr")
	all := [][]choice{{ // the first of each is what others are tried with
		{"one teacher", []string{teacher}},
		{"blocks", []string{blocks}},
		{"draws", []string{"--stage", "train", "--cache", path("draws")}},
		{"hidden states", []string{"--stage", "train", "--cache", path("hidden")}},
		{"text alone", []string{teacher, "--alpha", "0"}},
		{"a mixture", []string{teacher, "--teachers", blocks, "--strategy", "ensemble", "--teacher-weights", "0.5,0.5"}},
		{"routes", []string{"--strategy", "ensemble", "--route", "x=" + teacher, "--route", "y=" + blocks}},
		{"hidden layers", []string{teacher, "--strategy", "progressive", "--hidden-weight", "0.1", "--layer-map", "0:1,1:5"}},
		{"attention maps", []string{teacher, "--attention-weight", "0.1", "--layer-map", "0:1"}},
		{"own rows", []string{teacher, "--on-policy", "0.5", "--on-policy-max-tokens", "4",
			"--on-policy-prompt-tokens", "4"}},
	}, {
		{"one rank", nil},
		{"any number of ranks", []string{"--deterministic=world"}},
	}, {
		{"a new student", []string{"--student-config", path("student.json")}},
		{"experts", []string{"--student-config", path("experts.json"), "--router-balance", "0.01"}},
		{"trained before", []string{"--student", old}},
		{"adapters", []string{"--student", old, "--lora", "--lora-rank", "4", "--lora-dropout", "0.1"}},
		{"in blocks", []string{"--student", old, "--quantize-aware", "q8_0"}},
	}, {
		{"forward KL", nil},
		{"reverse KL", []string{"--divergence", "reverse-kl"}},
		{"Jensen-Shannon", []string{"--divergence", "jsd", "--divergence-beta", "0.3"}},
		{"temperature 2", []string{"--temperature", "2"}},
	}, {
		{"one batch a step", nil},
		{"two batches a step", []string{"--grad-accum", "2"}},
		{"recomputing", []string{"--recompute", "blocks"}},
		{"control", []string{"--control", "ce"}},
		{"documents apart", []string{"--document-mask"}},
		{"a document a row", []string{"--no-packing"}},
	}}
	trained, tried := 0, 0
	for _, p := range pairs(all) {
		args := append([]string{"--steps", "2", "--batch-size", "4", "--seq-len", "16", "-o", path(fmt.Sprint("run",
			tried))}, p.flags...)
		if !slices.Contains(args, "--control") {
			args = append(args, "--control", "none")
		}
		code, log := apr(args...)
		tried++
		switch fault.Kind(code) {
		case 0:
			trained++
		case fault.Usage, fault.Invalid, fault.Unavailable: // refused by name
		default:
			t.Errorf("%s: exit %d: %s", p.name, code, log)
		}
	}
	if 4*trained < 3*tried {
		t.Errorf("%d of %d pairs train: what is refused is not tried", trained, tried)
	}
}

// pairs returns the flags of each two choices of different things, with the first of all others.
func pairs(all [][]choice) (out []choice) {
	for i, these := range all {
		for j, those := range all[:i] {
			for _, a := range these[1:] {
				for _, b := range those[1:] {
					var flags []string
					for k, c := range all {
						chosen := c[0]
						if k == i {
							chosen = a
						} else if k == j {
							chosen = b
						}
						flags = append(flags, chosen.flags...)
					}
					out = append(out, choice{a.name + ", " + b.name, flags})
				}
			}
		}
	}
	return out
}
