package falsify

import (
	"bytes"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"apr/internal/near"

	"apr/internal/fault"
)

var update = flag.Bool("update", false, "rewrite schema/contract.json")

// TestSchemaIsCurrent keeps schema/contract.json what the types say; go test ./contract -update rewrites it.
func TestSchemaIsCurrent(t *testing.T) {
	const file = "../schema/contract.json"
	want := Schema("contract.json")
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the types say; run go test ./falsify -run Schema -update", file)
	}
}

// TestParseRefuses: what is no contract, by message and place.
func TestParseRefuses(t *testing.T) {
	const head = "metadata: {version: '1', description: d}\n"
	tests := []struct{ name, text, want string }{
		{"empty", "", "c.yaml: line 1, column 1: the file is empty"},
		{"comments", "# nothing\n", "c.yaml: line 1, column 1: the file is empty"},
		{"a list", "- 1\n", "c.yaml: line 1, column 1: expected a mapping, found a list"},
		{"no YAML", "a: [1\nb: }\n", "c.yaml: line 1: not YAML: "},
		{"two documents", head + "---\n" + head, "c.yaml: holds more than one YAML document"},
		{"broken second document", head + "---\n[", "not YAML: "},
		{"no metadata", "equations: {}\n", "c.yaml: line 1, column 1: key metadata is missing"},
		{"no description", "metadata: {version: '1'}\n", "c.yaml: line 1, column 11: metadata: key description is missing"},
		{"a number", "metadata: {version: 1.0, description: d}\n", "c.yaml: line 1, column 21: metadata.version: expected a text, found the number 1.0"},
		{"an integer", "metadata: {version: 1, description: d}\n", "c.yaml: line 1, column 21: metadata.version: expected a text, found the integer 1"},
		{"null", "metadata: {version: null, description: d}\n", "c.yaml: line 1, column 21: metadata.version: expected a text, found nothing (null)"},
		{"yes", "metadata: {version: '1', description: d, registry: yes}\n", `c.yaml: line 1, column 52: metadata.registry: expected true or false, found the text "yes"`},
		{"null for a list", "metadata: {version: '1', description: d, references: null}\n", "c.yaml: line 1, column 54: metadata.references: expected a list, found nothing (null)"},
		{"a text for a list", "metadata: {version: '1', description: d, references: r}\n", `c.yaml: line 1, column 54: metadata.references: expected a list, found the text "r"`},
		{"numbers in a list", "metadata: {version: '1', description: d, references: [2024]}\n", "c.yaml: line 1, column 55: metadata.references[0]: expected a text, found the integer 2024"},
		{"unknown kind", "metadata: {version: '1', description: d, kind: kernal}\n", "c.yaml: line 1, column 48: metadata.kind: unknown value \"kernal\" (known: kernel, registry,"},
		{"Kind in capitals", "metadata: {version: '1', description: d, kind: Kernel}\n", `did you mean "kernel"?`},
		{"unknown level", "metadata: {version: '1', description: d, enforcement_level: max}\n", "unknown value \"max\" (known: basic, standard, strict, proven)"},
		{"unknown obligation", head + "proof_obligations: [{type: bounds, property: p}]\n", `proof_obligations[0].type: unknown value "bounds"`},
		{"no type", head + "proof_obligations: [{property: p}]\n", "c.yaml: line 2, column 21: proof_obligations[0]: key type is missing"},
		{"unknown strategy", head + "kani_harnesses: [{id: k, obligation: o, strategy: all}]\n", `unknown value "all" (known: exhaustive, stub_float, compositional, bounded_int)`},
		{"unknown lean status", head + "proof_obligations: [{type: bound, property: p, lean: {theorem: t, status: done}}]\n", `proof_obligations[0].lean.status: unknown value "done"`},
		{"negative bound", head + "kani_harnesses: [{id: k, obligation: o, bound: -1}]\n", "kani_harnesses[0].bound: expected an integer from 0 to 4294967295, found the integer -1"},
		{"large bound", head + "kani_harnesses: [{id: k, obligation: o, bound: 4294967296}]\n", "found the integer 4294967296"},
		{"fractional bound", head + "kani_harnesses: [{id: k, obligation: o, bound: 1.5}]\n", "found the number 1.5"},
		{"tolerance in words", head + "proof_obligations: [{type: bound, property: p, tolerance: small}]\n", `tolerance: expected a number, found the text "small"`},
		{"alias with its key", head + "falsification_tests:\n- {id: t, rule: r, description: r, prediction: p, if_fails: f}\n", "c.yaml: line 3, column 20: falsification_tests[0]: rule and description are the same key"},
		{"no if_fails", head + "falsification_tests:\n- {id: t, rule: r, prediction: p}\n", "c.yaml: line 3, column 3: falsification_tests[0]: key if_fails is missing"},
		{"summary without total", head + "verification_summary: {}\n", "verification_summary: key total_obligations is missing"},
		{"dispatch of numbers", head + "simd_dispatch: {f: {avx2: 1}}\n", "simd_dispatch.f.avx2: expected a text, found the integer 1"},
		{"foreign tag", head + "equations: {f: {formula: !x y}}\n", `equations.f.formula: expected a text, found a value tagged "!x"`},
		{"binary", "metadata: {version: \"a\x00\", description: d}\n", "not YAML: "},
		{"unknown anchor", head + "equations: *e\n", "not YAML: unknown anchor"},
		{"itself", "a: &a [*a]\n" + head, ""},
		{"itself in a field", head + "equations: &e {f: *e}\n", "key formula is missing"},
		{"itself in JSON", head + "falsification_tests:\n- {id: t, rule: r, prediction: p, if_fails: f, check: {json: &j {a: *j}}}\n", "nested deeper than 64 levels"},
		{"deep", strings.Repeat("[", 200) + strings.Repeat("]", 200), "expected a mapping"},
		{"deep in unknown keys", head + "x: " + strings.Repeat("[", 200) + strings.Repeat("]", 200), "nested deeper than 64 levels"},
		{"very deep", head + "x: " + strings.Repeat("[", 1<<19), "not YAML: "},
		{"too long", head + strings.Repeat("#\n", 1<<19), "c.yaml: longer than a contract may be (1048576 bytes)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("c.yaml", []byte(tt.text), Ours)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tt.want != "" && (fault.KindOf(err) != fault.Vacuous || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestParseAccepts: habits of foreign contracts that are no errors.
func TestParseAccepts(t *testing.T) {
	tests := []struct{ name, text string }{
		{"unknown keys everywhere", "metadata: {version: '1', description: d, x: 1}\nfamily: bert\nequations: {f: {formula: g, y: {z: 1}}}\n"},
		{"a date", "metadata: {version: 1.0.0, description: d, created: 2026-05-01}\n"},
		{"optional null", "metadata: {version: '1', description: d, author: ~, kind: null}\nqa_gate: null\nproof_obligations: [{type: bound, property: p, formal: null, tolerance: }]\n"},
		{"nothing after a key", "metadata: {version: '1', description: d, references: }\nequations:\nproof_obligations:\nqa_gate:\n"},
		{"anchors", "metadata: &m {version: '1', description: d}\nequations: {f: &f {formula: g}, h: *f}\n"},
		{"merge keys are unknown keys", "metadata: {version: '1', description: d}\nx: &x {formula: g}\nequations: {f: {<<: *x, formula: h}}\n"},
		{"any applies_to", "metadata: {version: '1', description: d}\nproof_obligations: [{type: bound, property: p, applies_to: huber}]\n"},
		{"whole tolerance", "metadata: {version: '1', description: d}\nproof_obligations: [{type: bound, property: p, tolerance: 8}, {type: bound, property: p, tolerance: 1e-6}]\n"},
		{"shapes", "metadata: {version: '1', description: d}\nequations: {f: {formula: g, assumes: {shapes: {x: {dims: [N, 4], dtype: f32}}, from_contract: c}}}\n"},
		{"our keys of another type", "metadata: {version: '1', description: d}\nmutants: 3\nproof_obligations: [{type: bound, property: p, id: 1}]\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for rules := Earlier; rules <= Later; rules++ {
				if _, err := Parse("c.yaml", []byte(tt.text), rules); err != nil {
					t.Errorf("rule set %d: %v", rules, err)
				}
			}
		})
	}
	if _, err := Parse("c.yaml", []byte("metadata: {version: '1', version: '2', description: d}\n"), Earlier); err == nil || !strings.Contains(err.Error(), "key version given twice") {
		t.Errorf("the earlier format takes a field twice: %v", err)
	}
}

// TestHostileCost: what a file of a few bytes can make of itself is refused quickly.
func TestHostileCost(t *testing.T) {
	laughs := "metadata: {version: '1', description: d}\na0: &a0 {x: lol}\n"
	for i := 1; i <= 20; i++ {
		prev := string(rune('a' + i - 1))
		name := string(rune('a' + i))
		if i == 1 {
			prev = "a0"
		}
		laughs += name + ": &" + name + " [" + strings.Repeat("*"+prev+", ", 9) + "*" + prev + "]\n"
	}
	inField := laughs + "falsification_tests:\n- {id: t, rule: r, prediction: p, if_fails: f, check: {json: {a: *u}}}\n"
	tests := []struct{ name, text, want string }{
		{"laughs in unknown keys", laughs, ""},
		{"laughs in a field", inField, "more than 200000 values after its aliases are expanded"},
		{"braces", "x: " + strings.Repeat("{a: ", 1<<17), "not YAML"},
		{"questions", strings.Repeat("? ", 1<<18), "not YAML"},
		{"keys", "metadata: {version: '1', description: d}\n" + strings.Repeat("a: 1\n", 1<<17), ""},
		{"long key", "metadata: {version: '1', description: d}\n\"" + strings.Repeat("a", 1<<19) + "\": 1\n", "not YAML"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			start := near.CPUTime()
			_, err := Parse("c.yaml", []byte(tt.text), Ours)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if d := near.CPUTime() - start; d > 5*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

// FuzzParse: nothing panics, and what is accepted can be judged.
func FuzzParse(f *testing.F) {
	f.Add(valid)
	f.Add("a: &a [*a]\nmetadata: {version: '1', description: d}\n")
	f.Add("? {a: b}\n: - c # d\n")
	f.Fuzz(func(t *testing.T, text string) {
		for rules := Earlier; rules <= Ours; rules++ {
			if doc, err := Parse("c.yaml", []byte(text), rules); err == nil {
				for _, v := range Validate(doc, nil) {
					if v.Line < 1 || v.Column < 1 || strings.ContainsAny(v.String(), "\n\x1b") {
						t.Errorf("violation %q", v.String())
					}
				}
			} else if fault.KindOf(err) != fault.Vacuous {
				t.Errorf("kind of %v", err)
			}
		}
	})
}
