// Package falsify reads contracts: YAML files that state claims about a system, how each claim could be shown false,
// and what would break it.
//
// The format is that of aprender's provable contracts. Its content is the types of this package: one table of struct
// tags says which keys there are, which must be present, and what they hold. Read uses it to decode, Schema to write a
// JSON Schema for editors. Validate judges the decoded contract by the rules of one of three rule sets: Earlier and
// Later are those of the foreign format, Ours adds that every claim names a check that exists, that every check is
// broken by some mutant of the system, and that no file declares its own result.
//
// A file comes from a stranger: its size, its nesting and what its YAML aliases expand to are bounded, and nothing in
// it makes Read panic. A valid form says nothing about the truth of a claim; only running its checks does.
package falsify
