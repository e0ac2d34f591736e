package device

import (
	"maps"
	"sync"

	"apr/tensor"
)

// State says how a buffer may be used.
type State uint8

// The states of a buffer.
const (
	Gone      State = iota // given back
	Lasting                // of Alloc, or a device's own
	Temporary              // of Temp
)

// Accounts counts bytes of device memory by component. The zero value counts nothing yet; any goroutine may use it.
type Accounts struct {
	mu        sync.Mutex
	now, peak map[Component]int64
}

// Add books n more bytes of c, or −n fewer.
func (a *Accounts) Add(c Component, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.now == nil {
		a.now, a.peak = map[Component]int64{}, map[Component]int64{}
	}
	a.now[c] += n
	a.peak[c] = max(a.peak[c], a.now[c])
}

// Memory returns copies of the bytes booked now and at the highest point of each component.
func (a *Accounts) Memory() (now, peak map[Component]int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, peak = map[Component]int64{}, map[Component]int64{}
	maps.Copy(now, a.now)
	maps.Copy(peak, a.peak)
	return now, peak
}

// ForgetPeak takes what is held now for the highest point.
func (a *Accounts) ForgetPeak() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.peak = map[Component]int64{}
	for c, n := range a.now {
		if n > 0 {
			a.peak[c] = n
		}
	}
}

// NewParam makes a trainable tensor of a device: value, gradient and two moments from alloc, in this order, and then the
// weight that reads the value, or what the blocks of spec decode to. copied says that this weight is a copy of the
// value.
func NewParam(spec ParamSpec, copied bool, alloc func(name string, c Component, d tensor.DType, rows, cols int) Tensor,
	weight func(value Tensor) Weight) *Param {
	single := func(what string, c Component) Tensor {
		return alloc(spec.Name+what, c, tensor.F32, spec.Rows, spec.Cols)
	}
	value := single
	if copied {
		value = func(what string, c Component) Tensor { return newShared(spec, spec.Name+what, c, alloc) }
	}
	p := &Param{
		ParamSpec: spec,
		Value:     value("", StudentWeights),
		Grad:      single(".grad", Gradients),
		M:         newShared(spec, spec.Name+".m", Moments, alloc),
		V:         newShared(spec, spec.Name+".v", Moments, alloc),
	}
	if len(spec.Blocks) > 0 {
		spec.checkBlocks()
		p.Stored = alloc(spec.Name+".blocks", StudentWeights, tensor.U8, 1, int(spec.storedBytes()))
		p.Rounded = single(".rounded", StudentWeights)
	}
	p.Weight = weight(p.Read())
	return p
}
