// Package proofs holds what is proved rather than tried: scripts for the solver z3 about packings and roundings, for
// every value that their bits can have. Its tests, under the build tag z3, ask the solver, and compare what the scripts
// say the program computes with what it does compute. make proofs runs them.
package proofs
