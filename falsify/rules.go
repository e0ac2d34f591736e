package falsify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Severity says whether a violation makes a contract invalid.
type Severity string

// The severities.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Violation is one thing that a rule does not allow, with its place. Line and Column are those of the value, or of the
// nearest one around it when the value is missing; both count from 1.
type Violation struct {
	Severity Severity `json:"severity"`
	Rule     string   `json:"rule"`
	Message  string   `json:"message"`
	Location string   `json:"location"` // such as proof_obligations[0].property
	File     string   `json:"file"`
	Line     int      `json:"line"`
	Column   int      `json:"column"`
}

// String renders v as "[ERROR] RULE: message (file:line:column)".
func (v Violation) String() string {
	label := "ERROR"
	if v.Severity == Warning {
		label = "WARN"
	}
	place := plainText(v.File)
	if v.Line > 0 {
		place += fmt.Sprintf(":%d", v.Line)
		if v.Column > 0 {
			place += fmt.Sprintf(":%d", v.Column)
		}
	}
	return fmt.Sprintf("[%s] %s: %s (%s)", label, v.Rule, v.Message, place)
}

// plainText returns s, quoted if it holds anything that a terminal could take for a command.
func plainText(s string) string {
	if q := fmt.Sprintf("%q", s); q != `"`+s+`"` {
		return q
	}
	return s
}

// judge collects the violations of one document.
type judge struct {
	doc  *Document
	c    *Contract
	tree *Tree
	out  []Violation
}

// Validate judges a document by the rules of its rule set, in their order. tree is where the checks and mutants of
// Ours are looked up; the other rule sets do not need one.
func Validate(d *Document, tree *Tree) []Violation {
	j := &judge{doc: d, c: d.Contract, tree: tree}
	kernel := d.Contract.Kind() == "kernel"
	j.metadata()
	if d.Rules >= Later {
		j.keys()
	}
	if kernel {
		j.equations()
		j.provability()
	}
	j.obligations()
	j.tests()
	j.harnesses()
	if kernel && j.c.QAGate == nil {
		j.report(Warning, "SCHEMA-013", path{"qa_gate"}, "no qa_gate")
	}
	if d.Rules >= Ours {
		j.ours()
	}
	return j.out
}

// report adds a violation at the place that p leads to.
func (j *judge) report(s Severity, rule string, p path, format string, args ...any) {
	j.reportNode(s, rule, p, j.doc.at(p), format, args...)
}

func (j *judge) reportNode(s Severity, rule string, p path, n *yaml.Node, format string, args ...any) {
	j.out = append(j.out, Violation{
		Severity: s, Rule: rule, Message: fmt.Sprintf(format, args...), Location: p.String(),
		File: j.c.Path, Line: n.Line, Column: n.Column,
	})
}

// metadata checks SCHEMA-001 and SCHEMA-002.
func (j *judge) metadata() {
	if len(j.c.Metadata.References) == 0 {
		j.report(Error, "SCHEMA-001", path{"metadata", "references"}, "metadata.references must not be empty")
	}
	if j.c.Metadata.Version == "" {
		j.report(Error, "SCHEMA-002", path{"metadata", "version"}, "metadata.version must not be empty")
	}
}

// keys checks SCHEMA-020, SCHEMA-018 and SCHEMA-019: repeated keys anywhere, and unknown ones at the top.
func (j *judge) keys() {
	for _, f := range j.doc.doubles {
		j.reportNode(Error, "SCHEMA-020", f.at, f.node, "%s is given twice", f.at)
	}
	var near []finding
	for _, f := range j.doc.unknown {
		if len(f.at) != 1 {
			continue
		}
		name := f.at[0].(string)
		if name == "kind" {
			j.reportNode(Error, "SCHEMA-018", f.at, f.node, "kind at the top level has no effect: it belongs under metadata")
		} else if f.near = variantOf(name); f.near != "" {
			near = append(near, f)
		}
	}
	slices.SortStableFunc(near, func(a, b finding) int { return strings.Compare(a.at[0].(string), b.at[0].(string)) })
	for _, f := range near {
		j.reportNode(Error, "SCHEMA-019", f.at, f.node, "%s is not a key of a contract, %s is", f.at, f.near)
	}
}

// topLevel are the keys at the top of a foreign contract.
var topLevel = []string{"metadata", "equations", "proof_obligations", "kernel_structure", "simd_dispatch", "enforcement",
	"falsification_tests", "kani_harnesses", "qa_gate", "verification_summary", "type_invariants", "coq_spec"}

// variantOf returns the top-level key that name equals but for case, separators and plural, "" if none.
func variantOf(name string) string {
	for _, known := range topLevel {
		for _, a := range stems(name) {
			if slices.Contains(stems(known), a) {
				return known
			}
		}
	}
	return ""
}

// stems returns the ASCII letters and digits of a name in lower case, as they are and without a plural's ending.
func stems(name string) []string {
	letters := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
	if letters == "" {
		return nil
	}
	all := []string{letters}
	for _, ending := range []string{"s", "es"} {
		if stem, ok := strings.CutSuffix(letters, ending); ok && stem != "" {
			all = append(all, stem)
		}
	}
	return all
}

// equations checks SCHEMA-003 and SCHEMA-004.
func (j *judge) equations() {
	if len(j.c.Equations) == 0 {
		j.report(Error, "SCHEMA-003", path{"equations"}, "equations must hold at least one equation")
	}
	for _, name := range slices.Sorted(maps.Keys(j.c.Equations)) {
		if j.c.Equations[name].Formula == "" {
			p := path{"equations", name, "formula"}
			j.report(Error, "SCHEMA-004", p, "%s must not be empty", p)
		}
	}
}

// provability checks PROVABILITY-001: what a kernel claims has to be testable.
func (j *judge) provability() {
	const rule = "PROVABILITY-001"
	obligations, tests := len(j.c.ProofObligations), len(j.c.FalsificationTests)
	for _, part := range []struct {
		key string
		n   int
	}{{"proof_obligations", obligations}, {"falsification_tests", tests}, {"kani_harnesses", len(j.c.KaniHarnesses)}} {
		if part.n == 0 {
			j.report(Error, rule, path{part.key}, "a kernel contract needs %s", part.key)
		}
	}
	if tests < obligations {
		j.report(Error, rule, path{"falsification_tests"}, "fewer falsification_tests (%d) than proof_obligations (%d)", tests, obligations)
	}
}

// obligations checks SCHEMA-005, 006, 014 to 017 and 021 to 023, one obligation after the other.
func (j *judge) obligations() {
	formal := map[string]bool{}
	for i, o := range j.c.ProofObligations {
		at := path{"proof_obligations", i}
		if o.Property == "" {
			j.report(Error, "SCHEMA-005", at.with("property"), "%s must not be empty", at.with("property"))
		}
		if o.Formal != nil {
			if formal[*o.Formal] {
				j.report(Warning, "SCHEMA-006", at.with("formal"), "formal predicate given twice: %s", clip(fmt.Sprintf("%q", *o.Formal)))
			}
			formal[*o.Formal] = true
		}
		for _, f := range []struct {
			rule, key string
			given     *string
			only      []string
		}{
			{"SCHEMA-014", "requires", o.Requires, []string{"postcondition"}},
			{"SCHEMA-015", "applies_to_phase", o.AppliesToPhase, []string{"loop_invariant", "loop_variant"}},
			{"SCHEMA-016", "parent_contract", o.ParentContract, []string{"subcontract"}},
		} {
			if f.given != nil && !slices.Contains(f.only, o.Type) {
				p := at.with(f.key)
				j.report(Error, f.rule, p, "%s belongs to type %s, not to %s", p, strings.Join(f.only, " or "), o.Type)
			}
		}
		if p := o.ParentContract; p != nil && o.Type == "subcontract" && !slices.Contains(j.c.Metadata.DependsOn, *p) {
			j.report(Error, "SCHEMA-017", at.with("parent_contract"), "%s %s is not in metadata.depends_on", at.with("parent_contract"), clip(fmt.Sprintf("%q", *p)))
		}
		if j.doc.Rules >= Later {
			j.notApplicable(at, o)
		}
	}
}

// notApplicable checks SCHEMA-021 to 023: a claim about no code says why, and where it is checked.
func (j *judge) notApplicable(at path, o Obligation) {
	for _, f := range []struct {
		rule, key string
		given     *string
	}{{"SCHEMA-021", "na_reason", o.NAReason}, {"SCHEMA-022", "na_owner", o.NAOwner}} {
		p := at.with(f.key)
		switch applies := o.AppliesTo != "not_applicable"; {
		case !applies && (f.given == nil || strings.TrimSpace(*f.given) == ""):
			j.report(Error, f.rule, p, "%s must not be empty where applies_to is not_applicable", p)
		case applies && f.given != nil:
			j.report(Error, "SCHEMA-023", p, "%s belongs to an obligation whose applies_to is not_applicable", p)
		}
	}
}

// tests checks SCHEMA-007 to 009.
func (j *judge) tests() {
	seen := map[string]bool{}
	for i, t := range j.c.FalsificationTests {
		at := path{"falsification_tests", i}
		if seen[t.ID] {
			j.report(Error, "SCHEMA-007", at.with("id"), "falsification test id given twice: %s", plain(t.ID))
		}
		seen[t.ID] = true
		if t.Prediction == "" {
			j.report(Error, "SCHEMA-008", at.with("prediction"), "%s must not be empty", at.with("prediction"))
		}
		if t.IfFails == "" {
			j.report(Warning, "SCHEMA-009", at.with("if_fails"), "%s is empty", at.with("if_fails"))
		}
	}
}

// harnesses checks SCHEMA-010 to 012.
func (j *judge) harnesses() {
	seen := map[string]bool{}
	for i, h := range j.c.KaniHarnesses {
		at := path{"kani_harnesses", i}
		if seen[h.ID] {
			j.report(Error, "SCHEMA-010", at.with("id"), "harness id given twice: %s", plain(h.ID))
		}
		seen[h.ID] = true
		if h.Obligation == "" {
			j.report(Error, "SCHEMA-011", at.with("obligation"), "%s must not be empty", at.with("obligation"))
		}
		if h.Bound == nil {
			j.report(Warning, "SCHEMA-012", at.with("bound"), "%s is missing", at.with("bound"))
		}
	}
}
