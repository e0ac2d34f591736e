// Package kernel holds the kernels of the Vulkan device, in WGSL, and their launchers: the Go functions that turn an
// operation of device.Stream into launches. Launchers are pure: they look at shapes and places and hand launches to a
// Queue.
//
// The SPIR-V in spirv/ is made from the .wgsl files by `make kernels`, compressed and embedded; manifest.json there
// says from which bytes. How a .wgsl file becomes a kernel says package manifest. A group has 64 lanes, 128 in
// products with one row, or 256 in those with wide tiles.
//
// Elements are 32 bits: float32 values, int32 ids, or the words of stored weights. A launch binds pieces of memory
// that are no longer than Queue.Limit; operations on larger matrices are split by rows.
//
// Caveats. What an operation demands is checked by package device. A launch sees all that earlier ones wrote.
package kernel

import (
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"math"
	"sync"

	"apr/device/vulkan/kernel/manifest"
)

//go:generate sh -c "cd ../../.. && go run ./tools/wgsl/main.go"

// Buffer is a piece of device memory; only the queue can look inside.
type Buffer any

// Mat is a row-major matrix of 32-bit elements: element (r,c) stands at At + r·Row + c of Buf. The zero Mat means
// "none".
type Mat struct {
	Buf        Buffer
	At         int
	Rows, Cols int
	Row        int // elements between rows
}

// IsZero reports whether m is the absent matrix.
func (m Mat) IsZero() bool { return m.Buf == nil }

// Range returns rows [lo,hi); of the zero Mat the zero Mat.
func (m Mat) Range(lo, hi int) Mat {
	if m.IsZero() {
		return m
	}
	m.At += lo * m.Row
	m.Rows = hi - lo
	return m
}

// Columns returns columns [lo,hi); of the zero Mat the zero Mat.
func (m Mat) Columns(lo, hi int) Mat {
	if m.IsZero() {
		return m
	}
	m.At += lo
	m.Cols = hi - lo
	return m
}

// Span returns the elements from the first to the last one.
func (m Mat) Span() int {
	if m.Rows == 0 || m.Cols == 0 {
		return 0
	}
	return (m.Rows-1)*m.Row + m.Cols
}

// Launch is a kernel, what it binds, its arguments behind the places of the bindings, and its groups.
type Launch struct {
	Kernel string
	Bind   []Mat
	Args   []uint32
	Groups int
}

// Queue takes launches in order.
type Queue interface {
	// Launch runs a kernel after everything queued before. No groups are no launch.
	Launch(Launch)
	// Limit returns how many elements a binding spans at most.
	Limit() int
	// Scratch returns a dense matrix with undefined content, which is the caller's until its operation ends.
	Scratch(rows, cols int) Mat
	// Partials is memory for PartialSums elements, which all products of an operation share.
	Partials() Mat
	// Wide reports whether products take wide tiles.
	Wide() bool
	// Faults is where kernels note ids that no row has: four words.
	Faults() Mat
}

// The codes of a noted fault.
const (
	FaultNone = iota
	FaultID
	FaultRow
	FaultPosition
	FaultTarget
)

// f returns the bits of a float32 argument.
func f(x float64) uint32 { return math.Float32bits(float32(x)) }

// b returns 1 for true.
func b(x bool) uint32 {
	if x {
		return 1
	}
	return 0
}

// chunks returns the groups of a kernel that gives 512 columns of a row to a group.
func chunks(rows, cols int) int { return rows * ceil(cols, 512) }

func ceil(a, b int) int { return (a + b - 1) / b }

// byRows calls fn for ranges of rows in which each matrix, where there is one, spans no more than a binding.
func byRows(q Queue, rows int, fn func(lo, hi int), ms ...Mat) {
	step := max(1, rows)
	for _, m := range ms {
		if !m.IsZero() && m.Row > 0 && m.Span() > q.Limit() {
			step = min(step, max(1, (q.Limit()-m.Cols)/m.Row+1))
		}
	}
	for lo := 0; lo < rows; lo += step {
		fn(lo, min(rows, lo+step))
	}
}

//go:embed spirv/manifest.json
var manifestText []byte

//go:embed spirv/kernels.spv.br
var packed []byte

// Module is a compiled kernel.
type Module struct {
	manifest.Kernel
	Code []uint32
}

// Modules returns all kernels by name. They are unpacked when they are first asked for.
var Modules = sync.OnceValue(func() map[string]*Module {
	m := Manifest()
	codes, err := m.Unpack(packed)
	if err != nil {
		panic("kernel: " + err.Error())
	}
	all := map[string]*Module{}
	for _, k := range m.Kernels {
		words := make([]uint32, len(codes[k.Name])/4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(codes[k.Name][4*i:])
		}
		all[k.Name] = &Module{k, words}
	}
	return all
})

// Manifest returns what is known of the kernels' making.
func Manifest() (m manifest.Manifest) {
	if err := json.Unmarshal(manifestText, &m); err != nil {
		panic("kernel: manifest.json: " + err.Error())
	}
	return m
}
