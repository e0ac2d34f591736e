package cli

import "slices"

// Bits says whether an option can change the bits of what a command computes. A run that goes on from a checkpoint must agree
// with the run that wrote it in every such option.
type Bits uint8

// What an option may do to bits.
const (
	BitsUnsaid   Bits = iota
	SameBits          // none: it says where, when or how much is told
	BitsByValue       // the value itself decides
	BitsByEffect      // what the value leads to decides, which the command records: the content of a file, the number of steps
)

// Deciding returns the values of the options that decide bits by value, by configuration key.
func Deciding(opts []Option, s Settings) map[string]any {
	m := map[string]any{}
	for i := range opts {
		o := &opts[i]
		if o.Bits != BitsByValue {
			continue
		}
		if at := slices.IndexFunc(s, func(v Setting) bool { return v.Name == o.Name }); at >= 0 {
			m[o.key()] = s[at].Value
		}
	}
	return m
}
