package main

import (
	"fmt"
	"math"
	"strings"

	. "apr/tools/neon/asm" //nolint:revive,staticcheck // an assembler's idiom
)

const lanes = 4

// kernel is the function being generated and the state of its loop. Registers that keep their values are taken from the top,
// those of a step of the loop from below.
type kernel struct {
	name    string
	offsets map[string]int // of parameters and results
	ptr     map[string]int // general registers of arrays
	order   []string       // of arrays
	next    int            // general register
	n       int            // elements left

	used   [32]bool
	kept   [32]bool
	consts map[uint32]V // that are kept
	wanted []uint32     // in the order of first use
	after  func()       // emitted after the unrolled steps and after the tail, if not nil

	disp, unroll int
	tail         bool
	labels       int
}

const (
	table = 26 // general register: the constants
	temp  = 25
)

// constants stand in memory as 16 bytes each.
var (
	constants []uint32
	places    = map[uint32]int{}
)

func place(u uint32) int {
	at, ok := places[u]
	if !ok {
		at = len(constants)
		places[u] = at
		constants = append(constants, u)
	}
	return 16 * at
}

// signatures are the generated functions, in order.
var signatures []string

type full struct{} // no register is left

// generate writes a function. Its constants are loaded before the loop, as many as registers allow: it is written with fewer
// and fewer until it fits.
func generate(name, params, result string, body func(k *kernel)) {
	full1 := name + "NEON"
	signatures = append(signatures, strings.TrimSpace(full1+"("+params+") "+result))
	mark := f.Mark()
	first := attempt(full1, name, params, result, nil, body)
	for keep := len(first.wanted); keep >= 0; keep-- {
		f.Reset(mark)
		if k := attempt(full1, name, params, result, first.wanted[:keep], body); k != nil {
			return
		}
	}
	panic(name + " needs more registers than there are")
}

func attempt(full1, name, params, result string, keep []uint32, body func(k *kernel)) (k *kernel) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case full:
			if keep == nil {
				panic(name + " needs more registers than there are")
			}
			k = nil
		default:
			panic(e)
		}
	}()
	offsets, size := layout(params, result)
	f.Func(full1, "("+params+") "+result, "does what "+name+" does.", size)
	k = &kernel{name: name, offsets: offsets, ptr: map[string]int{}, consts: map[uint32]V{}}
	f.Op("MOVD", "$constants<>(SB), R%d", table)
	for _, u := range keep {
		v := k.keep()
		f.Load(v, table, place(u))
		k.consts[u] = v
	}
	body(k)
	return k
}

// layout returns the offsets of parameters and results as Go lays them out, and the size of all.
func layout(params, result string) (map[string]int, int) {
	at, offsets := 0, map[string]int{}
	add := func(list string) {
		for _, group := range groups(list) {
			size, align := 8, 8
			switch group.kind {
			case "[]float32":
				size = 24
			case "float32":
				size, align = 4, 4
			}
			for _, n := range group.names {
				at = (at + align - 1) / align * align
				offsets[n] = at
				at += size
			}
		}
	}
	add(params)
	if result != "" {
		at = (at + 7) / 8 * 8
		add(strings.Trim(result, "()"))
	}
	return offsets, at
}

type group struct {
	names []string
	kind  string
}

// groups parses "a, b []float32, n int".
func groups(list string) (all []group) {
	var names []string
	for _, part := range strings.Split(list, ",") {
		name, kind, typed := strings.Cut(strings.TrimSpace(part), " ")
		if name == "" {
			continue
		}
		names = append(names, name)
		if typed {
			all = append(all, group{names, kind})
			names = nil
		}
	}
	return all
}

func (k *kernel) general() int {
	if k.next > 17 {
		panic("too many arrays")
	}
	k.next++
	return k.next - 1
}

// slices loads the base pointers of slice parameters.
func (k *kernel) slices(names ...string) {
	for _, n := range names {
		k.ptr[n] = k.general()
		k.order = append(k.order, n)
		f.Op("MOVD", "%s_base+%d(FP), R%d", n, k.offsets[n], k.ptr[n])
	}
}

// count loads the length of a slice as the number of elements of the loop.
func (k *kernel) count(name string) {
	k.n = k.general()
	f.Op("MOVD", "%s_len+%d(FP), R%d", name, k.offsets[name]+8, k.n)
}

// keep returns a register that keeps its value.
func (k *kernel) keep() V {
	for v := 31; v >= 0; v-- {
		if !k.used[v] {
			k.used[v], k.kept[v] = true, true
			return V(v)
		}
	}
	panic(full{})
}

// vec returns a register for the step.
func (k *kernel) vec() V {
	for v := range k.used {
		if !k.used[v] {
			k.used[v] = true
			return V(v)
		}
	}
	panic(full{})
}

// free gives registers of the step back.
func (k *kernel) free(list ...V) {
	for _, v := range list {
		if !k.kept[v] {
			k.used[v] = false
		}
	}
}

func (k *kernel) zero() V {
	v := k.vec()
	f.Zero(v)
	return v
}

func (k *kernel) zeroKept() V {
	v := k.keep()
	f.Zero(v)
	return v
}

// scalar broadcasts a float32 parameter.
func (k *kernel) scalar(name string) V {
	v := k.keep()
	f.Op("FMOVS", "%s+%d(FP), F%d", name, k.offsets[name], v)
	f.Splat(v, v)
	return v
}

// fields broadcasts the first n fields of a struct of float32.
func (k *kernel) fields(name string, n int) []V {
	f.Op("MOVD", "%s+%d(FP), R%d", name, k.offsets[name], temp)
	var list []V
	for i := range n {
		v := k.keep()
		f.Op("FMOVS", "%d(R%d), F%d", 4*i, temp, v)
		f.Splat(v, v)
		list = append(list, v)
	}
	return list
}

// constant returns a register with copies of c, which must not change.
func (k *kernel) constant(c float32) V { return k.bits(math.Float32bits(c)) }

func (k *kernel) bits(u uint32) V {
	if v, ok := k.consts[u]; ok {
		return v
	}
	known := false
	for _, w := range k.wanted {
		known = known || w == u
	}
	if !known {
		k.wanted = append(k.wanted, u)
	}
	v := k.vec()
	f.Load(v, table, place(u))
	return v
}

// held returns a new register with copies of c.
func (k *kernel) held(c float32) V {
	from := k.constant(c)
	if !k.kept[from] {
		return from
	}
	return k.copyOf(from)
}

func (k *kernel) copyOf(x V) V {
	v := k.vec()
	f.Move(v, x)
	return v
}

func (k *kernel) label(what string) string {
	k.labels++
	return fmt.Sprintf("%s%d", what, k.labels)
}

// loop emits body for unroll vectors at a time, for one, and for the tail of 1 to 3 elements.
func (k *kernel) loop(unroll int, body func()) {
	step := func() {
		used := k.used
		body()
		k.used = used
	}
	for u := unroll; u >= 1; u /= 2 {
		top, done := k.label("loop"), k.label("done")
		f.Label(top)
		f.Op("CMP", "$%d, R%d", lanes*u, k.n)
		f.Op("BLT", "%s", done)
		for i := range u {
			k.unroll, k.disp = i, 4*lanes*i
			step()
		}
		k.unroll, k.disp = 0, 0
		if k.after != nil {
			k.after()
		}
		for _, a := range k.order {
			f.Op("ADD", "$%d, R%d, R%d", 4*lanes*u, k.ptr[a], k.ptr[a])
		}
		f.Op("SUB", "$%d, R%d, R%d", lanes*u, k.n, k.n)
		f.Op("JMP", "%s", top)
		f.Label(done)
	}
	end := k.label("end")
	f.Op("CBZ", "R%d, %s", k.n, end)
	k.tail = true
	step()
	k.tail = false
	if k.after != nil {
		k.after()
	}
	f.Label(end)
}

// load reads a vector of an array, zeros beyond the tail.
func (k *kernel) load(name string) V {
	if !k.tail {
		v := k.vec()
		f.Load(v, k.ptr[name], k.disp)
		return v
	}
	v := k.zero()
	k.loadTail(name, v)
	return v
}

// loadOr reads a vector of an array; beyond the tail it has the value of fill.
func (k *kernel) loadOr(name string, fill V) V {
	if !k.tail {
		return k.load(name)
	}
	v := k.copyOf(fill)
	k.loadTail(name, v)
	return v
}

func (k *kernel) loadTail(name string, v V) {
	k.eachLane(name, func(lane, r int) { f.Op("VLD1", "(R%d), V%d.S[%d]", r, v, lane) })
}

// eachLane emits access for the elements of the tail, with a general register that points to each.
func (k *kernel) eachLane(name string, access func(lane, r int)) {
	end := k.label("lanes")
	access(0, k.ptr[name])
	f.Op("CMP", "$2, R%d", k.n)
	f.Op("BLT", "%s", end)
	f.Op("ADD", "$4, R%d, R%d", k.ptr[name], temp)
	access(1, temp)
	f.Op("BEQ", "%s", end)
	f.Op("ADD", "$8, R%d, R%d", k.ptr[name], temp)
	access(2, temp)
	f.Label(end)
}

// store writes a vector to an array, up to the tail.
func (k *kernel) store(v V, name string) {
	if !k.tail {
		f.Store(v, k.ptr[name], k.disp)
		return
	}
	k.eachLane(name, func(lane, r int) { f.Op("VST1", "V%d.S[%d], (R%d)", v, lane, r) })
}

// inTail clears the lanes of v beyond the tail.
func (k *kernel) inTail(v V) {
	if !k.tail {
		return
	}
	mask := k.vec()
	f.Op("MOVD", "$masks<>+16(SB), R%d", temp)
	f.Op("SUB", "R%d<<2, R%d, R%d", k.n, temp, temp)
	f.Load(mask, temp, 0)
	f.V3(AND, v, v, mask)
	k.free(mask)
}

// emitConstants writes the tables.
func emitConstants() {
	f.Raw("\n// constants are vectors of four equal elements.\n")
	for i, u := range constants {
		for lane := range lanes {
			f.Raw(fmt.Sprintf("DATA constants<>+%d(SB)/4, $0x%08x\n", 16*i+4*lane, u))
		}
	}
	f.Raw(fmt.Sprintf("GLOBL constants<>(SB), RODATA|NOPTR, $%d\n", 16*len(constants)))
	f.Raw("\n// masks are four words of ones, then four of zeros: the mask of n lanes begins 4−n words in.\n")
	for i := range 2 * lanes {
		u := uint32(0)
		if i < lanes {
			u = 0xffffffff
		}
		f.Raw(fmt.Sprintf("DATA masks<>+%d(SB)/4, $0x%08x\n", 4*i, u))
	}
	f.Raw(fmt.Sprintf("GLOBL masks<>(SB), RODATA|NOPTR, $%d\n", 8*lanes))
}
