package q8

import (
	"sync"
	"unsafe"
)

const (
	hugePage  = 2 << 20
	slabBytes = 16 * hugePage
)

// Memory hands out memory for matrices from large slabs that the operating system is asked to map in huge pages: reading
// weights at the speed of memory, the processor would otherwise wait for page tables. The zero value is ready; it is safe
// for concurrent use. A slab lives as long as one of its matrices.
type Memory struct {
	mu   sync.Mutex
	free []byte
}

// take returns n zeroed bytes that start at a cache line.
func (m *Memory) take(n int) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = (n + 63) &^ 63
	if n > len(m.free) {
		if n >= slabBytes {
			return newSlab(n)
		}
		m.free = newSlab(slabBytes)
	}
	b := m.free[:n:n]
	m.free = m.free[n:]
	return b
}

// newSlab returns n zeroed bytes, from the beginning of a huge page on.
func newSlab(n int) []byte {
	n = (n + hugePage - 1) &^ (hugePage - 1)
	b := alignedTo(n, hugePage)
	adviseHuge(b)
	return b
}

// alignedTo returns n zeroed bytes that start at a multiple of align, a power of two.
func alignedTo(n, align int) []byte {
	b := make([]byte, n+align-1)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & uintptr(align-1))
	return b[skip : skip+n : skip+n]
}
