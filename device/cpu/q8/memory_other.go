//go:build !linux

package q8

// adviseHuge has nobody to ask.
func adviseHuge([]byte) {}
