// Package good is a system whose claims hold.
package good

// Double returns 2·n.
func Double(n int) int { return 2 * n }

// unused is called by nothing.
func unused() int { return 7 }
