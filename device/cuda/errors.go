package cuda

import (
	"errors"
	"fmt"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/internal/fault"
)

// explain turns an error of the driver that ended operation op into a fault, and remembers if the device is lost. Other
// errors, which are faults already, pass.
func (d *Device) explain(op string, err error) error {
	var e *driver.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	if f := (*fault.Error)(nil); errors.As(err, &f) {
		return err
	}
	if !e.DeviceLost() {
		return fault.New(fault.Inference, "%s failed on %s", op, d.desc.Name).WithID("E-CUDA-010").Because(err)
	}
	lost := fault.New(fault.Inference, "%s was lost during %s", d.desc.Name, op).
		WithHint("look at the kernel log (dmesg) for Xid messages of the driver; a run can be resumed from its last checkpoint").
		WithID("E-CUDA-011").Because(err)
	d.lost.CompareAndSwap(nil, &sentinel{lost})
	return d.lost.Load().err
}

// lostError returns why the device can no longer be used, or nil.
func (d *Device) lostError() error {
	if s := d.lost.Load(); s != nil {
		return s.err
	}
	return nil
}

// outOfMemory is the fault of an allocation of n bytes for c when free bytes were left.
func outOfMemory(d *Device, name string, c device.Component, n, free int64, cause error) error {
	return fault.New(fault.Memory, "no memory for %s on %s: %s wanted for component %s, %s free",
		name, d.desc.Name, mebibytes(n), c, mebibytes(free)).
		WithHint("apr gpu shows how much is free; other programs may hold the rest; --backend cpu takes none of it").
		WithID("E-CUDA-023").Because(cause)
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// idOutside is the fault of an id that no row has.
func idOutside(op string, id, limit int64) *fault.Error {
	return fault.New(fault.Invalid, "%s: id %d outside [0, %d)", op, id, limit).WithID("E-CUDA-012")
}

// recordedFault returns the error that a kernel noted in the record, or nil.
func (d *Device) recordedFault(r *kernel.Record) error {
	switch r.Fault {
	case kernel.FaultNone:
		return nil
	case kernel.FaultID:
		return idOutside("Embed or Project", r.FaultValue, r.FaultLimit)
	case kernel.FaultTarget:
		return idOutside("Loss", r.FaultValue, r.FaultLimit)
	case kernel.FaultRow:
		return idOutside("Gather, Scatter or Project", r.FaultValue, r.FaultLimit)
	case kernel.FaultPosition:
		return idOutside("Rotate: position", r.FaultValue, r.FaultLimit)
	case kernel.FaultWeight:
		return d.unfit(r.FaultValue, r.FaultLimit)
	}
	return fault.New(fault.Inference, "a kernel noted the unknown error %d (%d, %d)", r.Fault, r.FaultValue, r.FaultLimit).
		WithID("E-CUDA-013")
}

// isOutOfMemory reports whether err is the driver's word that memory ran out.
func isOutOfMemory(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && e.OutOfMemory()
}
