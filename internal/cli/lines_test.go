package cli

import (
	"io"
	"testing"
)

// chunks gives what was typed read by read.
type chunks struct{ all []string }

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.all) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.all[0])
	c.all = c.all[1:]
	return n, nil
}

// TestEscapeAlone: the Escape key does nothing, and takes nothing of what is typed next; other keys stay whole.
func TestEscapeAlone(t *testing.T) {
	k := &keys{Reader: &chunks{[]string{"\x1b", "\x1b", "/quit\r", "\x1b[A", "\x1b"}}}
	for _, want := range []string{"/quit\r", "\x1b[A", ""} {
		p := make([]byte, 64)
		n, err := k.Read(p)
		if got := string(p[:n]); got != want || (err != nil) != (want == "") {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}
