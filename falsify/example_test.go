package falsify_test

import (
	"fmt"

	"apr/falsify"
)

func Example() {
	text := `metadata:
  version: "1.0.0"
  description: Every probability is at most one.
  references: []
  kind: pattern
falsification_tests:
- {id: FT-001, rule: bound, prediction: "", if_fails: the sum is not divided out}
`
	doc, err := falsify.Parse("bound-v1.yaml", []byte(text), falsify.Later)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, v := range falsify.Validate(doc, nil) {
		fmt.Println(v)
	}
	// Output:
	// [ERROR] SCHEMA-001: metadata.references must not be empty (bound-v1.yaml:4:15)
	// [ERROR] SCHEMA-008: falsification_tests[0].prediction must not be empty (bound-v1.yaml:7:41)
}
