//go:build vulkan

package vulkan

import (
	"slices"
	"strings"
	"testing"

	"apr/device/devicetest"
	"apr/device/vulkan/kernel"
	"apr/internal/fault"
)

// instructions returns where each instruction of SPIR-V begins.
func instructions(code []uint32) (at []int) {
	for i := 5; i < len(code); i += int(code[i] >> 16) {
		at = append(at, i)
	}
	return at
}

// without returns SPIR-V whose instructions that match do nothing (OpNop).
func without(code []uint32, match func(words []uint32) bool) []uint32 {
	code = slices.Clone(code)
	for _, i := range instructions(code) {
		n := int(code[i] >> 16)
		if match(code[i : i+n]) {
			for k := range n {
				code[i+k] = 1 << 16
			}
		}
	}
	return code
}

// noBarriers leaves out the barriers, so that lanes read before others have written.
func noBarriers(code []uint32) []uint32 {
	const controlBarrier = 224
	return without(code, func(words []uint32) bool { return words[0]&0xffff == controlBarrier })
}

// notAnew leaves out what sets float32 variables of functions to zero, as compilers did whose inner loops go on with
// the old values.
func notAnew(code []uint32) []uint32 {
	const typeFloat, constant, variable, store, function = 22, 43, 59, 62, 7
	single, zero, local := uint32(0), map[uint32]bool{}, map[uint32]bool{}
	for _, i := range instructions(code) {
		switch code[i] & 0xffff {
		case typeFloat:
			single = code[i+1]
		case constant:
			zero[code[i+2]] = code[i+1] == single && code[i+3] == 0
		case variable:
			local[code[i+2]] = code[i+3] == function
		}
	}
	return without(code, func(words []uint32) bool {
		return words[0]&0xffff == store && local[words[1]] && zero[words[2]]
	})
}

// TestMutantsOfProbe: a device that errs is refused when it is opened, by what it errs in.
func TestMutantsOfProbe(t *testing.T) {
	for _, m := range []struct {
		name, want string
		mutate     func(name string, code []uint32) []uint32
		sabotage   func(l *launch)
	}{
		{name: "none"},
		{name: "missing barriers", want: "errs in", mutate: func(_ string,
			code []uint32) []uint32 {
			return noBarriers(code)
		}},
		{name: "missing barriers of products", want: "a product of tiles", mutate: func(name string,
			code []uint32) []uint32 {
			if strings.HasPrefix(name, "gemm") {
				return noBarriers(code)
			}
			return code
		}},
		{name: "inner variables go on", want: "nested loops", mutate: func(_ string,
			code []uint32) []uint32 {
			return notAnew(code)
		}},
		{name: "swapped bindings", want: "a product of tiles", sabotage: func(l *launch) {
			if strings.HasPrefix(l.Kernel, "gemm") {
				l.bindings[1], l.bindings[2] = l.bindings[2], l.bindings[1]
				l.push[4], l.push[6] = l.push[6], l.push[4]
			}
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			d := open(t, Options{})
			defer d.Close()
			d.forget()
			d.mutate, d.sabotage = m.mutate, m.sabotage
			err := d.probe()
			switch {
			case m.want == "" && err != nil:
				t.Error(err)
			case m.want != "" && (fault.KindOf(err) != fault.Unavailable || !strings.Contains(err.Error(), m.want)):
				t.Errorf("got %v, want a refusal with %q", err, m.want)
			}
		})
	}
}

// forget lets kernels be compiled again.
func (d *Device) forget() {
	for name, p := range d.pipelines {
		d.dev.FreePipeline(p)
		delete(d.pipelines, name)
	}
}

// TestMutantsOfSuite: the conformance suite finds a rotary embedding of neighbours, swapped bindings and missing
// barriers.
func TestMutantsOfSuite(t *testing.T) {
	word := func(name, arg string) int { return kernel.Modules()[name].Word(arg) }
	for _, m := range []struct {
		name, cases string
		wide        bool
		mutate      func(name string, code []uint32) []uint32
		sabotage    func(l *launch)
	}{
		{name: "pairs of neighbours", cases: "rotary/", sabotage: func(l *launch) {
			if l.Kernel == "rotary" { // heads of two values turn: (0,1), (2,3) …
				half, dim, heads := word("rotary", "half"), word("rotary", "dim"), word("rotary", "heads")
				l.push[heads], l.push[dim], l.push[half] = l.push[heads]*l.push[half], 2, 1
			}
		}},
		{name: "k and v swapped", cases: "attention/", sabotage: func(l *launch) {
			if l.Kernel == "attention" {
				l.bindings[3], l.bindings[4] = l.bindings[4], l.bindings[3]
			}
		}},
		{name: "no barriers", cases: "rmsnorm/", mutate: func(_ string,
			code []uint32) []uint32 {
			return noBarriers(code)
		}},
		{name: "no barriers in wide tiles", cases: "matmul/", wide: true, mutate: func(name string, code []uint32) []uint32 {
			if strings.HasPrefix(name, "wide_") {
				return noBarriers(code)
			}
			return code
		}},
		{name: "no barriers in products of one row", cases: "weight/", mutate: func(name string, code []uint32) []uint32 {
			if strings.HasPrefix(name, "row_") {
				return noBarriers(code)
			}
			return code
		}},
		{name: "the last row is not computed", cases: "weight/", sabotage: func(l *launch) {
			if strings.HasPrefix(l.Kernel, "row_") {
				l.push[word(l.Kernel, "n")]--
			}
		}},
	} {
		t.Run(m.name, func(t *testing.T) {
			d := open(t, Options{})
			defer d.Close()
			d.forget()
			d.mutate, d.sabotage, d.wide = m.mutate, m.sabotage, m.wide
			tried := 0
			for _, c := range devicetest.Cases() {
				if !strings.HasPrefix(c.Name, m.cases) || tried == 20 {
					continue
				}
				tried++
				if c.Check(d) != nil {
					return
				}
			}
			t.Errorf("no case of %d found it", tried)
		})
	}
}
