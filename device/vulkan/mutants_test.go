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

// noBarriers leaves out the barriers and lets every second 32 lanes begin late, so that lanes read before others have
// written. Without the delay the lanes of a card are mostly done in time. It does not show where 64 lanes or more go
// in lock-step, as on some cards of AMD.
func noBarriers(code []uint32) []uint32 {
	const controlBarrier = 224
	return late(without(code, func(words []uint32) bool { return words[0]&0xffff == controlBarrier }))
}

// late returns SPIR-V in which every second 32 lanes of a group count to 30,000 first. What they compute meanwhile
// decides whether they go on, so that no compiler leaves it out; they do.
func late(code []uint32) []uint32 {
	const (
		entryPoint, typeBool, typeInt, constant, function, load, decorate = 15, 20, 21, 43, 54, 61, 71
		iAdd, iMul, iEqual, uLess, shiftRight, bitAnd                     = 128, 132, 170, 176, 194, 199
		phi, loopMerge, selectionMerge, label, branch, branchIf, ret      = 245, 246, 247, 248, 249, 250, 253
		builtIn, localInvocationIndex                                     = 11, 29
	)
	var boolean, word, index, entry, first uint32 // ids; first is the label of the entry's first block
	var constants, body int                       // where constants and the delay are inserted
	inEntry := false
	for _, i := range instructions(code) {
		switch code[i] & 0xffff {
		case entryPoint:
			entry = code[i+2]
		case decorate:
			if code[i+2] == builtIn && code[i+3] == localInvocationIndex {
				index = code[i+1]
			}
		case typeBool:
			boolean = code[i+1]
		case typeInt:
			if code[i+2] == 32 && code[i+3] == 0 {
				word = code[i+1]
			}
		case function:
			if inEntry = code[i+2] == entry; constants == 0 {
				constants = i
			}
		case label:
			if inEntry && first == 0 {
				first, body = code[i+1], i+2
			}
		}
	}
	next := code[3] // the bound of ids
	id := func() uint32 { next++; return next - 1 }
	var numbers, delay []uint32
	number := func(v uint32) uint32 {
		n := id()
		numbers = append(numbers, 4<<16|constant, word, n, v)
		return n
	}
	op := func(code uint32, words ...uint32) {
		delay = append(append(delay, uint32(len(words)+1)<<16|code), words...)
	}
	zero, one := number(0), number(1)
	lane, rank, odd, count := id(), id(), id(), id()
	head, test, loop, again, after, quit, on := id(), id(), id(), id(), id(), id(), id()
	i, nextI, v, product, nextV, less, never := id(), id(), id(), id(), id(), id(), id()
	op(load, word, lane, index)
	op(shiftRight, word, rank, lane, number(5))
	op(bitAnd, word, odd, rank, one)
	op(iMul, word, count, odd, number(30000))
	op(branch, head)
	op(label, head)
	op(phi, word, i, zero, first, nextI, again)
	op(phi, word, v, one, first, nextV, again)
	op(loopMerge, after, again, 0)
	op(branch, test)
	op(label, test)
	op(uLess, boolean, less, i, count)
	op(branchIf, less, loop, after)
	op(label, loop)
	op(iMul, word, product, v, number(1664525))
	op(iAdd, word, nextV, product, lane)
	op(iAdd, word, nextI, i, one)
	op(branch, again)
	op(label, again)
	op(branch, head)
	op(label, after)
	op(iEqual, boolean, never, v, number(0x9e3779b9))
	op(selectionMerge, on, 0)
	op(branchIf, never, quit, on)
	op(label, quit)
	op(ret)
	op(label, on)
	code = slices.Insert(slices.Insert(slices.Clone(code), body, delay...), constants, numbers...)
	code[3] = next
	return code
}

// TestLate: kernels whose lanes begin at other times, with their barriers, compute what they did.
func TestLate(t *testing.T) {
	d := open(t, Options{})
	defer d.Close()
	d.forget()
	d.mutate = func(_ string, code []uint32) []uint32 { return late(code) }
	if err := d.probe(); err != nil {
		t.Error(err)
	}
}

// ofTiles reports whether a kernel is one of products with tiles, of either size.
func ofTiles(name string) bool {
	return strings.HasPrefix(name, "gemm_") || strings.HasPrefix(name, "wide_")
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
			if ofTiles(name) {
				return noBarriers(code)
			}
			return code
		}},
		{name: "inner variables go on", want: "nested loops", mutate: func(_ string,
			code []uint32) []uint32 {
			return notAnew(code)
		}},
		{name: "missing barriers of one row", want: "a product of one row", mutate: func(name string,
			code []uint32) []uint32 {
			if strings.HasPrefix(name, "row_") {
				return noBarriers(code)
			}
			return code
		}},
		{name: "a part of sums is missing", want: "a product of tiles", sabotage: func(l *launch) {
			if l.Kernel == "add_parts" {
				l.push[kernel.Modules()["add_parts"].Word("parts")]--
			}
		}},
		{name: "swapped bindings", want: "a product of tiles", sabotage: func(l *launch) {
			if ofTiles(l.Kernel) {
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
		{name: "a part of sums is missing", cases: "matmul/65x256x640", sabotage: func(l *launch) {
			if l.Kernel == "add_parts" {
				l.push[word("add_parts", "parts")]--
			}
		}},
		{name: "no barriers in wide tiles", cases: "matmul/65x256x640", wide: true, mutate: func(name string,
			code []uint32) []uint32 {
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
			d.mutate, d.sabotage, d.wide = m.mutate, m.sabotage, d.wide || m.wide
			tried := 0
			for _, c := range devicetest.Cases() {
				if !strings.HasPrefix(c.Name, m.cases) || tried == 12 {
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
