package falsify_test

import (
	"testing"

	"apr/falsify"
)

// TestContracts: the project's own contracts are valid without a warning, name checks and mutants that exist in the
// tree, and rest on each other without a circle.
func TestContracts(t *testing.T) {
	const dir = "../contracts"
	r, err := falsify.ValidatePaths([]string{dir}, falsify.Ours)
	if err != nil {
		t.Fatal(err)
	}
	var all []*falsify.Contract
	for _, c := range r.Contracts {
		for _, v := range c.Violations {
			t.Error(v)
		}
		if c.Claims == 0 {
			t.Errorf("%s claims nothing", c.File)
			continue
		}
		doc, err := falsify.Read(c.File, falsify.Ours)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, doc.Contract)
	}
	if len(all) < 13 {
		t.Errorf("%d contracts: some are missing", len(all))
	}
	if err := falsify.NewGraph(all).Err(); err != nil {
		t.Error(err)
	}
	// The foreign format ignores our keys, and has nothing to say either.
	for _, rules := range []falsify.Rules{falsify.Earlier, falsify.Later} {
		r, err := falsify.ValidatePaths([]string{dir}, rules)
		if err != nil || r.Errors+r.Warnings != 0 {
			t.Errorf("rule set %d: %v\n%s", rules, err, r)
		}
	}
}
