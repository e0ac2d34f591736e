package gemm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestSameBitsEverywhere: the kernels in assembly of all processors agree bit for bit, and on arm64, where Go fuses, so does Go.
func TestSameBitsEverywhere(t *testing.T) {
	want := map[string]string{"NT": "ee47106435624363", "NN": "20afcced63516d16", "TN": "75f54d0589b797b3"}
	eachISA(t, func(t *testing.T) {
		if ISA() == "generic" && !goFuses {
			return
		}
		e := newEngine(t, 2)
		for _, f := range forms {
			p := newProblem(rand.New(rand.NewPCG(15, 16)), f, 77, 90, 600, 3)
			p.add = true
			h := sha256.New()
			if err := binary.Write(h, binary.LittleEndian, p.run(e)); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%x", h.Sum(nil))[:16]; got != want[f.name] {
				t.Errorf("%s: %s, want %s", f.name, got, want[f.name])
			}
		}
	})
}
