package distill

import (
	"maps"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
	runlog "apr/run/log"
)

// ofConfig ends the name of an input's configuration among expected hashes.
const ofConfig = ".config"

// ParseExpected reads what --expect was given, NAME=SHA256 each, into hashes by name. A text of another form, and two
// hashes of one name, are faults of kind Usage.
func ParseExpected(texts []string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range texts {
		name, sum, _ := strings.Cut(text, "=")
		if name == "" || !readfile.IsSHA256(sum) {
			return nil, fault.New(fault.Usage, "--expect %s: not NAME=SHA256, a hash of 64 digits 0-9a-f", text)
		}
		if other, ok := all[name]; ok && other != sum {
			return nil, fault.New(fault.Usage, "--expect %s: two hashes, %s and %s", name, other, sum)
		}
		all[name] = sum
	}
	return all, nil
}

// Expected returns the hashes that a run which starts later or elsewhere has to find: those of inputs by their names in
// a manifest, and those of models' configurations as NAME.config.
func Expected(inputs map[string]runlog.Input) map[string]string {
	all := map[string]string{}
	for name, in := range inputs {
		all[name] = in.SHA256
		if in.Config != "" {
			all[name+ofConfig] = in.Config
		}
	}
	return all
}

// checkExpected refuses inputs that are not those which were expected, after all are hashed.
func (in *inputs) checkExpected(c Config) error {
	found := Expected(in.records)
	for _, name := range slices.Sorted(maps.Keys(c.Expect)) {
		sum, ok := found[name]
		if !ok {
			return fault.New(fault.Usage, "--expect %s: the run has no such input", name).
				WithHint("its inputs are %s", strings.Join(slices.Sorted(maps.Keys(found)), ", ")).WithID("E-DISTILL-132")
		}
		if sum == c.Expect[name] {
			continue
		}
		of := strings.TrimSuffix(name, ofConfig)
		what := "input " + name
		if of != name {
			what = "configuration of input " + of
		}
		return fault.In(fault.Invalid, in.records[of].Path, "changed since its hash was noted: the %s has the SHA-256 %s, "+
			"expected %s", what, sum, c.Expect[name]).
			WithHint("apr dispatch again, or leave out --expect to train on what is there now").WithID("E-DISTILL-133")
	}
	return nil
}
