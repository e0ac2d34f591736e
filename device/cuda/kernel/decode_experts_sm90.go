package kernel

import (
	"errors"
	"fmt"
	"unsafe"

	"apr/tensor"
)

// DecodeExpertsModule has the kernel of DecodeExperts.
const DecodeExpertsModule = "decode_experts_sm90"

const (
	decodeExpertsMost   = 256      // MOST_EXPERTS of decode_experts.cuh
	decodeExpertsActive = 32       // MOST_ACTIVE
	decodeExpertsStatic = 12 << 10 // bytes of shared memory that the kernel declares, and more
)

// ExpertsShape is what all layers of experts have in common. Inter of the DecodeShape is the values of one expert.
type ExpertsShape struct {
	DecodeShape
	Experts, Active int
	Renorm          bool // the softmax is over the logits of the chosen experts, not over all logits
}

// chosen returns the shape of layers that have the chosen experts alone, as one network.
func (s ExpertsShape) chosen() DecodeShape {
	d := s.DecodeShape
	d.Inter *= s.Active
	d.Variants = true
	return d
}

// decodeExpertArgs is struct ExpertArgs of decode_experts.cuh.
type decodeExpertArgs struct {
	variantArgs
	experts, active, width, renorm uint32
	rowAt, _                       uint32
}

var _ [208]byte = [unsafe.Sizeof(decodeExpertArgs{})]byte{}

// DecodeExpertsServes returns nil if DecodeExperts supports these layers, in tiles, on a device with `blocks`
// multiprocessors, else the reason.
func DecodeExpertsServes(layers []DecodeLayer, s ExpertsShape, blocks int) error {
	most := min(s.Experts, decodeExpertsActive)
	switch {
	case len(layers) == 0:
		return errors.New("there are no layers")
	case s.Experts%4 != 0 || s.Experts > decodeExpertsMost || s.Active < 1 || s.Active > most:
		return fmt.Errorf("%d of %d experts: %d at most of a multiple of 4 up to %d are wanted",
			s.Active, s.Experts, decodeExpertsActive, decodeExpertsMost)
	case s.Inter%256 != 0:
		return fmt.Errorf("experts of %d values: multiples of 256 are wanted", s.Inter)
	case s.Active*s.Inter/32*ceil(s.Hidden, TileRows) >= 1<<24:
		return errors.New("the chosen experts of a layer are too large")
	}
	if err := decodeHeads(s.chosen()); err != nil {
		return err
	}
	for i := range layers {
		l := &layers[i]
		if err := l.readable(i, layers[0].Cache.Stride, s.shapes()); err != nil {
			return err
		}
		r := l.Router
		if r.Type != tensor.BF16 || r.Rows != s.Experts || r.Cols != s.Hidden || r.Stride != s.Hidden || !rowsAt(r, 16) {
			return fmt.Errorf("the router of layer %d stands as the kernel cannot read it", i)
		}
		for _, w := range [...]Blocks{l.GateUp[0], l.GateUp[1], l.Down} {
			if w.Rows/s.Experts*w.RowBytes%layersAlign != 0 {
				return fmt.Errorf("experts of layer %d do not begin at multiples of %d bytes", i, layersAlign)
			}
		}
	}
	if _, ok := shapeExperts(layers, s, blocks); !ok {
		return noRoom(max(s.Hidden, s.Active*s.Inter), s.Shared)
	}
	return nil
}

// shapes returns the rows and columns of a layer's matrices.
func (s ExpertsShape) shapes() (shapes [layersMatrices][2]int) {
	shapes = s.DecodeShape.shapes()
	for i, rows := range [...]int{s.Inter, s.Inter, s.Hidden} {
		shapes[4+i] = [2]int{s.Experts * rows, shapes[4+i][1]}
	}
	return shapes
}

// shapeExperts is shapeLayers of the chosen experts. Behind x of the block's rows stand a row of x and one of the
// router.
func shapeExperts(layers []DecodeLayer, s ExpertsShape, blocks int) (p layersPlan, ok bool) {
	c := s.chosen()
	c.Shared += layersStatic - decodeExpertsStatic
	return shapeLayersWith(layers, c, blocks, 2*2*s.Hidden)
}

// DecodeExperts is DecodeLayers with s.Variants of a model of experts: its layers have, instead of GateUp and Down,
// the matrices of all experts below each other, and a Router, whose logits choose the s.Active largest, ties by the
// lowest number:
//
//	x += Σ weight·down(silu(g)·u), g and u of gateUp(norm(x)), over the chosen experts
//
// Weights multiply silu(g)·u before that is rounded to bfloat16. Logits are float32.
//
// Bytes moved: those of the chosen experts and of all other blocks, and of the keys and values up to the position,
// once.
func DecodeExperts(queue Queue, y, x, norm Mat, layers []DecodeLayer, s ExpertsShape, position int, table uint64) {
	blocks := max(1, queue.Multiprocessors())
	p, ok := shapeExperts(layers, s, blocks)
	need(ok && rowsAt(x, 16) && rowsAt(y, 16) && rowsAt(norm, 16), "DecodeExperts", "shared memory or alignment")
	need(x.Cols == s.Hidden && y.Cols == s.Hidden && norm.Cols == s.Hidden, "DecodeExperts", "shapes differ")
	c := s.chosen()
	a := &decodeExpertArgs{
		variantArgs: newVariantArgs(queue, y, x, norm, layers, c, p, position, table, 0, 2*4*s.Experts),
		experts:     uint32(s.Experts), active: uint32(s.Active), width: uint32(s.Inter), renorm: uint32(flag(s.Renorm)),
		rowAt: uint32(p.bias - 2*2*s.Hidden),
	}
	queue.Launch(Launch{
		Module: DecodeExpertsModule, Kernel: "decode_experts" + forTypes(layers), Grid: [3]int{blocks, 1, 1},
		Block: 32 * layersWarps, Shared: p.shared, Together: true, Args: unsafe.Pointer(a),
	})
}
