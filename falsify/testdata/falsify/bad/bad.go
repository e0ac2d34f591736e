// Package bad is a system whose claims do not hold.
package bad

// Double returns something else than 2·n.
func Double(n int) int { return n * n }
