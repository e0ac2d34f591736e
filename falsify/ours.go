package falsify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"apr/internal/fault"
)

// ours checks APR-CONTRACT-001 to 008 and 010.
func (j *judge) ours() {
	for i, t := range j.c.FalsificationTests {
		j.oneCheck(path{"falsification_tests", i}, t)
	}
	for i, t := range j.c.FalsificationTests {
		if t.Check != nil && t.Check.Go != nil {
			j.resolves(path{"falsification_tests", i, "check", "go"}, t.Check.Go)
		}
		if t.Check != nil && len(t.Check.Cmd) > 0 && t.Check.Cmd[0] != "apr" {
			p := path{"falsification_tests", i, "check", "cmd"}
			j.report(Error, "APR-CONTRACT-002", p, "%s must begin with apr", p)
		}
	}
	for i, h := range j.c.KaniHarnesses {
		if h.Go != nil {
			j.resolves(path{"kani_harnesses", i, "go"}, h.Go)
		}
	}
	j.mutants()
	for _, f := range j.doc.results {
		j.reportNode(Error, "APR-CONTRACT-004", f.at, f.node, "%s declares a result; results come from running the checks", f.at)
	}
	for i, h := range j.c.KaniHarnesses {
		at := path{"kani_harnesses", i}
		if h.Go == nil {
			j.report(Error, "APR-CONTRACT-005", at.with("go"), "%s is missing", at.with("go"))
		}
		if h.Cases == nil || *h.Cases == 0 {
			j.report(Error, "APR-CONTRACT-005", at.with("cases"), "%s is missing", at.with("cases"))
		}
	}
	j.tested()
	j.unknownKeys()
	j.needs()
	j.killed()
}

// oneCheck checks APR-CONTRACT-001.
func (j *judge) oneCheck(at path, t Test) {
	const rule = "APR-CONTRACT-001"
	switch c := t.Check; {
	case c == nil || c.Go == nil && len(c.Cmd) == 0:
		j.report(Error, rule, at.with("check"), "%s names no check: go or cmd", at)
	case c.Go != nil && len(c.Cmd) > 0:
		j.report(Error, rule, at.with("check"), "%s names two checks: go and cmd", at)
	case len(c.Cmd) > 0 && c.Exit == nil && len(c.JSON) == 0:
		j.report(Error, rule, at.with("check"), "%s asserts nothing: exit or json", at)
	}
}

// resolves checks APR-CONTRACT-002.
func (j *judge) resolves(at path, t *GoTest) {
	if err := j.tree.Test(*t); err != nil {
		j.report(Error, "APR-CONTRACT-002", at, "%s: %v", at, err)
	}
}

// checkIDs returns the ids of all tests and harnesses.
func (j *judge) checkIDs() (ids []string) {
	for _, t := range j.c.FalsificationTests {
		ids = append(ids, t.ID)
	}
	for _, h := range j.c.KaniHarnesses {
		ids = append(ids, h.ID)
	}
	return ids
}

// mutants checks APR-CONTRACT-003.
func (j *judge) mutants() {
	const rule = "APR-CONTRACT-003"
	if len(j.c.Mutants) == 0 {
		j.report(Error, rule, path{"mutants"}, "no mutant: nothing shows that the checks can fail")
	}
	checks := j.checkIDs()
	seen := map[string]bool{}
	for i, m := range j.c.Mutants {
		at := path{"mutants", i}
		if seen[m.ID] {
			j.report(Error, rule, at.with("id"), "mutant id given twice: %s", plain(m.ID))
		}
		seen[m.ID] = true
		if len(m.Kills) == 0 {
			j.report(Error, rule, at.with("kills"), "%s names no check that must fail", at.with("kills"))
		}
		for k, id := range m.Kills {
			if !slices.Contains(checks, id) {
				j.report(Error, rule, at.with("kills").with(k), "%s is no test or harness of this contract", plain(id))
			}
		}
		if m.Find == m.Replace {
			j.report(Error, rule, at.with("replace"), "%s changes nothing", at)
		}
		if err := j.tree.Once(m.File, m.Find); err != nil {
			j.report(Error, rule, at.with("find"), "%s: %v", at.with("find"), err)
		}
	}
}

// tested checks APR-CONTRACT-006: each obligation has a name that some test gives.
func (j *judge) tested() {
	const rule = "APR-CONTRACT-006"
	named := map[string]bool{}
	known := map[string]bool{}
	for _, t := range j.c.FalsificationTests {
		for _, id := range t.Obligations {
			named[id] = true
		}
	}
	for i, o := range j.c.ProofObligations {
		at := path{"proof_obligations", i}
		switch {
		case o.ID == "":
			j.report(Error, rule, at, "%s has no id", at)
		case known[o.ID]:
			j.report(Error, rule, at.with("id"), "obligation id given twice: %s", plain(o.ID))
		case !named[o.ID]:
			j.report(Error, rule, at.with("id"), "obligation %s is named by no falsification test", plain(o.ID))
		}
		known[o.ID] = true
	}
	for i, t := range j.c.FalsificationTests {
		for k, id := range t.Obligations {
			if !known[id] {
				p := path{"falsification_tests", i, "obligations", k}
				j.report(Error, rule, p, "%s is no obligation of this contract", plain(id))
			}
		}
	}
	for i, h := range j.c.KaniHarnesses {
		if h.Obligation != "" && !known[h.Obligation] {
			p := path{"kani_harnesses", i, "obligation"}
			j.report(Error, rule, p, "%s is no obligation of this contract", plain(h.Obligation))
		}
	}
}

// unknownKeys checks APR-CONTRACT-007; what SCHEMA-018 and SCHEMA-019 report is not repeated.
func (j *judge) unknownKeys() {
	for _, f := range j.doc.unknown {
		if len(f.at) == 1 && (f.at[0] == "kind" || variantOf(f.at[0].(string)) != "") {
			continue
		}
		if f.at[len(f.at)-1] == "verified" || f.at[len(f.at)-1] == "status" {
			j.reportNode(Error, "APR-CONTRACT-004", f.at, f.node, "%s declares a result; results come from running the checks", f.at)
			continue
		}
		hint := ""
		if f.near != "" {
			hint = ", did you mean " + f.near + "?"
		}
		j.reportNode(Error, "APR-CONTRACT-007", f.at, f.node, "unknown key %s%s", f.at, hint)
	}
}

// needs checks APR-CONTRACT-008.
func (j *judge) needs() {
	const rule = "APR-CONTRACT-008"
	timeout := func(at path, text string) {
		p := at.with("timeout")
		if text == "" {
			j.report(Error, rule, p, "%s is missing", p)
		} else if d, err := time.ParseDuration(text); err != nil || d <= 0 {
			j.report(Error, rule, p, "%s is not a span of time such as 120s: %s", p, clip(fmt.Sprintf("%q", text)))
		}
	}
	needs := func(at path, all []string) {
		for k, need := range all {
			if _, err := ParseNeed(need); err != nil {
				j.report(Error, rule, at.with("needs").with(k), "%v", err)
			}
		}
	}
	for i, t := range j.c.FalsificationTests {
		at := path{"falsification_tests", i}
		needs(at, t.Needs)
		timeout(at, t.Timeout)
	}
	for i, h := range j.c.KaniHarnesses {
		at := path{"kani_harnesses", i}
		needs(at, h.Needs)
		timeout(at, h.Timeout)
	}
}

// killed checks APR-CONTRACT-010: a check that no mutant fails may be one that cannot fail.
func (j *judge) killed() {
	dead := map[string]bool{}
	for _, m := range j.c.Mutants {
		for _, id := range m.Kills {
			dead[id] = true
		}
	}
	for i, t := range j.c.FalsificationTests {
		if !dead[t.ID] {
			j.report(Warning, "APR-CONTRACT-010", path{"falsification_tests", i, "id"}, "%s is killed by no mutant", plain(t.ID))
		}
	}
	for i, h := range j.c.KaniHarnesses {
		if !dead[h.ID] {
			j.report(Warning, "APR-CONTRACT-010", path{"kani_harnesses", i, "id"}, "%s is killed by no mutant", plain(h.ID))
		}
	}
}

// Need is something of the machine without which a check is unavailable.
type Need struct {
	Kind  string // cuda, cuda-integrated, mem, model or program
	Bytes uint64 // of mem
	Name  string // of model or program
}

// ParseNeed reads cuda, cuda-integrated, mem>=48GiB, model:NAME or program:NAME.
func ParseNeed(text string) (Need, error) {
	wrong := fault.New(fault.Vacuous, "unknown need %s (known: cuda, cuda-integrated, mem>=48GiB, model:NAME, program:NAME)", clip(fmt.Sprintf("%q", text)))
	if size, ok := strings.CutPrefix(text, "mem>="); ok {
		size, ok = strings.CutSuffix(size, "GiB")
		n, err := strconv.ParseUint(size, 10, 20)
		if !ok || err != nil || n == 0 {
			return Need{}, wrong
		}
		return Need{Kind: "mem", Bytes: n << 30}, nil
	}
	if text == "cuda" || text == "cuda-integrated" {
		return Need{Kind: text}, nil
	}
	if kind, name, ok := strings.Cut(text, ":"); ok && (kind == "model" || kind == "program") {
		if base := strings.TrimRight(name, "+"); plain(base) == base { // c++ is a program
			return Need{Kind: kind, Name: name}, nil
		}
	}
	return Need{}, wrong
}
