package contract_test

import (
	"testing"

	"apr/contract"
)

// TestContracts: the project's own contracts are valid without a warning, name checks and mutants that exist in the
// tree, and rest on each other without a circle.
func TestContracts(t *testing.T) {
	const dir = "../contracts"
	r, err := contract.ValidatePaths([]string{dir}, contract.Ours)
	if err != nil {
		t.Fatal(err)
	}
	var all []*contract.Contract
	for _, c := range r.Contracts {
		for _, v := range c.Violations {
			t.Error(v)
		}
		if c.Claims == 0 {
			t.Errorf("%s claims nothing", c.File)
			continue
		}
		doc, err := contract.Read(c.File, contract.Ours)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, doc.Contract)
	}
	if len(all) < 13 {
		t.Errorf("%d contracts: some are missing", len(all))
	}
	if err := contract.NewGraph(all).Err(); err != nil {
		t.Error(err)
	}
	// The foreign format ignores our keys, and has nothing to say either.
	for _, rules := range []contract.Rules{contract.Earlier, contract.Later} {
		r, err := contract.ValidatePaths([]string{dir}, rules)
		if err != nil || r.Errors+r.Warnings != 0 {
			t.Errorf("rule set %d: %v\n%s", rules, err, r)
		}
	}
}
