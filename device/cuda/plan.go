package cuda

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"apr/device"
	"apr/device/arena"
	"apr/device/cuda/blas"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/device/cuda/kernel/manifest"
	"apr/device/dry"
	"apr/tensor"
)

var _ dry.Planned = (*Device)(nil)

// Target describes the device for one dry run: the record of a step that was run dry says what Prepare takes.
func (d *Device) Target() dry.Target {
	t := dry.Target{
		Info: d.Info(), Matrices: d.act, Keep: d.keep, Temps: arena.New(alignment), Align: alignment, Reserved: scratchSlab, Link: linkRate(d.Class()),
	}
	t.Share = d.share
	if b, err := d.Budget(); err == nil {
		t.Budget, t.Reserve = b.Bytes+d.counts.allocated.Load(), b.Free-b.Bytes
	}
	return t
}

// ImaginedTarget describes a discrete GPU with `free` bytes of free memory, for plans on a machine without one.
func ImaginedTarget(c Compute, free int64) dry.Target {
	d, b := &Device{act: c.activations(), opts: Options{Compute: c}}, MemoryBudget(Discrete, free, HostMemory{})
	return dry.Target{
		Info:     device.Info{Kind: "cuda", Name: fmt.Sprintf("a GPU of %.1f GiB", float64(free)/(1<<30)), Activations: d.act, Adds: true, TF32: c == TF32},
		Matrices: d.act, Keep: d.keep, Temps: arena.New(alignment), Align: alignment, Reserved: scratchSlab,
		Link: linkRate(Discrete), Budget: max(1, b.Bytes), Reserve: b.Free - b.Bytes, // a budget of 0 would be unknown
	}
}

// linkRate returns how many bytes a second plans take to come from page-locked memory of the host: of PCIe 5.0 with 16
// lanes about 50e9 of 64e9, of NVLink-C2C about 350e9 of 450e9.
func linkRate(c MemoryClass) float64 {
	if c == Coherent {
		return 350e9
	}
	return 50e9
}

// Budget returns how much memory the device could still get.
func (d *Device) Budget() (Budget, error) {
	free, _, err := d.MemInfo()
	if err != nil || d.Class() != Integrated {
		return MemoryBudget(d.Class(), free, HostMemory{}), err
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return Budget{}, unavailable("the host's memory is not known", err)
	}
	defer f.Close()
	h, err := ReadHostMemory(f)
	return MemoryBudget(d.Class(), free, h), err
}

// Prepare takes all memory that a step needs by its dry record, and loads its kernels and plans its products, before any
// weight comes: then nothing is allocated or loaded later. Without memory it is a fault of kind Memory.
func (d *Device) Prepare(r *dry.Record) error { return d.prepareFor(r, d.shapes(r)) }

// PrepareOnce is Prepare for work whose products are hardly run again, such as those of one prompt: measuring algorithms would take
// longer than they do, so that they are planned when they come.
func (d *Device) PrepareOnce(r *dry.Record) error { return d.prepareFor(r, nil) }

func (d *Device) prepareFor(r *dry.Record, products []blas.Shape) error {
	if err := errors.Join(d.reserve(r), d.reserveExpansion(r), d.reserveStages(r.Staging)); err != nil {
		return err
	}
	u := d.usesOf(r)
	return d.prewarm(d.modules(&u), products)
}

// uses are what decides which modules a step needs.
type uses struct {
	modules           map[string]bool // of attention, and those that are optional
	blocks, fp8       bool
	decode            bool // products of a few rows with blocks
	tiles             bool // which are in tiles
	generates, trains bool
}

func (d *Device) usesOf(r *dry.Record) uses {
	u := uses{modules: map[string]bool{}, generates: r.Static[device.KVCache] > 0}
	var turned, attended int64
	linear := false
	if u.generates && d.act == tensor.BF16 {
		u.modules[kernel.FinishModule] = true
	}
	for _, o := range r.Ops {
		switch o.Kind {
		case device.OpDeltaNet:
			linear = true
		case device.OpRotate:
			turned += o.Times
		case device.OpAttention:
			attended += o.Times
		}
		if o.Kind == device.OpHeadNorm || o.Kind == device.OpScale || o.Partial || o.Kind == device.OpAttention && o.Attn.Window > 0 {
			u.modules[kernel.VariantsModule] = true // if all layers are decoded at once
		}
		for _, m := range d.modulesOf(o.Op) {
			u.modules[m] = true
		}
		inBlocks := o.Kind.ReadsWeight() && o.Expands
		u.blocks = u.blocks || inBlocks
		u.decode = u.decode || inBlocks && o.Direct
		if inBlocks && o.Arranged {
			u.tiles = true
			for _, m := range kernel.TileProductModules(o.Weight) {
				u.modules[m] = true
			}
		}
		u.fp8 = u.fp8 || o.FP8
		u.trains = u.trains || o.Kind.Trains()
	}
	if attended > 0 && turned%attended != 0 { // some layers rotate nothing
		u.modules[kernel.VariantsModule] = true
	}
	if r.Decode != nil {
		m, err := decodeModule(*r.Decode)
		if err == nil && (m == kernel.GeneralModule || m == kernel.DecodeExpertsModule) {
			u.modules[m] = true
			delete(u.modules, kernel.VariantsModule)
		}
		if err == nil && r.Few > 1 && passLacks(*r.Decode, m) == "" {
			u.modules[kernel.PassModule] = true
		}
	}
	if linear { // layers of linear attention are decoded operation by operation
		delete(u.modules, kernel.VariantsModule)
	}
	return u
}

// modulesOf names the modules that an operation needs on this device beside those that every step has.
func (d *Device) modulesOf(o dry.Op) []string {
	switch {
	case o.Thin > 0: // the last runs on compute capability 9.0 alone
		return []string{kernel.LowRankModule, kernel.PointwiseModule, kernel.SwiGLULowModule}
	case o.Kind == device.OpMatMulGLU && o.Act != device.SiLU && !o.FP8 && d.fusesPlanned(o): // SiLU's is every step's
		return append(modulesOf(o, d.act, d.opts.Compute == TF32), kernel.GemmGLUModule(o.Act))
	case !o.Kind.Grouped() || !d.manySlotsPlanned(o):
		return modulesOf(o, d.act, d.opts.Compute == TF32)
	case o.Kind == device.OpGroupedWeightGrad:
		return []string{kernel.ExpertsModule, kernel.ExpertsSM90Module}
	}
	return []string{kernel.ExpertsSM90Module}
}

// modulesOf names those that any device needs.
func modulesOf(o dry.Op, act tensor.DType, tf32 bool) []string {
	switch o.Kind {
	case device.OpAttention, device.OpAttentionBackward:
		modules := kernel.AttentionModules(o.Attn, o.Documents, act, tf32)
		if o.Sinks {
			modules = append(modules, kernel.SinksModule)
		}
		return modules
	case device.OpAttendPages:
		return []string{kernel.PagesModule}
	case device.OpDeinterleave, device.OpInterleave:
		return []string{kernel.TurnsModule}
	case device.OpHeadNorm, device.OpHeadNormBackward:
		return []string{kernel.HeadNormModule}
	case device.OpConv, device.OpConvBackward:
		return []string{kernel.ConvModule}
	case device.OpDeltaNet:
		return []string{kernel.DeltaModule}
	case device.OpDeltaNetBackward:
		modules := []string{kernel.DeltaModule, kernel.DeltaBackwardModule}
		if act == tensor.BF16 {
			modules = append(modules, kernel.DeltaTensorModule)
		}
		return modules
	case device.OpQuantize:
		return kernel.QuantizeModules(strings.Split(o.Weight, "+"))
	case device.OpDropout:
		return []string{kernel.DropoutModule}
	case device.OpDrawNext:
		return []string{kernel.DrawNextModule}
	case device.OpCompareMaps:
		return []string{kernel.MapsModule}
	case device.OpDrawMany:
		return []string{kernel.DrawManyModule}
	case device.OpProject:
		return []string{kernel.ProjectModule}
	case device.OpMix, device.OpSquaredError:
		return []string{kernel.GuideModule}
	case device.OpScale, device.OpAdd, device.OpSoftCap:
		return []string{kernel.PointwiseModule}
	case device.OpGLU, device.OpGLUBackward, device.OpMatMulGLU:
		return []string{kernel.GLUModule(o.Act)}
	case device.OpRotate:
		if o.Partial {
			return []string{kernel.RotaryPartModule}
		}
	case device.OpRoute, device.OpRouteBackward, device.OpCombine, device.OpCombineBackward, device.OpCountSlots, device.OpBalanceBackward:
		return []string{kernel.ExpertsModule}
	case device.OpGroupedMatMul, device.OpGroupedInputGrad:
		return kernel.ExpertModules(o.Weight, act, o.Kind == device.OpGroupedMatMul && o.M <= kernel.ExpertRowTokens*o.Active)
	case device.OpGroupedWeightGrad:
		return []string{kernel.ExpertsModule, kernel.ExpertGradModule(act)}
	case device.OpLoss:
		if o.Capped {
			return []string{kernel.LossCappedModule}
		}
	case device.OpLossOfDraws:
		return []string{kernel.LossDrawsModule}
	}
	return nil
}

// reserve allocates one slab for the temps and one for each component of what lives longer.
func (d *Device) reserve(r *dry.Record) error {
	d.poolsMu.Lock()
	defer d.poolsMu.Unlock()
	grow := func(p *pool, name string, c device.Component, n int64) error {
		if n == 0 || len(p.slabs) > 0 {
			return nil // what is missing comes on demand
		}
		n = (n + alignment - 1) &^ (alignment - 1)
		base, _, err := d.allocate(name, c, n, n)
		if err == nil {
			p.slabs = append(p.slabs, &slab{base, n, arena.New(alignment)})
		}
		return err
	}
	for _, c := range []device.Component{
		device.TeacherWeights, device.StudentWeights, device.Gradients, device.Moments, device.KVCache, device.Batch,
		device.Activations, device.Logits, device.Besides,
	} {
		if err := grow(d.poolOf(c, false), "all of it", c, r.Static[c]); err != nil {
			return err
		}
	}
	return grow(&d.temps, "activations, logits and temporary results", device.Activations, r.Temps)
}

// reserveExpansion takes the memory in which the step's products expand matrices.
func (d *Device) reserveExpansion(r *dry.Record) error {
	if r.Expand == 0 {
		return nil
	}
	d.expansions.first = r.Expand
	return d.growExpansion(r.Expand)
}

// modules returns the modules for a step; nil: for anything, but for 8-bit floats, which only plans ask for.
func (d *Device) modules(u *uses) (all []kernel.Module) {
	for _, m := range kernel.Modules() {
		needed := d.runs(&m) && m.Serves(d.act) && (u == nil || !m.Has(manifest.Attention) && !m.Has(manifest.Optional) || u.modules[m.Name])
		for _, role := range m.Roles {
			needed = needed && u.needs(role)
		}
		if needed {
			all = append(all, m)
		}
	}
	return all
}

// needs reports whether a step needs modules of a role; nil: of any, but for 8-bit floats.
func (u *uses) needs(r manifest.Role) bool {
	if u == nil {
		return r != manifest.FP8
	}
	switch r {
	case manifest.Train:
		return u.trains
	case manifest.Blocks:
		return u.blocks
	case manifest.FewRows:
		return u.decode || u.generates
	case manifest.FewRowBlocks:
		return u.decode
	case manifest.Tiles:
		return u.tiles
	case manifest.FP8:
		return u.fp8
	}
	return true // of attention and optional ones, by name; products, unless cublasLt has them all
}

// runs reports whether a module is for this device.
func (d *Device) runs(m *kernel.Module) bool {
	if m.Emulated {
		return m.Target == d.capability()
	}
	return m.Target == manifest.BaseTarget || m.Target == d.target()
}

// capability returns the target of modules that are for the device's compute capability alone.
func (d *Device) capability() string { return fmt.Sprintf("sm_%d%da", d.desc.Major, d.desc.Minor) }

// target is capability, provided that the device has the instructions of its own, such as reading tensor maps.
func (d *Device) target() string {
	if !d.maps {
		return manifest.BaseTarget
	}
	return d.capability()
}

// shapes returns the products of a step as they will be asked for. Operands are taken to lie at multiples of 16 bytes and
// x of a weight's gradient to have no gaps: that a product is otherwise costs its plan in the first step.
func (d *Device) shapes(r *dry.Record) (all []blas.Shape) {
	thin := d.servesThin(r)
	for _, c := range r.Products() {
		if c.In != d.act || min(c.M, c.N, c.K) == 0 || c.Thin > 0 && thin && thinTypes(c.Op) {
			continue
		}
		s := blas.Shape{
			M: c.M, N: c.N, K: c.K, LDA: c.InStride, LDC: c.OutStride, In: c.In, Out: c.Out,
			Compute: d.opts.Compute.products(), Add: c.Add, Aligned: true,
		}
		switch c.Kind {
		case device.OpMatMul, device.OpMatMulGLU:
			if c.Direct { // kernels of this program
				continue
			}
			if c.FP8 {
				if c.Kind == device.OpMatMulGLU && d.fusesFP8Planned(c.Op, r.Expand) {
					continue
				}
				all = append(all, fp8Shapes(c, r.Expand)...)
				continue
			}
			s.Op, s.LDB, s.Bias = blas.NT, c.K, c.Bias
			if c.Kind == device.OpMatMulGLU && d.fusesPlanned(c.Op) && d.plannedSlab(c, r) == s.N {
				continue
			}
			all = append(all, d.slabShapes(s, c, r)...)
			continue
		case device.OpMatMulInputGrad:
			s.Op, s.LDB = blas.NN, c.N
		case device.OpMatMulWeightGrad:
			s.Op, s.LDB = blas.TN, c.N
			first := s
			first.Add = false // the first of a step overwrites: see lazy.go
			all = append(all, first)
		}
		all = append(all, s)
	}
	return all
}

// plannedSlab returns how many rows of the matrix of a product are multiplied at a time.
func (d *Device) plannedSlab(c dry.Count, r *dry.Record) int {
	if !c.Expands {
		return c.N
	}
	return slabRows(c.N, d.act.RowBytes(c.K), r.Expand)
}

// slabShapes returns the products that s becomes: itself, or one for each size of a slab of a matrix in blocks.
func (d *Device) slabShapes(s blas.Shape, c dry.Count, r *dry.Record) []blas.Shape {
	step := d.plannedSlab(c, r)
	rest := s
	s.N, rest.N = step, c.N%max(1, step)
	if rest.N == 0 {
		return []blas.Shape{s}
	}
	return []blas.Shape{s, rest}
}

// prewarm loads modules and plans products. With cublasLt the modules of our own products are skipped, unless it
// declines one.
func (d *Device) prewarm(modules []kernel.Module, shapes []blas.Shape) error {
	return d.explain("Prepare", d.ctx.Do(func(t *driver.Thread) error {
		declined, err := d.planAll(t, shapes)
		if err != nil {
			return err
		}
		for _, m := range modules {
			if m.Has(manifest.Products) && d.gemm != nil && declined == 0 {
				d.kernels.skip(m, "cublasLt is bound")
				continue
			}
			if err := d.kernels.load(t, m); err != nil {
				return err
			}
		}
		return nil
	}))
}

// planAll plans products, measuring in the memory of temps, and returns how many cublasLt declines.
func (d *Device) planAll(t *driver.Thread, shapes []blas.Shape) (declined int, err error) {
	if d.gemm == nil {
		return 0, nil
	}
	var room blas.Region
	if len(d.temps.slabs) > 0 && d.temps.slabs[0].places.Used() == 0 {
		room = blas.Region{Ptr: d.temps.slabs[0].base, Bytes: d.temps.slabs[0].size}
	}
	before := d.gemm.Plans()
	none, err := d.gemm.Prewarm(t, d.stream, shapes, room)
	for _, s := range none {
		if s.Compute == blas.FP8 {
			return 0, noFP8(s)
		}
		d.unplanned[s] = true
	}
	d.kernels.planned(d.gemm.Plans() - before)
	return len(none), err
}

// Prewarm loads all kernels that the device may need, for runs that have no plan.
func (d *Device) Prewarm() error { return d.prewarm(d.modules(nil), nil) }

// Seal ends the time of loading: a kernel or product that is loaded from now on is counted in Stats().LateLoads and
// logged, and with Options.StrictSeal fails its stream.
func (d *Device) Seal() {
	_ = d.ctx.Do(func(*driver.Thread) error { // behind everything queued
		d.kernels.seal()
		return nil
	})
}

// matrixCopy returns the type of the copy of a parameter that products read, or F32 for none: vectors have no products.
func (d *Device) matrixCopy(rows int) tensor.DType {
	if rows > 1 {
		return d.act
	}
	return tensor.F32
}
