package devicetest

import (
	"testing"

	"apr/device"
	"apr/internal/ref"
	"apr/quant"
	"apr/tensor"
)

// blockOps are the parts of quantisation-aware training that a mutant may change.
type blockOps struct {
	stays         bool    // Quantize does nothing
	searches      bool    // always
	rounds        bool    // never searches
	guards        bool    // a refused step changes nothing
	readsValue    bool    // products read the weights themselves
	gradient      float64 // factor of the gradient of a parameter with blocks
	setsAsIs      bool    // SetStored keeps the bytes
	refreshRounds bool    // RefreshWeight keeps scales
}

func rightBlocks() blockOps { return blockOps{guards: true, gradient: 1, setsAsIs: true} }

// RefreshRead does nothing: products read Rounded.
func (s *slowStream) RefreshRead(p *device.Param) { device.CheckRefreshRead(p) }

// Quantize is that of device.Quantizer.
func (s *slowStream) Quantize(params []*device.Param, search bool) {
	device.CheckQuantize(params)
	o := s.ops.blocks
	if o.stays || o.guards && s.scalars.Refused() {
		return
	}
	for _, p := range params {
		if len(p.Blocks) > 0 {
			s.makeBlocks(p, (search || o.searches) && !o.rounds)
		}
	}
}

func (s *slowStream) makeBlocks(p *device.Param, search bool) {
	stored := make([]byte, p.Stored.Cols)
	if err := s.StoredBytes(stored, p); err != nil {
		return
	}
	values, at, rest := singles(s.read(p.Value)), 0, stored
	for _, b := range p.Blocks {
		size, n := int(b.Bytes(p.Cols)), b.Rows*p.Cols
		var err error
		switch {
		case !b.DType.IsQuantized():
			tensor.Narrow(rest[:size], values[at:at+n], b.DType)
		case search:
			err = quant.Quantize(rest[:size], values[at:at+n], b.DType)
		default:
			err = quant.Round(rest[:size], values[at:at+n], b.DType)
		}
		if err != nil {
			s.err = err
		}
		at, rest = at+n, rest[size:]
	}
	s.keepStored(p, stored)
}

// keepStored writes bytes and what they decode to.
func (s *slowStream) keepStored(p *device.Param, stored []byte) {
	bytes := p.Stored.Buf.(*slowBuffer).v
	for i, v := range stored {
		bytes[i] = float64(v)
	}
	if s.ops.blocks.readsValue {
		s.write(p.Rounded, s.read(p.Value))
		return
	}
	values, at := make([]float32, p.Rows*p.Cols), 0
	for _, b := range p.Blocks {
		size, n := int(b.Bytes(p.Cols)), b.Rows*p.Cols
		if b.DType.IsQuantized() {
			quant.Dequantize(values[at:at+n], stored[:size], b.DType)
		} else {
			tensor.Widen(values[at:at+n], stored[:size], b.DType)
		}
		at, stored = at+n, stored[size:]
	}
	s.write(p.Rounded, ref.Of(p.Rows, p.Cols, values))
}

func (s *slowStream) StoredBytes(dst []byte, p *device.Param) error {
	device.CheckStoredBytes(p, len(dst))
	for i := range dst {
		dst[i] = byte(p.Stored.Buf.(*slowBuffer).v[i])
	}
	return s.err
}

func (s *slowStream) SetStored(p *device.Param, src []byte) {
	device.CheckStoredBytes(p, len(src))
	if s.ops.blocks.setsAsIs {
		s.keepStored(p, src)
	} else {
		s.makeBlocks(p, true)
	}
}

// TestSuiteCatchesMutantsOfBlocks: mistakes of quantisation-aware training.
func TestSuiteCatchesMutantsOfBlocks(t *testing.T) {
	for name, plant := range map[string]func(*blockOps){
		"stale blocks after an update":         func(o *blockOps) { o.stays = true },
		"straight-through applied twice":       func(o *blockOps) { o.gradient = 2 },
		"no gradient through blocks":           func(o *blockOps) { o.gradient = 0 },
		"scales searched for at every update":  func(o *blockOps) { o.searches = true },
		"scales searched for once":             func(o *blockOps) { o.rounds = true },
		"blocks of a refused step":             func(o *blockOps) { o.guards = false },
		"products read the weights themselves": func(o *blockOps) { o.readsValue = true },
		"blocks that were given are made anew": func(o *blockOps) { o.setsAsIs = false },
		"RefreshWeight keeps scales":           func(o *blockOps) { o.refreshRounds = true },
	} {
		t.Run(name, func(t *testing.T) {
			d := newSlow(tensor.F32)
			plant(&d.ops.blocks)
			caught(t, d, "quantize/")
		})
	}
}
