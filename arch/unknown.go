package arch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

// harmless are keys of public configurations that decide nothing here: which program wrote the file, how it trains, what
// it returns, and the defaults of transformers' own base class, which older versions wrote out.
var harmless = []string{
	"_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash", "_experts_implementation_internal",
	"_name_or_path", "architectures", "attention_dropout", "attn_implementation", "bad_words_ids", "begin_suppress_tokens", "cache_implementation",
	"chunk_size_feed_forward", "classifier_dropout", "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample",
	"dropout", "dtype", "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "finetuning_task",
	"forced_bos_token_id", "forced_eos_token_id", "hidden_dropout", "id2label", "is_decoder", "is_llama_config", "label2id",
	"length_penalty", "mask_token_id", "max_length", "min_length", "model_max_length", "name", "neftune_noise_alpha", "no_repeat_ngram_size",
	"num_beam_groups", "num_beams", "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
	"prefix", "pretraining_tp", "problem_type", "pruned_heads", "remove_invalid_values", "repetition_penalty", "resid_pdrop", "return_dict",
	"return_dict_in_generate", "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "suppress_tokens", "task_specific_params",
	"temperature", "tf_legacy_loss", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers.js_config",
	"transformers_version", "typical_p", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
}

// harmlessIf are keys that decide nothing with one value: it is what models do whose family does not read the key.
var harmlessIf = map[string]bool{
	"add_cross_attention": false, "attention_bias": false, "is_encoder_decoder": false, "mlp_bias": false, "rope_interleaved": false,
	"tie_encoder_decoder": false, "use_mrope": false, "use_qk_norm": false, "use_sliding_window": false,
}

// unknownKey is a key that was never read.
type unknownKey struct {
	key, in, near string // in: of which member; near: a known key that may be meant
	at            strictjson.Value
}

// unknownKeys is the refusal of all of them.
type unknownKeys struct {
	family string
	list   []unknownKey
}

// unknown returns an error about all keys that were never read. A null decides nothing, unless its key looks misspelt:
// then the key that was meant has its default.
func (k *keys) unknown() error {
	list := k.foreign("")
	if len(list) == 0 {
		return nil
	}
	return &unknownKeys{k.family, list}
}

// foreign lists the keys of the member in that were never read.
func (k *keys) foreign(in string) (list []unknownKey) {
	known := slices.Sorted(maps.Keys(k.seen))
	absent := slices.DeleteFunc(slices.Clone(known), k.fields.Has)
	for key, v := range k.obj.Members() {
		only, conditional := harmlessIf[key]
		is, err := v.Bool()
		if k.seen[key] || slices.Contains(harmless, key) || slices.Contains(k.allow, key) || conditional && err == nil && is == only {
			continue
		}
		u := unknownKey{key: key, in: in, at: v}
		if i := slices.IndexFunc(known, func(s string) bool { return oneEdit(key, s) }); i >= 0 {
			u.near = known[i]
		}
		if v.Kind() != strictjson.Null || u.near != "" {
			u.near = cmp.Or(u.near, fault.Nearest(key, absent))
			list = append(list, u)
		}
	}
	for _, u := range k.within {
		if !slices.ContainsFunc(list, func(o unknownKey) bool { return o.at.Offset() == u.at.Offset() }) {
			list = append(list, u) // a member is read for each type of layer
		}
	}
	return list
}

// inside keeps the keys of s, which is the member in, that were never read.
func (k *keys) inside(in string, s *keys) {
	k.keep(s.Err())
	k.within = append(k.within, s.foreign(in)...)
}

// Error names all keys and their values.
func (e *unknownKeys) Error() string {
	family := e.family
	if family == "" {
		family = "this object"
	}
	if len(e.list) == 1 {
		return fmt.Sprintf("key %s with the value %s is not known for %s", e.list[0].name(), shown(e.list[0].at), family)
	}
	var names []string
	for _, u := range e.list {
		names = append(names, u.name()+" ("+shown(u.at)+")")
	}
	return fmt.Sprintf("keys %s are not known for %s", strings.Join(names, ", "), family)
}

func (u unknownKey) name() string {
	if u.in == "" {
		return fmt.Sprintf("%q", u.key)
	}
	return fmt.Sprintf("%q of %s", u.key, u.in)
}

// fault returns the refusal at the first key, with what was meant and the flags that accept all of them.
func (e *unknownKeys) fault(path, text string) error {
	line, column := strictjson.Position(text, e.list[0].at.Offset())
	f := fault.In(fault.Format, path, "%s", e.Error()).At("line %d, column %d", line, column).WithID("E-CONFIG-020")
	var meant, flags []string
	for _, u := range e.list {
		if u.near != "" && len(e.list) == 1 {
			meant = append(meant, fmt.Sprintf("%q", u.near))
		} else if u.near != "" {
			meant = append(meant, fmt.Sprintf("%q for %q", u.near, u.key))
		}
		if flag := "--allow-config-key " + u.key; !slices.Contains(flags, flag) {
			flags = append(flags, flag)
		}
	}
	hint := strings.Join(flags, " ") + " accepts the key unread"
	if len(flags) > 1 {
		hint = strings.Join(flags, " ") + " accepts them unread"
	}
	if meant != nil {
		hint = "did you mean " + strings.Join(meant, ", ") + "? " + hint
	}
	return f.WithHint("%s", hint)
}

// oneEdit reports whether one letter inserted, removed, changed or swapped with its neighbour makes b of a.
func oneEdit(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 || a == b {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	switch {
	case len(a) < len(b):
		return a[i:] == b[i+1:]
	case a[i+1:] == b[i+1:]:
		return true
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}

// remoteCode reads auto_map, which names Python code in the model's folder. That code is not run, and may compute something else
// than the family does: auto_map is refused. classes are exceptions: public models of the family carry copies of these classes from
// the time before transformers had them.
func (k *keys) remoteCode(classes []string) {
	for task, v := range k.value("auto_map").Members() {
		name, err := v.Str()
		class := name[strings.LastIndexByte(name, '.')+1:]
		if slices.Contains(k.allow, "auto_map") || err == nil && (slices.Contains(classes, class) || strings.HasPrefix(task, "AutoTokenizer")) {
			continue
		}
		k.fail("auto_map", "%s is code of the model's own, %s, which is not run and may compute something else than %s; --allow-config-key auto_map takes the model as %s",
			task, shown(v), k.family, k.family)
	}
}
