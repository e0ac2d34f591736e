package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"apr/device"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
)

// prepare makes what every operation needs: stream, pinned memory, scratch memory, the library for products.
func (d *Device) prepare() (err error) {
	if d.opts.Managed != nil {
		d.managed = *d.opts.Managed
	} else if d.managed, err = AllocationRule(d.Class(), os.Getenv(ManagedVariable)); err != nil {
		return err
	}
	d.kernels = newCache(d.opts.KernelLog, d.opts.StrictSeal)
	err = d.ctx.Do(func(t *driver.Thread) (err error) {
		if d.stream, err = d.newStream(t); err != nil {
			return err
		}
		if d.down.p, err = d.pin(t, ringBytes); err != nil {
			return err
		}
		return d.uploads.init(d, t)
	})
	if err != nil {
		return d.explain("Open", err)
	}
	d.statics[device.Scratch] = &pool{first: scratchSlab}
	b, err := d.take("the scratch memory of operations", device.Scratch, kernel.MaxScratch+workspace, false)
	if err != nil {
		return err
	}
	d.scratch = scratch{base: b.place.address(), products: b.place.address() + kernel.MaxScratch}
	if d.own, err = d.slots.take(d); err != nil {
		return err
	}
	return d.openProducts()
}

// scratchSlab is what a device takes as scratch memory whatever a plan says: the operations' own, and what
// is left for records and tables.
const scratchSlab = kernel.MaxScratch + workspace + 32<<20

// Class returns whose memory the device computes in.
func (d *Device) Class() MemoryClass { return ClassifyDeviceMemory(MemoryAttributesOf(d.desc)) }

// internal returns a stream for operations that belong to no other one and stay when another one fails.
func (d *Device) internal() *Stream { return &Stream{dev: d, inner: true, slot: d.own} }

// openProducts opens cublasLt unless it is missing or not wanted.
func (d *Device) openProducts() error {
	if d.opts.ForceFallbackGEMM {
		d.uses(LibraryUse{Name: string(driver.CublasLt), Missing: "not looked for, as asked"})
		return nil
	}
	lt, report, err := driver.OpenLt(d.driver.Version())
	if err != nil {
		d.uses(LibraryUse{Name: string(driver.CublasLt), Path: report.Path, Missing: whyNot(report, err)})
		return nil
	}
	o := blas.Options{
		Tune: d.opts.TuningDir != "", Dir: d.opts.TuningDir, Device: d.desc.Name, Workspace: d.scratch.products, Bytes: workspace,
	}
	if w := d.opts.KernelLog; w != nil {
		o.Log = func(line string) { fmt.Fprintln(w, line) }
	}
	use := LibraryUse{Name: string(driver.CublasLt), Path: report.Path, Version: report.Version}
	err = d.ctx.Do(func(t *driver.Thread) (err error) {
		d.gemm, err = blas.Open(t, lt, o)
		return err
	})
	var refused *driver.LtError
	if errors.As(err, &refused) { // of a version that this driver or this GPU does not serve
		d.gemm, use.Missing, err = nil, firstLine(err), nil
	}
	d.uses(use)
	return d.explain("Open", err)
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// MemInfo returns the bytes of device memory that are free and all there are, as the driver says.
func (d *Device) MemInfo() (free, total int64, err error) {
	err = d.ctx.Do(func(t *driver.Thread) (err error) {
		free, total, err = t.MemInfo()
		return err
	})
	return free, total, d.explain("MemInfo", err)
}

// release gives everything back.
func (d *Device) release(t *driver.Thread) error {
	err := t.StreamSync(d.stream)
	err = errors.Join(err, d.group.leave(t), d.leavePairs(t), d.replays.release(t), d.stages.release(t))
	if d.gemm != nil {
		err = errors.Join(err, d.gemm.Close(t))
	}
	pools := []*pool{&d.temps, &d.expansions, &d.stages.pool}
	for _, p := range d.statics {
		pools = append(pools, p)
	}
	err = errors.Join(err, d.pace.release(t))
	if d.first != nil { // whose memory it is
		pools = nil
		err = errors.Join(err, d.lent.release(t))
	}
	for _, p := range pools {
		for _, s := range p.slabs {
			err = errors.Join(err, t.Free(s.base))
		}
	}
	for _, p := range d.slots.pinned {
		err = errors.Join(err, t.HostFree(p))
	}
	if d.down.p != nil {
		err = errors.Join(err, t.HostFree(d.down.p))
	}
	err = errors.Join(err, d.fetches.release(t), d.uploads.free(t), d.pieces.release(t))
	if d.stream != 0 {
		err = errors.Join(err, t.DestroyStream(d.stream))
	}
	return err
}
