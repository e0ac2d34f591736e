package hub

import (
	"path"
	"slices"
	"strings"

	"apr/internal/fault"
)

// Part is how much of a model is wanted.
type Part int

// The parts.
const (
	Model     Part = iota // weights, configuration, tokenizer
	Tokenizer             // tokenizer and configuration only
)

// small are the files of a model beside its weights.
var small = []string{
	"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	"added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
}

const (
	configName    = "config.json"
	tokenizerName = "tokenizer.json"
	weights       = "*.safetensors"
	weightsIndex  = "*.safetensors.index.json"
)

// checkPatterns refuses globs that path.Match cannot read.
func checkPatterns(include []string) error {
	for _, pattern := range include {
		if _, err := path.Match(pattern, ""); err != nil {
			return fault.In(fault.Usage, "--include", "%q is not a glob", pattern).WithID("E-HUB-010")
		}
	}
	return nil
}

// matches reports whether a pattern matches a path: the whole path, or its last component if the pattern has wildcards and
// no slash.
func matches(pattern, name string) bool {
	if strings.ContainsAny(pattern, `*?[\`) && !strings.Contains(pattern, "/") {
		name = path.Base(name)
	}
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// choose returns the names to download, sorted: those that match include, if it is given; else the file of the
// reference, with the small files beside it if it is safetensors, and the shards if it is their index; else the small files and the safetensors at the top of
// the repository. Nothing to choose is a fault of kind NotFound that says what there is.
func choose(ref Ref, names []string, opt Options) ([]string, error) {
	want := func(name string) bool {
		return slices.Contains(small, name) || opt.Part == Model && top(name) && (matches(weights, name) || matches(weightsIndex, name))
	}
	switch {
	case ref.Dataset && len(opt.Include) == 0:
		return chooseData(ref, names)
	case len(opt.Include) > 0:
		want = func(name string) bool {
			return slices.ContainsFunc(opt.Include, func(p string) bool { return matches(p, name) })
		}
	case ref.File != "":
		index := matches(weightsIndex, ref.File)
		beside := index || matches(weights, ref.File)
		want = func(name string) bool {
			near := path.Dir(name) == path.Dir(ref.File)
			return name == ref.File || near && (beside && slices.Contains(small, path.Base(name)) || index && matches(weights, name))
		}
	}
	var chosen []string
	for _, name := range names {
		if want(name) {
			chosen = append(chosen, name)
		}
	}
	slices.Sort(chosen)
	return chosen, missing(ref, names, chosen, opt)
}

// top reports whether a name is in no folder.
func top(name string) bool { return !strings.Contains(name, "/") }

// missing says what a choice lacks.
func missing(ref Ref, names, chosen []string, opt Options) error {
	has := func(pattern string) bool {
		return slices.ContainsFunc(chosen, func(n string) bool { return matches(pattern, n) })
	}
	repo := ref.whole()
	switch {
	case len(opt.Include) > 0 && len(chosen) == 0:
		return fault.In(fault.NotFound, repo.String(), "no file matches --include %s", strings.Join(opt.Include, ", ")).WithID("E-HUB-011")
	case len(opt.Include) > 0:
		return nil
	case ref.File != "" && !slices.Contains(chosen, ref.File):
		return fault.In(fault.HTTP404, repo.String(), "has no file %q", ref.File).WithID("E-HUB-012")
	case ref.File != "" || opt.Part == Model && has(weights):
		return nil
	case opt.Part == Tokenizer && slices.Contains(chosen, tokenizerName):
		return nil
	}
	what := "safetensors weights"
	if opt.Part == Tokenizer {
		what = tokenizerName
	}
	err := fault.In(fault.NotFound, repo.String(), "has no %s", what).WithID("E-HUB-013")
	if torch := slices.IndexFunc(names, func(n string) bool { return matches("*.bin", n) || matches("*.pt", n) || matches("*.pth", n) }); torch >= 0 {
		err = err.WithHint("it has PyTorch pickles, programs that are never run; convert it to safetensors with transformers: apr help formats")
	}
	if files := single(names); len(files) > 0 {
		repo.File = files[0]
		return err.WithHint("it has %s: name one, as in %s", strings.Join(files, ", "), repo)
	}
	return err
}

// single returns the first few names of models in one file, quoted only if they need it.
func single(names []string) (files []string) {
	for _, n := range names {
		if (matches("*.gguf", n) || matches("*.apr", n)) && CheckName(n) == nil {
			files = append(files, n)
		}
	}
	slices.Sort(files)
	return files[:min(len(files), 8)]
}
