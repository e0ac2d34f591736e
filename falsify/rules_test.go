package falsify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"apr/internal/fault"
)

// valid is a contract that no rule set complains about in the tree of newTree.
const valid = `metadata:
  version: "1.0.0"
  description: The identity changes nothing.
  references: ["a paper"]
  depends_on: [parent-v1]
equations:
  f:
    formula: f(x) = x
proof_obligations:
- id: F-INV-001
  type: invariant
  property: f(x) is x
  formal: f(x) == x
- id: F-POST-002
  type: postcondition
  property: f ends
  requires: F-INV-001
falsification_tests:
- id: FT-F-001
  rule: identity
  prediction: f(7) is 7
  if_fails: f is another function
  obligations: [F-INV-001]
  check: {go: {package: ./f, test: TestF/seven}}
  timeout: 10s
- id: FT-F-002
  description: end
  expected: f returns
  fails_if: f loops
  obligations: [F-POST-002]
  check: {cmd: [apr, version], exit: 0, json: {status: ok}}
  needs: [cuda, mem>=48GiB]
  timeout: 10s
kani_harnesses:
- id: KANI-F-001
  obligation: F-INV-001
  bound: 4
  go: {package: ./f, test: TestAll, tags: [deep]}
  cases: 16
  timeout: 10s
qa_gate: {id: F-001, name: identity}
mutants:
- {id: MUT-F-001, file: f/f.go, find: return x, replace: return -x, kills: [FT-F-001, FT-F-002, KANI-F-001], why: another function}
`

// newTree makes a source tree with a package f.
func newTree(t *testing.T) *Tree {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":           "module m\n",
		"f/f.go":           "package f\n\nfunc F(x int) int { return x }\n\nfunc twice() (int, int) { return 1, 1 }\n",
		"f/f_test.go":      "package f\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) {}\nfunc Testing(t *testing.T) {}\nfunc TestNot(t *testing.B) {}\nfunc TestHelp(t *testing.T, n int) {}\n",
		"f/deep_test.go":   "//go:build deep\n\npackage f_test\n\nimport \"testing\"\n\nfunc TestAll(t *testing.T) {}\n",
		"contracts/c.yaml": valid,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree := FindTree(filepath.Join(dir, "contracts", "c.yaml"))
	if tree == nil || tree.Root != dir {
		t.Fatalf("tree %+v, want %s", tree, dir)
	}
	return tree
}

// edited returns valid with replacements: pairs of a text that occurs once, and another. The text may be given with
// what stands before it, to be the only one.
func edited(t *testing.T, edits []string) string {
	t.Helper()
	text := valid
	for i := 0; i < len(edits); i += 2 {
		if n := strings.Count(text, edits[i]); n != 1 {
			t.Fatalf("%q occurs %d times", edits[i], n)
		}
		text = strings.Replace(text, edits[i], edits[i+1], 1)
	}
	return text
}

// TestRules: each rule by exactly the lines it prints, and in the rule sets that know it.
func TestRules(t *testing.T) {
	tree := newTree(t)
	tests := []struct {
		name  string
		edits []string
		since Rules // the first rule set that has want; those before it say nothing
		want  string
	}{
		{"valid", nil, Earlier, ""},
		{"no references", []string{`["a paper"]`, "[]"}, Earlier, "[ERROR] SCHEMA-001: metadata.references must not be empty (c.yaml:4:15)"},
		{"nothing after references", []string{` ["a paper"]`, ""}, Earlier, "[ERROR] SCHEMA-001: metadata.references must not be empty (c.yaml:4:14)"},
		{"references absent", []string{"  references: [\"a paper\"]\n", ""}, Earlier, "[ERROR] SCHEMA-001: metadata.references must not be empty (c.yaml:2:3)"},
		{"empty version", []string{`"1.0.0"`, `""`}, Earlier, "[ERROR] SCHEMA-002: metadata.version must not be empty (c.yaml:2:12)"},
		{"key twice in free maps", []string{"    formula: f(x) = x\n", "    formula: f(x) = x\n  f:\n    formula: f(x) = x\n"}, Later,
			"[ERROR] SCHEMA-020: equations.f is given twice (c.yaml:9:3)"},
		{"top-level kind", []string{"equations:", "kind: kernel\nequations:"}, Later,
			"[ERROR] SCHEMA-018: kind at the top level has no effect: it belongs under metadata (c.yaml:6:1)"},
		{"near misses and kind", []string{"equations:", "kind: x\nQA-Gates: 1\nequation: 1\nequations:"}, Later,
			"[ERROR] SCHEMA-018: kind at the top level has no effect: it belongs under metadata (c.yaml:6:1)\n" +
				"[ERROR] SCHEMA-019: QA-Gates is not a key of a contract, qa_gate is (c.yaml:7:1)\n" +
				"[ERROR] SCHEMA-019: equation is not a key of a contract, equations is (c.yaml:8:1)"},
		{"no equations", []string{"equations:\n  f:\n    formula: f(x) = x\n", ""}, Earlier,
			"[ERROR] SCHEMA-003: equations must hold at least one equation (c.yaml:1:1)"},
		{"empty formula", []string{"formula: f(x) = x", `formula: ""`}, Earlier, "[ERROR] SCHEMA-004: equations.f.formula must not be empty (c.yaml:8:14)"},
		{"fewer tests", []string{"- id: F-POST-002", "- {id: X, type: bound, property: p}\n- id: F-POST-002", "obligations: [F-INV-001]", "obligations: [F-INV-001, X]"}, Earlier,
			"[ERROR] PROVABILITY-001: fewer falsification_tests (2) than proof_obligations (3) (c.yaml:20:1)"},
		{"empty property", []string{"property: f ends", `property: ""`}, Earlier, "[ERROR] SCHEMA-005: proof_obligations[1].property must not be empty (c.yaml:16:13)"},
		{"formal twice", []string{"  requires:", "  formal: f(x) == x\n  requires:"}, Earlier, `[WARN] SCHEMA-006: formal predicate given twice: "f(x) == x" (c.yaml:17:11)`},
		{"requires elsewhere", []string{"formal: f(x) == x", "requires: R"}, Earlier,
			"[ERROR] SCHEMA-014: proof_obligations[0].requires belongs to type postcondition, not to invariant (c.yaml:13:13)"},
		{"phase elsewhere", []string{"formal: f(x) == x", "applies_to_phase: R"}, Earlier,
			"[ERROR] SCHEMA-015: proof_obligations[0].applies_to_phase belongs to type loop_invariant or loop_variant, not to invariant (c.yaml:13:21)"},
		{"parent elsewhere", []string{"formal: f(x) == x", "parent_contract: R"}, Earlier,
			"[ERROR] SCHEMA-016: proof_obligations[0].parent_contract belongs to type subcontract, not to invariant (c.yaml:13:20)"},
		{"foreign parent", []string{"type: invariant", "type: subcontract", "formal: f(x) == x", "parent_contract: R"}, Earlier,
			`[ERROR] SCHEMA-017: proof_obligations[0].parent_contract "R" is not in metadata.depends_on (c.yaml:13:20)`},
		{"known parent", []string{"type: invariant", "type: subcontract", "formal: f(x) == x", "parent_contract: parent-v1"}, Earlier, ""},
		{"not applicable without reason", []string{"formal: f(x) == x", "applies_to: not_applicable\n  na_reason: \" \""}, Later,
			"[ERROR] SCHEMA-021: proof_obligations[0].na_reason must not be empty where applies_to is not_applicable (c.yaml:14:14)\n" +
				"[ERROR] SCHEMA-022: proof_obligations[0].na_owner must not be empty where applies_to is not_applicable (c.yaml:10:3)"},
		{"not applicable", []string{"formal: f(x) == x", "applies_to: not_applicable\n  na_reason: r\n  na_owner: o"}, Earlier, ""},
		{"reason without need", []string{"formal: f(x) == x", "na_owner: o\n  na_reason: r"}, Later,
			"[ERROR] SCHEMA-023: proof_obligations[0].na_reason belongs to an obligation whose applies_to is not_applicable (c.yaml:14:14)\n" +
				"[ERROR] SCHEMA-023: proof_obligations[0].na_owner belongs to an obligation whose applies_to is not_applicable (c.yaml:13:13)"},
		{"test twice", []string{"id: FT-F-002", "id: FT-F-001", "kills: [FT-F-001, FT-F-002,", "kills: [FT-F-001,"}, Earlier,
			"[ERROR] SCHEMA-007: falsification test id given twice: FT-F-001 (c.yaml:26:7)"},
		{"empty prediction by alias", []string{"expected: f returns", `expected: ""`}, Earlier,
			"[ERROR] SCHEMA-008: falsification_tests[1].prediction must not be empty (c.yaml:28:13)"},
		{"empty if_fails", []string{"if_fails: f is another function", `if_fails: ''`}, Earlier, "[WARN] SCHEMA-009: falsification_tests[0].if_fails is empty (c.yaml:22:13)"},
		{"harness twice", []string{"qa_gate:", "- {id: KANI-F-001, obligation: F-INV-001, bound: 4, go: {package: ./f, test: TestF}, cases: 1, timeout: 1s}\nqa_gate:"}, Earlier,
			"[ERROR] SCHEMA-010: harness id given twice: KANI-F-001 (c.yaml:41:8)"},
		{"empty obligation", []string{"obligation: F-INV-001\n", "obligation: \"\"\n"}, Earlier, "[ERROR] SCHEMA-011: kani_harnesses[0].obligation must not be empty (c.yaml:36:15)"},
		{"no bound", []string{"  bound: 4\n", ""}, Earlier, "[WARN] SCHEMA-012: kani_harnesses[0].bound is missing (c.yaml:35:3)"},
		{"no gate", []string{"qa_gate: {id: F-001, name: identity}\n", ""}, Earlier, "[WARN] SCHEMA-013: no qa_gate (c.yaml:1:1)"},

		{"no check", []string{"  check: {go: {package: ./f, test: TestF/seven}}\n", ""}, Ours, "[ERROR] APR-CONTRACT-001: falsification_tests[0] names no check: go or cmd (c.yaml:19:3)"},
		{"two checks", []string{"check: {go: {package: ./f, test: TestF/seven}}", "check: {go: {package: ./f, test: TestF}, cmd: [apr]}"}, Ours,
			"[ERROR] APR-CONTRACT-001: falsification_tests[0] names two checks: go and cmd (c.yaml:24:10)"},
		{"no assertion", []string{", exit: 0, json: {status: ok}", ""}, Ours, "[ERROR] APR-CONTRACT-001: falsification_tests[1] asserts nothing: exit or json (c.yaml:31:10)"},
		{"another program", []string{"[apr, version]", "[sh]"}, Ours, "[ERROR] APR-CONTRACT-002: falsification_tests[1].check.cmd must begin with apr (c.yaml:31:16)"},
		{"no package", []string{"package: ./f, test: TestF/", "package: ./g, test: TestF/"}, Ours,
			`[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "./g" does not exist (c.yaml:24:15)`},
		{"package outside", []string{"package: ./f, test: TestF/", "package: ../f, test: TestF/"}, Ours,
			`[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "../f" is no path inside the source tree (c.yaml:24:15)`},
		{"no Go", []string{"package: ./f, test: TestF/", "package: ./contracts, test: TestF/"}, Ours,
			`[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "./contracts": holds no Go package (c.yaml:24:15)`},
		{"no test", []string{"TestF/seven", "TestG/seven"}, Ours, `[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "./f" has no test "TestG" (c.yaml:24:15)`},
		{"small letter", []string{"TestF/seven", "Testing"}, Ours, `[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "./f" has no test "Testing" (c.yaml:24:15)`},
		{"a benchmark's argument", []string{"TestF/seven", "TestNot"}, Ours, `[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "./f" has no test "TestNot" (c.yaml:24:15)`},
		{"a helper", []string{"TestF/seven", "TestHelp"}, Ours, `[ERROR] APR-CONTRACT-002: falsification_tests[0].check.go: package "./f" has no test "TestHelp" (c.yaml:24:15)`},
		{"without its tag", []string{", tags: [deep]", ""}, Ours, `[ERROR] APR-CONTRACT-002: kani_harnesses[0].go: package "./f" has no test "TestAll" (c.yaml:38:7)`},
		{"no mutant", []string{valid[strings.Index(valid, "mutants:"):], ""}, Ours, "[ERROR] APR-CONTRACT-003: no mutant: nothing shows that the checks can fail (c.yaml:1:1)\n" +
			"[WARN] APR-CONTRACT-010: FT-F-001 is killed by no mutant (c.yaml:19:7)\n[WARN] APR-CONTRACT-010: FT-F-002 is killed by no mutant (c.yaml:26:7)\n" +
			"[WARN] APR-CONTRACT-010: KANI-F-001 is killed by no mutant (c.yaml:35:7)"},
		{"kills nothing", []string{"mutants:", "mutants:\n- {id: M, file: f/f.go, find: return x, replace: y, why: w}"}, Ours, "[ERROR] APR-CONTRACT-003: mutants[0].kills names no check that must fail (c.yaml:43:3)"},
		{"kills a stranger", []string{"kills: [FT-F-001,", "kills: [FT-X, FT-F-001,"}, Ours, "[ERROR] APR-CONTRACT-003: FT-X is no test or harness of this contract (c.yaml:43:77)"},
		{"found twice", []string{"find: return x", "find: return"}, Ours, "[ERROR] APR-CONTRACT-003: mutants[0].find: occurs 2 times in f/f.go, not once (c.yaml:43:39)"},
		{"found nowhere", []string{"find: return x", "find: return z"}, Ours, "[ERROR] APR-CONTRACT-003: mutants[0].find: occurs 0 times in f/f.go, not once (c.yaml:43:39)"},
		{"no such file", []string{"file: f/f.go", "file: f/g.go"}, Ours, `[ERROR] APR-CONTRACT-003: mutants[0].find: "f/g.go" does not exist (c.yaml:43:39)`},
		{"no change", []string{"replace: return -x", "replace: return x"}, Ours, "[ERROR] APR-CONTRACT-003: mutants[0] changes nothing (c.yaml:43:58)"},
		{"mutant twice", []string{"mutants:", "mutants:\n- {id: MUT-F-001, file: f/f.go, find: F(x, replace: y, kills: [FT-F-001], why: w}"}, Ours, "[ERROR] APR-CONTRACT-003: mutant id given twice: MUT-F-001 (c.yaml:44:8)"},
		{"declared summary", []string{"mutants:", "verification_summary: {total_obligations: 3}\nmutants:"}, Ours,
			"[ERROR] APR-CONTRACT-004: verification_summary declares a result; results come from running the checks (c.yaml:42:1)"},
		{"declared level", []string{"equations:", "  locked_level: L4\nequations:"}, Ours,
			"[ERROR] APR-CONTRACT-004: metadata.locked_level declares a result; results come from running the checks (c.yaml:6:3)"},
		{"declared proof", []string{"formal: f(x) == x", "lean: {theorem: t, status: proved}"}, Ours,
			"[ERROR] APR-CONTRACT-004: proof_obligations[0].lean.status declares a result; results come from running the checks (c.yaml:13:22)"},
		{"declared status", []string{"formal: f(x) == x", "status: UPHELD\n  verified: true"}, Ours,
			"[ERROR] APR-CONTRACT-004: proof_obligations[0].status declares a result; results come from running the checks (c.yaml:13:3)\n" +
				"[ERROR] APR-CONTRACT-004: proof_obligations[0].verified declares a result; results come from running the checks (c.yaml:14:3)"},
		{"harness without go", []string{"  go: {package: ./f, test: TestAll, tags: [deep]}\n", ""}, Ours, "[ERROR] APR-CONTRACT-005: kani_harnesses[0].go is missing (c.yaml:35:3)"},
		{"harness without cases", []string{"cases: 16", "cases: 0"}, Ours, "[ERROR] APR-CONTRACT-005: kani_harnesses[0].cases is missing (c.yaml:39:10)"},
		{"obligation without id", []string{"- id: F-POST-002\n  type", "- type", "obligations: [F-POST-002]", "obligations: []"}, Ours,
			"[ERROR] APR-CONTRACT-006: proof_obligations[1] has no id (c.yaml:14:3)"},
		{"obligation without test", []string{"obligations: [F-POST-002]", "obligations: [F-INV-001]"}, Ours,
			"[ERROR] APR-CONTRACT-006: obligation F-POST-002 is named by no falsification test (c.yaml:14:7)"},
		{"strange obligations", []string{"obligations: [F-POST-002]", "obligations: [F-POST-002, X]", "obligation: F-INV-001\n", "obligation: Y\n"}, Ours,
			"[ERROR] APR-CONTRACT-006: X is no obligation of this contract (c.yaml:30:29)\n[ERROR] APR-CONTRACT-006: Y is no obligation of this contract (c.yaml:36:15)"},
		{"unknown keys", []string{"formal: f(x) == x", "formall: f(x) == x", "equations:", "whatever: 1\nequations:"}, Ours,
			"[ERROR] APR-CONTRACT-007: unknown key whatever (c.yaml:6:1)\n[ERROR] APR-CONTRACT-007: unknown key proof_obligations[0].formall, did you mean formal? (c.yaml:14:3)"},
		{"unknown need", []string{"needs: [cuda, mem>=48GiB]", "needs: [mem>=48GB, gpu, \"model:\", \"program:++\"]"}, Ours,
			"[ERROR] APR-CONTRACT-008: unknown need \"mem>=48GB\" (known: cuda, cuda-integrated, mem>=48GiB, model:NAME, program:NAME) (c.yaml:32:11)\n" +
				"[ERROR] APR-CONTRACT-008: unknown need \"gpu\" (known: cuda, cuda-integrated, mem>=48GiB, model:NAME, program:NAME) (c.yaml:32:22)\n" +
				"[ERROR] APR-CONTRACT-008: unknown need \"model:\" (known: cuda, cuda-integrated, mem>=48GiB, model:NAME, program:NAME) (c.yaml:32:27)\n" +
				"[ERROR] APR-CONTRACT-008: unknown need \"program:++\" (known: cuda, cuda-integrated, mem>=48GiB, model:NAME, program:NAME) (c.yaml:32:37)"},
		{"no timeout", []string{"  cases: 16\n  timeout: 10s\n", "  cases: 16\n"}, Ours, "[ERROR] APR-CONTRACT-008: kani_harnesses[0].timeout is missing (c.yaml:35:3)"},
		{"bad timeout", []string{"  cases: 16\n  timeout: 10s\n", "  cases: 16\n  timeout: soon\n"}, Ours,
			`[ERROR] APR-CONTRACT-008: kani_harnesses[0].timeout is not a span of time such as 120s: "soon" (c.yaml:40:12)`},
		{"killed by none", []string{", KANI-F-001]", "]"}, Ours, "[WARN] APR-CONTRACT-010: KANI-F-001 is killed by no mutant (c.yaml:35:7)"},
		{"terminal escapes", []string{"  f:\n", "  \"\\e[31m\":\n", "formula: f(x) = x", `formula: ""`}, Earlier,
			`[ERROR] SCHEMA-004: equations."\x1b[31m".formula must not be empty (c.yaml:8:14)`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := edited(t, tt.edits)
			for rules := Earlier; rules <= Ours; rules++ {
				want := tt.want
				if rules < tt.since {
					want = ""
				}
				if diff := cmp.Diff(want, judged(t, tree, text, rules)); diff != "" {
					t.Errorf("rule set %d (-want +got):\n%s", rules, diff)
				}
			}
		})
	}
}

// judged returns the lines of a contract's violations.
func judged(t *testing.T, tree *Tree, text string, rules Rules) string {
	t.Helper()
	doc, err := Parse("c.yaml", []byte(text), rules)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, v := range Validate(doc, tree) {
		lines = append(lines, v.String())
	}
	return strings.Join(lines, "\n")
}

// TestRulesOfKinds: what only a kernel must have, by kind and registry flag.
func TestRulesOfKinds(t *testing.T) {
	const bare = "metadata:\n  version: '1'\n  description: d\n  references: [r]\n"
	const kernel = "[ERROR] SCHEMA-003: equations must hold at least one equation (c.yaml:1:1)\n" +
		"[ERROR] PROVABILITY-001: a kernel contract needs proof_obligations (c.yaml:1:1)\n" +
		"[ERROR] PROVABILITY-001: a kernel contract needs falsification_tests (c.yaml:1:1)\n" +
		"[ERROR] PROVABILITY-001: a kernel contract needs kani_harnesses (c.yaml:1:1)\n" +
		"[WARN] SCHEMA-013: no qa_gate (c.yaml:1:1)"
	tests := map[string]string{"": kernel, "  kind: kernel\n": kernel, "  registry: true\n": "", "  registry: true\n  kind: kernel\n": "", "  registry: false\n": kernel}
	for _, k := range enums["kind"][1:] {
		tests["  kind: "+k+"\n"] = ""
	}
	for extra, want := range tests {
		if got := judged(t, nil, bare+extra, Later); got != want {
			t.Errorf("%q: got\n%s\nwant\n%s", extra, got, want)
		}
	}
	part := bare + "  kind: pattern\nproof_obligations: [{type: bound, property: ''}]\nkani_harnesses: [{id: k, obligation: ''}]\n"
	want := "[ERROR] SCHEMA-005: proof_obligations[0].property must not be empty (c.yaml:6:45)\n" +
		"[ERROR] SCHEMA-011: kani_harnesses[0].obligation must not be empty (c.yaml:7:38)\n" +
		"[WARN] SCHEMA-012: kani_harnesses[0].bound is missing (c.yaml:7:18)"
	if got := judged(t, nil, part, Earlier); got != want {
		t.Errorf("the parts that are there: got\n%s\nwant\n%s", got, want)
	}
}

// TestWithoutTree: outside of a source tree no check and no mutant resolves.
func TestWithoutTree(t *testing.T) {
	got := judged(t, nil, valid, Ours)
	for _, want := range []string{"APR-CONTRACT-002: falsification_tests[0].check.go: package no source tree (go.mod) around the contract", "APR-CONTRACT-003: mutants[0].find: no source tree"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}

// TestReport: the lines around the violations, and the error, for one file and for a folder.
func TestReport(t *testing.T) {
	root := newTree(t).Root
	dir := filepath.Join(root, "contracts")
	run := func(rules Rules, paths ...string) (string, error) {
		r, err := ValidatePaths(paths, rules)
		if err != nil {
			return "", err
		}
		return strings.ReplaceAll(r.String(), dir+string(filepath.Separator), ""), r.Err()
	}
	check := func(name, got string, err error, want string, kind fault.Kind) {
		t.Helper()
		if got != want || fault.KindOf(err) != kind {
			t.Errorf("%s: got %q, %v; want %q, kind %v", name, got, err, want, kind)
		}
	}
	text, err := run(Ours, dir)
	check("one file", text, err, "\n0 error(s), 0 warning(s)\nContract is valid.\n", 0)
	if err := os.WriteFile(filepath.Join(dir, "b.yml"), []byte("metadata: {version: 1.0}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err = run(Ours, dir)
	check("one of two", text, err, "[ERROR] PARSE: metadata.version: expected a text, found the number 1.0 (b.yml:1:21)\n\n1 error(s), 0 warning(s)\n", fault.Vacuous)
	if err := os.WriteFile(filepath.Join(dir, "b.yml"), []byte(valid), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err = run(Ours, dir)
	check("two", text, err, "\n0 error(s), 0 warning(s)\nAll 2 contracts are valid.\n", 0)
	_, err = run(Ours, filepath.Join(dir, "none.yaml"))
	check("missing", "", err, "", fault.NotFound)
	_, err = run(Ours, t.TempDir())
	check("empty folder", "", err, "", fault.Vacuous)
}
