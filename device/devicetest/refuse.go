package devicetest

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"apr/device"
	"apr/tensor"
)

// A refusal is a call that breaks one precondition of an operation. Every device refuses it with the same Misuse, before it
// has done anything: a dry run that accepts what the device behind it refuses plans a run that cannot be.

// desk makes operands for refusals. Values do not matter, so a device that has none can be tried too.
type desk struct {
	dev    device.Device
	s      device.Stream
	act    tensor.DType // of activations
	other  tensor.DType // the other of float32 and bfloat16
	temps  []device.Tensor
	lasted []device.Tensor
}

func newDesk(d device.Device) *desk {
	k := &desk{dev: d, s: d.NewStream(), act: d.Info().Activations, other: tensor.BF16}
	if k.act == tensor.BF16 {
		k.other = tensor.F32
	}
	return k
}

// of makes a tensor of a type.
func (k *desk) of(d tensor.DType, rows, cols int) device.Tensor {
	t := k.s.Temp("operand", device.Activations, d, rows, cols)
	k.temps = append(k.temps, t)
	return t
}

func (k *desk) acts(rows, cols int) device.Tensor   { return k.of(k.act, rows, cols) }
func (k *desk) others(rows, cols int) device.Tensor { return k.of(k.other, rows, cols) }
func (k *desk) single(rows, cols int) device.Tensor { return k.of(tensor.F32, rows, cols) }
func (k *desk) narrow(rows, cols int) device.Tensor { return k.of(tensor.BF16, rows, cols) }

// ids makes n ids, all zero.
func (k *desk) ids(n int) device.Tensor {
	t := k.of(tensor.I32, n, 1)
	k.s.UploadInts(t, make([]int32, n))
	return t
}

// weight makes a matrix.
func (k *desk) weight(rows, cols int) device.Weight {
	t := k.dev.Alloc("weight", device.TeacherWeights, tensor.F32, rows, cols)
	k.lasted = append(k.lasted, t)
	return k.dev.Frozen(t)
}

// param makes a parameter.
func (k *desk) param(rows, cols int) *device.Param {
	return k.dev.Param(device.ParamSpec{Name: "param", Rows: rows, Cols: cols})
}

// gone makes a tensor that was given back.
func (k *desk) gone(d tensor.DType, rows, cols int) device.Tensor {
	t := k.s.Temp("given back", device.Activations, d, rows, cols)
	k.s.Release(t)
	return t
}

// clear gives everything back.
func (k *desk) clear() {
	k.s.Release(k.temps...)
	k.dev.Free(k.lasted...)
	k.temps, k.lasted = nil, nil
}

// Refusal is a call with one mistake.
type Refusal struct {
	Name string // operation, then the mistake: "Rotate/odd head size"
	op   device.Op
	what string        // of the Misuse
	call func(k *desk) // panics
	good func(k *desk) // the same call without the mistake
}

// Check makes the right call and then the wrong one, and returns an error unless the first is accepted and the second refused
// as the table says, with the stream as good as before.
func (r Refusal) Check(d device.Device) error {
	k := newDesk(d)
	defer k.clear()
	if r.op.Feature() == device.Quantizes && slices.Contains(d.Info().Lacks, device.Quantizes) {
		if _, ok := k.s.(device.Quantizer); ok {
			return fmt.Errorf("a device without %s has streams that are a Quantizer", device.Quantizes)
		}
		return nil // there is nothing to call
	}
	if r.good != nil {
		if v := misuseOf(func() { r.good(k) }); v != nil {
			return fmt.Errorf("the call without the mistake panics with %v", v)
		}
		if _, err := k.s.Wait(context.Background()); err != nil && d.Info().Kind != "dry" && !slices.Contains(d.Info().Lacks, r.op.Feature()) {
			return fmt.Errorf("the call without the mistake fails: %w", err)
		}
	}
	switch v := misuseOf(func() { r.call(k) }).(type) {
	case nil:
		return fmt.Errorf("%s was not refused: %s", r.op, r.what)
	case device.Misuse:
		if v.Op != r.op || v.What != r.what {
			return fmt.Errorf("refused with %q, want %q", v.Error(), device.Misuse{Op: r.op, What: r.what}.Error())
		}
	default:
		return fmt.Errorf("panics with %v, want %q", v, device.Misuse{Op: r.op, What: r.what}.Error())
	}
	if _, err := k.s.Wait(context.Background()); err != nil {
		return fmt.Errorf("a refusal became an error of the stream: %w", err)
	}
	return nil
}

// misuseOf returns what f panics with, or nil.
func misuseOf(f func()) (v any) {
	defer func() { v = recover() }()
	f()
	return nil
}

// Refuse tries every refusal on one device from open. Run does so too; it is all that a device without values can be asked.
func Refuse(t *testing.T, open func() device.Device) {
	t.Helper()
	d := open()
	for _, r := range Refusals() {
		t.Run(r.Name, func(t *testing.T) {
			if err := r.Check(d); err != nil {
				t.Error(err)
			}
		})
	}
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// wrong is a mistake in the operands A of an operation.
type wrong[A any] struct {
	name, what string
	spoil      func(k *desk, a *A)
}

// refusals are the mistakes in a call: operands returns right ones.
func refusals[A any](op device.Op, operands func(k *desk) A, call func(s device.Stream, a A), all ...wrong[A]) (list []Refusal) {
	for _, w := range all {
		list = append(list, Refusal{
			Name: op.String() + "/" + w.name, op: op, what: w.what,
			good: func(k *desk) { call(k.s, operands(k)) },
			call: func(k *desk) {
				a := operands(k)
				w.spoil(k, &a)
				call(k.s, a)
			},
		})
	}
	return list
}
