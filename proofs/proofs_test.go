//go:build z3

package proofs

import (
	"embed"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/quant"
	"apr/tensor"
)

//go:embed *.smt2
var scripts embed.FS

// ask gives z3 a script and more lines, and returns what it prints.
func ask(t *testing.T, script string, more ...string) []string {
	t.Helper()
	text, err := scripts.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("z3", "-in", "-T:60")
	cmd.Stdin = strings.NewReader(string(text) + "\n" + strings.Join(more, "\n"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestProofs: no theorem has a counterexample, and every control has one.
func TestProofs(t *testing.T) {
	for _, tt := range []struct {
		script             string
		theorems, controls int
	}{{"q4k-scales.smt2", 5, 1}, {"q6k-codes.smt2", 4, 1}, {"bf16-round.smt2", 4, 1}} {
		t.Run(tt.script, func(t *testing.T) {
			lines := ask(t, tt.script)
			if len(lines) != 2*(tt.theorems+tt.controls) {
				t.Fatalf("%d lines, want a name and an answer of %d:\n%s", len(lines), tt.theorems+tt.controls, strings.Join(lines, "\n"))
			}
			controls := 0
			for i := 0; i < len(lines); i += 2 {
				want := "unsat"
				if strings.HasPrefix(lines[i], "control: ") {
					controls, want = controls+1, "sat"
				}
				if lines[i+1] != want {
					t.Errorf("%s: %s, want %s", lines[i], lines[i+1], want)
				}
				contracttest.Cases(t, 1)
			}
			if controls != tt.controls {
				t.Errorf("%d controls, want %d", controls, tt.controls)
			}
		})
	}
}

// compare asks for the values of expressions and compares them with those of the program.
func compare(t *testing.T, script string, expressions, want []string) {
	t.Helper()
	var lines []string
	for _, e := range expressions {
		lines = append(lines, "(simplify "+e+")")
	}
	all := ask(t, script, lines...)
	if len(all) <= len(want) {
		t.Fatalf("%d lines for %d values", len(all), len(want))
	}
	for i, got := range all[len(all)-len(want):] {
		if got != want[i] {
			t.Errorf("%s is %s, the program has %s", expressions[i], got, want[i])
		}
	}
	contracttest.Cases(t, len(want))
}

// half are the two bytes of an f16.
func half(f float32) []byte { return binary.LittleEndian.AppendUint16(nil, tensor.F32ToF16(f)) }

// decoded is what the program reads from one block, every 32nd element.
func decoded(block []byte, d tensor.DType) (of [8]float32) {
	all := make([]float32, 256)
	quant.Dequantize(all, block, d)
	for j := range of {
		of[j] = all[32*j]
	}
	return of
}

func hex(f [8]float32, sign float32) string {
	text := ""
	for _, x := range f {
		text = fmt.Sprintf("%02x", byte(sign*x)) + text
	}
	return "#x" + text
}

// TestScriptIsQ4K: the script reads scales and minima as the program's decoder does.
func TestScriptIsQ4K(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var expressions, want []string
	for range 100 {
		var s [12]byte
		text := ""
		for i := range s {
			s[i] = byte(r.Uint32())
			text = fmt.Sprintf("%02x", s[i]) + text
		}
		block := func(d, dmin float32) []byte {
			b := append(append(half(d), half(dmin)...), s[:]...)
			return append(b, strings.Repeat("\x11", 128)...) // every element is 1
		}
		expressions = append(expressions, "(scales #x"+text+")", "(mins #x"+text+")")
		want = append(want, hex(decoded(block(1, 0), tensor.Q4_K), 1), hex(decoded(block(0, 1), tensor.Q4_K), -1))
	}
	compare(t, "q4k-scales.smt2", expressions, want)
}

// TestScriptIsQ6K: the script reads codes as the program's decoder does.
func TestScriptIsQ6K(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var expressions, want []string
	for range 50 {
		block := make([]byte, 192, 210)
		for i := range block {
			block[i] = byte(r.Uint32())
		}
		block = append(append(block, strings.Repeat("\x01", 16)...), half(1)...)
		for j, x := range decoded(block, tensor.Q6_K) { // element 0 of group j = 4h+k
			h, k := j/4, j%4
			expressions = append(expressions, fmt.Sprintf("(code #x%02x #x%02x #x%02x #x%02x)", block[64*h], block[64*h+32], block[128+32*h], k))
			want = append(want, fmt.Sprintf("#x%02x", byte(x+32)))
		}
	}
	compare(t, "q6k-codes.smt2", expressions, want)
}

// TestScriptIsBF16: the script rounds as the program does.
func TestScriptIsBF16(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	bits := []uint32{0, 1 << 31, 0x7f800000, 0xff800000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0x00008000, 0x00018000, 0x00008001, 0x3f808000, 0x3f818000}
	for range 100 {
		bits = append(bits, r.Uint32())
	}
	var expressions, want []string
	for _, u := range bits {
		expressions = append(expressions, fmt.Sprintf("(round #x%08x)", u))
		want = append(want, fmt.Sprintf("#x%04x", tensor.F32ToBF16(math.Float32frombits(u))))
	}
	compare(t, "bf16-round.smt2", expressions, want)
}
