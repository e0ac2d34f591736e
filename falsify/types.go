package falsify

// Contract is one file. Each field has these tags:
//
//	json      its key; every other word here is about that key
//	contract  required: absence is a parse error; later, ours: known from that rule set on;
//	          result: declares an outcome, which Ours refuses; free: holds any YAML
//	alias     a second name; both together are a parse error
//	enum      the name of the list of its values in enums
type Contract struct {
	ID   string `json:"-"` // the file's name without its extension
	Path string `json:"-"`

	Metadata            Metadata                     `json:"metadata" contract:"required"`
	Equations           map[string]Equation          `json:"equations,omitempty"`
	ProofObligations    []Obligation                 `json:"proof_obligations,omitempty"`
	KernelStructure     *KernelStructure             `json:"kernel_structure,omitempty"`
	SIMDDispatch        map[string]map[string]string `json:"simd_dispatch,omitempty"`
	Enforcement         map[string]Enforcement       `json:"enforcement,omitempty"`
	FalsificationTests  []Test                       `json:"falsification_tests,omitempty"`
	KaniHarnesses       []Harness                    `json:"kani_harnesses,omitempty"`
	QAGate              *QAGate                      `json:"qa_gate,omitempty"`
	VerificationSummary *VerificationSummary         `json:"verification_summary,omitempty" contract:"result"`
	TypeInvariants      []TypeInvariant              `json:"type_invariants,omitempty"`
	CoqSpec             *CoqSpec                     `json:"coq_spec,omitempty"`
	Mutants             []Mutant                     `json:"mutants,omitempty" contract:"ours"`
}

// Metadata says what a contract is about and what it rests on.
type Metadata struct {
	Version          string   `json:"version" contract:"required"`
	Description      string   `json:"description" contract:"required"`
	Created          string   `json:"created,omitempty"`
	Author           string   `json:"author,omitempty"`
	References       []string `json:"references,omitempty"`
	DependsOn        []string `json:"depends_on,omitempty"` // ids of contracts
	Registry         bool     `json:"registry,omitempty"`   // turns kind kernel into registry
	Kind             string   `json:"kind,omitempty" enum:"kind"`
	EnforcementLevel string   `json:"enforcement_level,omitempty" enum:"enforcement_level"`
	LockedLevel      string   `json:"locked_level,omitempty" contract:"result"`
}

// Equation is one equation with its domain and codomain.
type Equation struct {
	Formula        string   `json:"formula" contract:"required"`
	Domain         string   `json:"domain,omitempty"`
	Codomain       string   `json:"codomain,omitempty"`
	Invariants     []string `json:"invariants,omitempty"`
	Preconditions  []string `json:"preconditions,omitempty"`
	Postconditions []string `json:"postconditions,omitempty"`
	LeanTheorem    string   `json:"lean_theorem,omitempty"`
	FloatTolerance *float64 `json:"float_tolerance,omitempty"`
	Assumes        *Shape   `json:"assumes,omitempty"`
	Guarantees     *Shape   `json:"guarantees,omitempty"`
}

// Shape is what an equation needs or gives: shapes of named tensors, and constraints between them.
type Shape struct {
	Shapes       map[string]Dims `json:"shapes,omitempty"`
	Constraints  []string        `json:"constraints,omitempty"`
	FromContract string          `json:"from_contract,omitempty"`
	FromEquation string          `json:"from_equation,omitempty"`
}

// Dims is the shape of one tensor.
type Dims struct {
	Dims  []any  `json:"dims,omitempty"`
	DType string `json:"dtype,omitempty"`
}

// Obligation is one property that has to hold.
type Obligation struct {
	ID             string   `json:"id,omitempty" contract:"ours"`
	Type           string   `json:"type" contract:"required" enum:"obligation"`
	Property       string   `json:"property" contract:"required"`
	Formal         *string  `json:"formal,omitempty"`
	Tolerance      *float64 `json:"tolerance,omitempty"`
	AppliesTo      string   `json:"applies_to,omitempty"` // all, scalar, simd, converter, or any other word
	Lean           *Lean    `json:"lean,omitempty"`
	Requires       *string  `json:"requires,omitempty"`         // of a postcondition alone
	AppliesToPhase *string  `json:"applies_to_phase,omitempty"` // of a loop's invariant or variant alone
	ParentContract *string  `json:"parent_contract,omitempty"`  // of a subcontract alone
	NAReason       *string  `json:"na_reason,omitempty" contract:"later"`
	NAOwner        *string  `json:"na_owner,omitempty" contract:"later"`
}

// Lean names a proof in Lean 4.
type Lean struct {
	Theorem        string   `json:"theorem" contract:"required"`
	Module         string   `json:"module,omitempty"`
	Status         string   `json:"status,omitempty" contract:"result" enum:"lean_status"`
	DependsOn      []string `json:"depends_on,omitempty"`
	MathlibImports []string `json:"mathlib_imports,omitempty"`
	Notes          string   `json:"notes,omitempty"`
}

// KernelStructure is the phases of a kernel.
type KernelStructure struct {
	Phases []Phase `json:"phases" contract:"required"`
}

// Phase is one phase of a kernel.
type Phase struct {
	Name        string `json:"name" contract:"required"`
	Description string `json:"description" contract:"required"`
	Invariant   string `json:"invariant,omitempty"`
}

// Enforcement says where a property is enforced.
type Enforcement struct {
	Description string `json:"description" contract:"required"`
	Check       string `json:"check,omitempty"`
	Severity    string `json:"severity,omitempty"`
	Reference   string `json:"reference,omitempty"`
}

// Test is one attempt to show a claim false.
type Test struct {
	ID          string   `json:"id" contract:"required"`
	Rule        string   `json:"rule" contract:"required" alias:"description"`
	Prediction  string   `json:"prediction" contract:"required" alias:"expected"`
	Test        string   `json:"test,omitempty" alias:"command"` // in words
	IfFails     string   `json:"if_fails" contract:"required" alias:"fails_if"`
	Obligations []string `json:"obligations,omitempty" contract:"ours"` // ids of the obligations it tests
	Check       *Check   `json:"check,omitempty" contract:"ours"`
	Needs       []string `json:"needs,omitempty" contract:"ours"` // see ParseNeed
	MinCases    *uint32  `json:"min_cases,omitempty" contract:"ours"`
	Timeout     string   `json:"timeout,omitempty" contract:"ours"`
}

// Check is what is executed: a Go test, or an apr command whose exit code and JSON are compared.
type Check struct {
	Go      *GoTest        `json:"go,omitempty"`
	Cmd     []string       `json:"cmd,omitempty"`
	Exit    *uint32        `json:"exit,omitempty"`
	JSON    map[string]any `json:"json,omitempty" contract:"free"` // dotted key to value
	Compile string         `json:"compile,omitempty" enum:"compile"`
}

// GoTest names a test, by package below the module's root and by name; a subtest as in go test -run.
type GoTest struct {
	Package string   `json:"package" contract:"required"`
	Test    string   `json:"test" contract:"required"`
	Tags    []string `json:"tags,omitempty"`
}

// Harness visits every case of a bounded input space.
type Harness struct {
	ID         string   `json:"id" contract:"required"`
	Obligation string   `json:"obligation" contract:"required"`
	Property   string   `json:"property,omitempty"`
	Bound      *uint32  `json:"bound,omitempty"`
	Strategy   string   `json:"strategy,omitempty" enum:"strategy"`
	Solver     string   `json:"solver,omitempty"`
	Harness    string   `json:"harness,omitempty"`
	Go         *GoTest  `json:"go,omitempty" contract:"ours"`
	Needs      []string `json:"needs,omitempty" contract:"ours"` // see ParseNeed
	Cases      *uint64  `json:"cases,omitempty" contract:"ours"` // how many it visits
	Timeout    string   `json:"timeout,omitempty" contract:"ours"`
}

// QAGate is the gate that a contract stands behind.
type QAGate struct {
	ID            string   `json:"id" contract:"required"`
	Name          string   `json:"name" contract:"required"`
	Description   string   `json:"description,omitempty"`
	Checks        []string `json:"checks,omitempty"`
	PassCriteria  string   `json:"pass_criteria,omitempty"`
	Falsification string   `json:"falsification,omitempty"`
}

// VerificationSummary is a declared result.
type VerificationSummary struct {
	TotalObligations uint32  `json:"total_obligations" contract:"required"`
	PropertyTested   *uint32 `json:"l2_property_tested,omitempty"`
	KaniProved       *uint32 `json:"l3_kani_proved,omitempty"`
	LeanProved       *uint32 `json:"l4_lean_proved,omitempty"`
	SorryCount       *uint32 `json:"l4_sorry_count,omitempty"`
	NotApplicable    *uint32 `json:"l4_not_applicable,omitempty"`
}

// TypeInvariant is a predicate over every value of a type.
type TypeInvariant struct {
	Name        string `json:"name" contract:"required"`
	Type        string `json:"type" contract:"required"`
	Predicate   string `json:"predicate" contract:"required"`
	Description string `json:"description,omitempty"`
}

// CoqSpec is a specification in Coq.
type CoqSpec struct {
	Module      string          `json:"module" contract:"required"`
	Imports     []string        `json:"imports,omitempty"`
	Definitions []CoqDefinition `json:"definitions,omitempty"`
	Obligations []CoqObligation `json:"obligations,omitempty"`
}

// CoqDefinition is one definition in Coq.
type CoqDefinition struct {
	Name      string `json:"name" contract:"required"`
	Statement string `json:"statement" contract:"required"`
}

// CoqObligation links an obligation to a lemma.
type CoqObligation struct {
	LinksTo  string `json:"links_to" contract:"required"`
	CoqLemma string `json:"coq_lemma" contract:"required"`
	Status   string `json:"status,omitempty" contract:"result"`
}

// Mutant is a defect put into the system that checks have to find: one file of the source tree with the one occurrence
// of Find replaced.
type Mutant struct {
	ID      string   `json:"id" contract:"required"`
	File    string   `json:"file" contract:"required"`
	Find    string   `json:"find" contract:"required"`
	Replace string   `json:"replace" contract:"required"`
	Kills   []string `json:"kills,omitempty"` // ids of tests and harnesses that must fail
	Why     string   `json:"why" contract:"required"`
}

// enums are the values of keys with a fixed list of them.
var enums = map[string][]string{
	"kind": {"kernel", "registry", "model-family", "model-family-variant", "tokenizer", "training-loop", "pretraining-corpus",
		"training-precondition-gate", "corpus-assembly", "pattern", "schema", "beat-benchmark", "kaizen"},
	"enforcement_level": {"basic", "standard", "strict", "proven"},
	"obligation": {"invariant", "equivalence", "bound", "monotonicity", "idempotency", "linearity", "symmetry", "associativity",
		"conservation", "ordering", "completeness", "soundness", "involution", "determinism", "roundtrip", "state_machine",
		"classification", "independence", "termination", "precondition", "postcondition", "frame", "loop_invariant",
		"loop_variant", "old_state", "subcontract"},
	"lean_status": {"proved", "sorry", "wip", "not-applicable"},
	"strategy":    {"exhaustive", "stub_float", "compositional", "bounded_int"},
	"compile":     {"fail"},
}

// Kind is the kind whose rules hold: that of the metadata, kernel if it says none; a registry may say so by a flag.
func (c *Contract) Kind() string {
	switch k := c.Metadata.Kind; {
	case k != "" && k != "kernel":
		return k
	case c.Metadata.Registry:
		return "registry"
	}
	return "kernel"
}

// Claims is the number of tests and harnesses.
func (c *Contract) Claims() int { return len(c.FalsificationTests) + len(c.KaniHarnesses) }
