package adapter

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"apr/arch"
	"apr/format/safetensors"
	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/strictjson"
)

// prefix is before the names of PEFT's tensors.
const prefix = "base_model.model."

// Keys of a safetensors file's metadata.
const (
	normsKey = "apr.base_norms_sha256"
	timesKey = "apr.base_holds"
	baseKey  = "apr.base"
)

// neutral are the keys of adapter_config.json that change what an adapter computes, with what we say of them; they must be absent, null,
// false, empty, or "none".
var neutral = map[string]string{
	"use_dora": "DoRA", "use_qalora": "QALoRA", "use_bdlora": "BD-LoRA", "modules_to_save": "trained modules beside the adapters",
	"target_parameters": "adapters of parameters", "trainable_token_indices": "trained tokens", "bias": "trained biases", "lora_bias": "biases of adapters",
	"fan_in_fan_out": "matrices that are stored transposed", "layer_replication": "repeated layers", "alora_invocation_tokens": "activated LoRA",
	"arrow_config": "Arrow", "kasa_config": "KaSA", "monteclora_config": "MonteCLoRA", "velora_config": "VeLoRA",
}

// ignored are keys that decide nothing about a trained adapter.
var ignored = []string{
	"auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "inference_mode",
	"loftq_config", "lora_ga_config", "megatron_config", "megatron_core", "peft_version", "qalora_group_size",
	"revision", "task_type", "runtime_config",
}

// settings are what a configuration says of every matrix.
type settings struct {
	rank           int
	alpha, dropout float64
	rslora         bool
	ranks, alphas  []pattern
	base           string
	chosen         chosen
}

// pattern is a key of rank_pattern or alpha_pattern.
type pattern struct {
	match *regexp.Regexp
	value float64
}

// readSettings reads adapter_config.json.
func readSettings(path string) (s settings, err error) {
	v, err := strictjson.ParseFile(path, 1<<20, strictjson.Options{})
	if err != nil {
		return s, err
	}
	f := strictjson.NewFields(v)
	if kind := f.StrOr("peft_type", "LORA"); f.Err() == nil && kind != "LORA" {
		return s, fault.In(fault.Unavailable, path, "is an adapter of type %s; LORA is read", kind).At("key %q", "peft_type").WithID("E-ADAPTER-010")
	}
	s.rank, s.alpha, s.dropout = int(f.Uint("r")), f.Float("lora_alpha"), f.FloatOr("lora_dropout", 0)
	s.rslora, s.base = f.BoolOr("use_rslora", false), f.StrOr("base_model_name_or_path", "")
	if err := f.Err(); err != nil {
		return s, fault.In(fault.Format, path, "%v", err).WithID("E-ADAPTER-011")
	}
	if s.rank < 1 || s.rank > 1<<20 {
		return s, fault.In(fault.Format, path, "%d is not a rank", s.rank).At("key %q", "r").WithID("E-ADAPTER-012")
	}
	for key, v := range v.Members() {
		if err := s.key(path, key, v); err != nil {
			return s, err
		}
	}
	return s, nil
}

// key judges a member that is not a plain setting.
func (s *settings) key(path, key string, v strictjson.Value) (err error) {
	switch key {
	case "peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora":
	case "rank_pattern":
		s.ranks, err = patterns(path, key, v)
	case "alpha_pattern":
		s.alphas, err = patterns(path, key, v)
	case "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern":
		err = s.chosen.key(path, key, v)
	case "init_lora_weights":
		if how, e := v.Str(); e == nil && !slices.Contains([]string{"gaussian", "eva", "orthogonal"}, how) {
			return fault.In(fault.Unavailable, path, "%q changed the base model, which is not this one any more", how).At("key %q", key).
				WithHint("convert the adapter with PEFT's path_initial_model_for_weight_conversion").WithID("E-ADAPTER-013")
		}
	default:
		if slices.Contains(ignored, key) || empty(v) {
			return nil
		}
		what, ok := neutral[key]
		if !ok {
			return fault.In(fault.Unavailable, path, "is a key that is not known, and may change what the adapter computes").At("key %q", key).WithID("E-ADAPTER-014")
		}
		return fault.In(fault.Unavailable, path, "%s: not read", what).At("key %q", key).
			WithHint("merge this adapter with PEFT first").WithID("E-ADAPTER-015")
	}
	return err
}

// empty reports whether a value says nothing: null, false, "none", an empty list or object.
func empty(v strictjson.Value) bool {
	switch v.Kind() {
	case strictjson.Null:
		return true
	case strictjson.Bool:
		b, _ := v.Bool()
		return !b
	case strictjson.String:
		s, _ := v.Str()
		return s == "" || s == "none"
	case strictjson.Array, strictjson.Object:
		return v.Len() == 0
	}
	return false
}

// patterns reads an object of regular expressions that are matched from a dot or the beginning of a module's name to its end.
func patterns(path, key string, v strictjson.Value) (list []pattern, err error) {
	if v.Kind() == strictjson.Null {
		return nil, nil
	}
	if err := v.Expect(strictjson.Object); err != nil {
		return nil, fault.In(fault.Format, path, "%v", err).At("key %q", key).WithID("E-ADAPTER-011")
	}
	for name, v := range v.Members() {
		x, err := v.Float64()
		re, bad := regexp.Compile(`^(?:.*\.)?(?:` + strings.TrimPrefix(name, "^") + `)$`)
		if err := errors.Join(err, bad); err != nil || !(x > 0) {
			return nil, fault.In(fault.Format, path, "%q: is no pattern with a positive number", name).At("key %q", key).Because(err).WithID("E-ADAPTER-011")
		}
		list = append(list, pattern{re, x})
	}
	return list, nil
}

// of returns the value of the first pattern that matches, or the default.
func of(list []pattern, module string, def float64) float64 {
	for _, p := range list {
		if p.match.MatchString(module) {
			return p.value
		}
	}
	return def
}

// scale returns the rank and the scale of a module.
func (s settings) scale(module string) (rank int, scale float64) {
	rank = int(of(s.ranks, module, float64(s.rank)))
	alpha := of(s.alphas, module, s.alpha)
	if s.rslora {
		return rank, alpha / math.Sqrt(float64(rank))
	}
	return rank, alpha / float64(rank)
}

// readPEFT reads a folder of PEFT for a model of description c.
func readPEFT(dir string, c arch.Config, odd bool) (*Adapter, error) {
	s, err := readSettings(filepath.Join(dir, configName))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, weightsName)
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	by, err := pairs(path, f.Tensors(), splitPEFT)
	if err != nil {
		return nil, err
	}
	a := &Adapter{Base: s.base, Dropout: s.dropout, Norms: f.Metadata()[normsKey],
		Times: f.Metadata()[timesKey], folder: dir}
	slots, used := Slots(c), map[string][]Module{}
	left := 0
	for _, name := range slices.Sorted(maps.Keys(by)) {
		module := strings.TrimSuffix(name, ".weight")
		if why := s.chosen.leaves(module); why != "" {
			left++
			a.warn(path, "%s of %s leaves out %s, whose adapter the file has: PEFT does not apply it, and neither is it here",
				why, configName, module)
			continue
		}
		rank, scale := s.scale(module)
		if p := by[name]; p.a.Shape[0] != rank {
			return nil, fault.In(fault.Invalid, path, "has rank %d; %s says %d", p.a.Shape[0], configName, rank).At("matrix %q", module).WithID("E-ADAPTER-016")
		}
		text, _ := arch.TextName(name)
		ms, err := by[name].modules(path, text, slots, func(s arch.Slot) arch.Place { return s.HF }, scale)
		if err != nil {
			return nil, err
		}
		a.Modules, used[name] = append(a.Modules, ms...), ms
	}
	if left > maxWarnings {
		a.Warnings[maxWarnings-1] = fmt.Sprintf("%s: %d matrices in all are left out by %s", path, left, configName)
	}
	a.lacks(path, s.chosen, slots, used)
	if err := f.Verify(); err != nil {
		return nil, err
	}
	return a, a.damage(path, by, used, odd)
}

// lacks warns of matrices that the configuration names and the file has no adapter of: it may have been written in part.
func (a *Adapter) lacks(path string, named chosen, slots []arch.Slot, used map[string][]Module) {
	has := map[string]bool{}
	for _, ms := range used {
		for _, m := range ms {
			has[m.Slot.Name] = true
		}
	}
	var missing []string
	all := 0
	for _, s := range slots {
		if module := strings.TrimSuffix(s.HF.Name, ".weight"); target(s) == "" || !named.target.given() || named.leaves(module) != "" {
			continue
		}
		if all++; !has[s.Name] {
			missing = append(missing, s.Name)
		}
	}
	if len(missing) > 0 {
		a.warn(path, "has no adapter of %d of the %d matrices that %s names, %s among them: was all of it written?",
			len(missing), all, configName, missing[0])
	}
}

// splitPEFT returns the matrix of a tensor, and which of the two it is.
func splitPEFT(name string) (matrix, which string, ok bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if m, is := strings.CutSuffix(rest, ".lora_A.weight"); is && ok {
		return m + ".weight", "a", true
	}
	m, is := strings.CutSuffix(rest, ".lora_B.weight")
	return m + ".weight", "b", is && ok
}

// SavePEFT writes the adapter as a folder that PEFT loads, and returns the names of its files. A folder that holds
// anything is refused without force; with it, what else it holds stays.
func (a *Adapter) SavePEFT(dir string, force bool) ([]string, error) {
	all, err := a.placed(func(s arch.Slot) arch.Place { return s.HF })
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(a.peftConfig(all), "", "  ")
	if err != nil {
		return nil, err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 && !force {
		return nil, fault.In(fault.Invalid, dir, "already exists and is not empty").WithHint("give --force to write into it")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be created").Because(err)
	}
	config, err := atomicfile.Create(filepath.Join(dir, configName), force)
	if err != nil {
		return nil, err
	}
	defer config.Close()
	if _, err := config.Write(append(text, '\n')); err != nil {
		return nil, err
	}
	meta := map[string]string{"format": "pt"}
	if a.Norms != "" {
		meta[normsKey] = a.Norms
	}
	if a.Times != "" {
		meta[timesKey] = a.Times
	}
	err = safetensors.Write(filepath.Join(dir, weightsName), sources(all, func(s stored, which string) string {
		return prefix + strings.TrimSuffix(s.name, ".weight") + ".lora_" + strings.ToUpper(which) + ".weight"
	}), safetensors.Options{Force: force, Metadata: meta})
	if err != nil {
		return nil, err
	}
	return []string{configName, weightsName}, config.Commit()
}

// peftConfig returns adapter_config.json: rank and alpha of the first matrix, patterns for those that differ.
func (a *Adapter) peftConfig(all []stored) map[string]any {
	first := all[0]
	ranks, alphas, targets := map[string]any{}, map[string]any{}, map[string]bool{}
	byLeaf := map[string][]stored{}
	for _, s := range all {
		byLeaf[leaf(s.name)] = append(byLeaf[leaf(s.name)], s)
	}
	for name, list := range byLeaf {
		targets[name] = true
		alike := !slices.ContainsFunc(list, func(s stored) bool { return s.rank != list[0].rank || s.scale != list[0].scale })
		for _, s := range list {
			key := name
			if !alike {
				key = strings.TrimSuffix(s.name, ".weight")
			}
			if s.rank != first.rank {
				ranks[key] = s.rank
			}
			if alpha := s.alpha(); alpha != first.alpha() {
				alphas[key] = number(alpha)
			}
		}
	}
	return map[string]any{
		"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": a.Base, "revision": nil, "inference_mode": true,
		"r": first.rank, "lora_alpha": number(first.alpha()), "lora_dropout": a.Dropout, "rank_pattern": ranks, "alpha_pattern": alphas,
		"target_modules": slices.Sorted(maps.Keys(targets)), "bias": "none", "fan_in_fan_out": false, "init_lora_weights": true,
		"layers_pattern": nil, "layers_to_transform": nil, "modules_to_save": nil, "use_dora": false, "use_rslora": false,
	}
}

// leaf is the last part of a module's name.
func leaf(name string) string {
	name = strings.TrimSuffix(name, ".weight")
	return name[strings.LastIndex(name, ".")+1:]
}

// alpha is lora_alpha of the tensor's scale and rank.
func (s stored) alpha() float64 { return s.scale * float64(s.rank) }

// number is x as PEFT writes it: an integer if it is one.
func number(x float64) any {
	if x == math.Trunc(x) && math.Abs(x) < 1<<50 {
		return int64(x)
	}
	return x
}
