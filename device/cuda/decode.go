package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"apr/device"
	"apr/device/cuda/driver"
	"apr/device/cuda/kernel"
	"apr/tensor"
)

var _ device.Decoder = (*Stream)(nil)

// Decode runs all layers for one position, or up to kernel.DecodeRowsMost, as one launch, where all their matrices are
// block-quantised. The first call converts them to tiles, in place; products of many rows convert what they expand back
// to rows.
func (s *Stream) Decode(y, x device.Tensor, d device.Decode) error {
	device.CheckDecode(y, x, d)
	module, err := decodeModule(d)
	if err != nil {
		return err
	}
	if !s.dev.decodesLayers() || x.DType != tensor.BF16 || y.DType != tensor.BF16 {
		return fmt.Errorf("the kernel of all layers is for bfloat16 on compute capability 9.0, this is %s on %d.%d", s.dev.act, s.dev.desc.Major, s.dev.desc.Minor)
	}
	if module == kernel.GeneralModule && x.Rows == 1 {
		return s.decodeGeneral(y, x, d)
	}
	if what := passLacks(d, module); what != "" && x.Rows > 1 {
		return fmt.Errorf("the kernel of all layers for several positions does not compute %s", what)
	}
	shape := s.decodeShape(x.Cols, d)
	if module == kernel.DecodeExpertsModule {
		return s.decodeExperts(y, x, d, shape)
	}
	shape.Variants = module == kernel.VariantsModule
	layers, err := decodeLayers(d, shape)
	if err == nil && x.Rows == 1 {
		err = kernel.DecodeServes(layers, shape, s.dev.desc.Multiprocessors)
	} else if err == nil {
		err = kernel.DecodeRowsServes(layers, shape, x.Rows, s.dev.desc.Multiprocessors)
	}
	if err != nil {
		return err
	}
	launch := kernel.DecodeLayers
	if x.Rows > 1 {
		launch = kernel.DecodeRows
	}
	s.decodeBy(y, x, d, layers, func(o *operation, at, table uint64) {
		launch(o, mat(y), mat(x), mat(d.Norm), layers, shape, d.Position, at, table)
	})
	return nil
}

// decodeShape returns what all layers have in common, whose first has the least that any has.
func (s *Stream) decodeShape(hidden int, d device.Decode) kernel.DecodeShape {
	first := &d.Layers[0]
	return kernel.DecodeShape{
		Hidden: hidden, Inter: networkWidth(first), Heads: first.Heads, KVHeads: first.KVHeads, HeadDim: first.HeadDim,
		Eps: d.Eps, Scale: first.Scale, Residual: one(first.Residual), Shared: s.dev.desc.SharedPerBlockOptin,
	}
}

// decodeExperts is Decode by the kernel for experts.
func (s *Stream) decodeExperts(y, x device.Tensor, d device.Decode, common kernel.DecodeShape) error {
	e := d.Layers[0].Experts
	shape := kernel.ExpertsShape{DecodeShape: common, Experts: e.Count, Active: e.Active, Renorm: e.Renorm}
	layers, err := decodeLayers(d, common)
	if err == nil {
		err = kernel.DecodeExpertsServes(layers, shape, s.dev.desc.Multiprocessors)
	}
	if err != nil {
		return err
	}
	s.decodeBy(y, x, d, layers, func(o *operation, at, _ uint64) {
		kernel.DecodeExperts(o, mat(y), mat(x), mat(d.Norm), layers, shape, d.Position, at)
	})
	return nil
}

// decodeBy launches a kernel that reads the table of layers, at an address, and the first rotary table.
func (s *Stream) decodeBy(
	y, x device.Tensor, d device.Decode, layers []kernel.DecodeLayer, launch func(o *operation, at, table uint64),
) {
	o := s.beginDecode(y, x, d)
	if o == nil {
		return
	}
	table, err := s.decodeTables(d, x.Rows, func(i int) *kernel.DecodeLayer { return &layers[i] })
	if err != nil {
		s.fail(err)
		return
	}
	s.sendTable(o, kernel.DecodeTableBytes(len(layers)), func(dst []byte) { kernel.DecodeTable(dst, layers) }, func(o *operation, at uint64) {
		launch(o, at, table)
	})
}

// decodeGeneral is Decode by the kernel that knows every feature.
func (s *Stream) decodeGeneral(y, x device.Tensor, d device.Decode) error {
	shape := kernel.GeneralShape{Hidden: x.Cols, Eps: d.Eps, Shared: s.dev.desc.SharedPerBlockOptin}
	layers, err := generalLayers(d, x.Cols)
	if err == nil {
		err = kernel.GeneralServes(layers, shape, s.dev.desc.Multiprocessors)
	}
	if err != nil {
		return err
	}
	o := s.beginDecode(y, x, d)
	if o == nil {
		return nil
	}
	if _, err := s.decodeTables(d, 1, func(i int) *kernel.DecodeLayer { return &layers[i].DecodeLayer }); err != nil {
		s.fail(err)
		return nil
	}
	s.sendTable(o, kernel.GeneralTableBytes(len(layers)), func(dst []byte) { kernel.GeneralTable(dst, layers) }, func(o *operation, at uint64) {
		kernel.DecodeGeneral(o, mat(y), mat(x), mat(d.Norm), layers, shape, at)
	})
	return nil
}

// beginDecode puts the layers' matrices into tiles where they are not, and begins the operation; nil: the stream has failed.
func (s *Stream) beginDecode(y, x device.Tensor, d device.Decode) *operation {
	touched := []device.Tensor{y, x, d.Norm}
	for i := range d.Layers {
		l := &d.Layers[i]
		touched = append(touched, l.Cache)
		matrices := []device.Weight{l.QKV, l.O}
		if e := l.Experts; e != nil {
			matrices = append(matrices, e.Gate, e.Up, e.Down)
		} else {
			matrices = append(matrices, l.GateUp, l.Down)
		}
		if p := l.PerLayer; p != nil {
			matrices, touched = append(matrices, p.Gate, p.Project), append(touched, p.Input)
		}
		for _, w := range matrices {
			if w := w.(*weight); !w.tiled {
				s.tile(w)
			}
		}
	}
	o := s.begin("Decode", touched...)
	if o != nil {
		o.sized(len(d.Layers), x.Cols, d.Position)
	}
	return o
}

// sendTable copies a table of n bytes to the device and launches what reads it there.
func (s *Stream) sendTable(o *operation, n int, write func(dst []byte), launch func(o *operation, at uint64)) {
	at := o.Scratch(n)
	s.dev.uploads.send(o, n, write, func(o *operation, p unsafe.Pointer) {
		o.call(func(t *driver.Thread) error { return t.CopyHtoD(at, p, int64(n), s.dev.stream) })
		launch(o, at)
	})
}

// decodeTables sets how layers turn heads at the first of n positions, and returns the first table that there is.
func (s *Stream) decodeTables(d device.Decode, n int, layer func(i int) *kernel.DecodeLayer) (first uint64, err error) {
	for i := range d.Layers {
		l, k := &d.Layers[i], layer(i)
		k.QScale = device.Rotary{QBeta: l.QBeta, QLength: l.QLength}.QScale(d.Position)
		if l.Rope == nil {
			continue
		}
		table, err := s.rotary(l.Rope, d.Position+n)
		if err != nil {
			return 0, err
		}
		if first == 0 {
			first = mat(table).Ptr
		}
		k.Pairs = len(l.Rope.Inv)
		k.Table = mat(table).Ptr + uint64(4*d.Position*2*k.Pairs)
	}
	return first, nil
}

// one returns a factor of which 0 means 1.
func one(f float64) float64 {
	if f == 0 {
		return 1
	}
	return f
}

// decodeModule returns the module of the kernel that computes the layers as one launch: the first that has all their features, as those
// with fewer are faster. The error names the first feature that none has.
func decodeModule(d device.Decode) (string, error) {
	if len(d.Layers) == 0 {
		return "", errors.New("there are no layers")
	}
	general := false
	for i := range d.Layers {
		l := &d.Layers[i]
		needs := needsGeneral(l, &d.Layers[0])
		general = general || needs
		what := generalLacks(l)
		if what == "" && d.Layers[0].Experts != nil {
			what = expertsLack(l, d.Layers[0].Experts, needs)
		} else if what == "" && l.Experts != nil {
			what = "experts in some layers"
		}
		if what != "" {
			return "", fmt.Errorf("the kernel of all layers does not compute %s (layer %d)", what, i)
		}
	}
	switch {
	case d.Layers[0].Experts != nil:
		return kernel.DecodeExpertsModule, nil
	case general:
		return kernel.GeneralModule, nil
	case decodesVariants(d):
		return kernel.VariantsModule, nil
	}
	return kernel.LayersModule, nil
}

// generalLacks returns what the kernel of kernel.GeneralModule lacks for a layer, or "".
func generalLacks(l *device.DecodeLayer) string {
	if l.Act != device.SiLU && l.Act != device.GELUTanh {
		return "the activation " + l.Act.String()
	}
	if l.Gate {
		return "gated attention"
	}
	if !l.Sinks.IsZero() {
		return "attention sinks"
	}
	return ""
}

// expertsLack returns what the kernel of kernel.DecodeExpertsModule lacks for a layer of a model whose first has
// experts, or "".
func expertsLack(l *device.DecodeLayer, first *device.DecodeExperts, general bool) string {
	switch e := l.Experts; {
	case e == nil:
		return "experts in some layers"
	case e.Count != first.Count || e.Active != first.Active || e.Renorm != first.Renorm:
		return "experts that differ between layers"
	case general:
		return "experts of such layers"
	}
	return ""
}

// networkWidth returns the values between gate, up and down: of a network, or of an expert.
func networkWidth(l *device.DecodeLayer) int {
	if l.Experts != nil {
		return l.Experts.Down.Cols()
	}
	return l.Down.Cols()
}

// needsGeneral reports whether layer l of a model whose first layer is first has more than the kernels of kernel.LayersModule and
// kernel.VariantsModule compute: layers of one shape with norms before attention and network, perhaps norms of heads, heads that rotate, a part
// of them or none, a cache of which the position sees some rows, SiLU, a factor of what layers add.
func needsGeneral(l, first *device.DecodeLayer) bool {
	rows := func(w device.Tensor) bool { return !w.IsZero() && w.Cols != l.HeadDim }
	return l.AttnNorm.IsZero() || l.FFNNorm.IsZero() || !l.AttnPost.IsZero() || !l.FFNPost.IsZero() || // norms elsewhere
		l.Heads != first.Heads || l.KVHeads != first.KVHeads || l.HeadDim != first.HeadDim || // several shapes
		networkWidth(l) != networkWidth(first) ||
		rows(l.QNorm) || rows(l.KNorm) || l.VNorm || l.VIsK || l.Shared || l.Scale != first.Scale || l.Cap != 0 || !l.OBias.IsZero() || // attention
		l.Act != device.SiLU || l.PerLayer != nil || one(l.Residual) != one(first.Residual) || one(l.OutScale) != 1
}

// passLacks returns what the kernels of kernel.PassModule lack for layers that a module of one position computes, or
// "": of what kernel.VariantsModule has they know norms of heads.
func passLacks(d device.Decode, module string) string {
	switch module {
	case kernel.GeneralModule:
		return "layers of several kinds"
	case kernel.DecodeExpertsModule:
		return string(device.Experts)
	}
	layers := slices.Clone(d.Layers)
	for i := range layers {
		layers[i].QNorm, layers[i].KNorm = device.Tensor{}, device.Tensor{}
	}
	d.Layers = layers
	if decodesVariants(d) {
		return "windows, factors, or rotary embeddings but one of whole heads"
	}
	return ""
}

// decodesVariants reports whether layers have norms of heads, factors, rotary embeddings but one of whole heads, or see a part of their
// cache.
func decodesVariants(d device.Decode) bool {
	first := &d.Layers[0]
	for i := range d.Layers {
		l := &d.Layers[i]
		turns := l.Rope != nil && l.Rope == first.Rope && 2*len(l.Rope.Inv) == l.HeadDim && l.QBeta == 0
		sees := l.Row == d.Position && l.First == 0 && l.Keys == d.Position+1
		if !turns || !sees || !l.QNorm.IsZero() || !l.KNorm.IsZero() || one(l.Residual) != 1 {
			return true
		}
	}
	return false
}

// decodesLayers reports whether the device has the kernel of kernel.DecodeLayers.
func (d *Device) decodesLayers() bool {
	return d.act == tensor.BF16 && d.desc.Major == 9 && d.desc.Minor == 0
}

// decodeLayers returns the layers as the kernel reads them; all matrices must be in blocks.
func decodeLayers(d device.Decode, s kernel.DecodeShape) (all []kernel.DecodeLayer, err error) {
	q, kv := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	for i, l := range d.Layers {
		var k kernel.DecodeLayer
		var o [1]kernel.Blocks
		if !cut(k.QKV[:], l.QKV, q, kv, kv) || !cut(o[:], l.O, s.Hidden) || !cutNetwork(&k, &l, s) {
			return nil, fmt.Errorf("a matrix of layer %d is not in blocks", i)
		}
		k.O = o[0]
		k.Norms = [2]kernel.Mat{mat(l.AttnNorm), mat(l.FFNNorm)}
		k.Bias, k.Cache = mat(l.Bias), mat(l.Cache)
		k.QNorm, k.KNorm, k.Row, k.First, k.Keys = mat(l.QNorm), mat(l.KNorm), l.Row, l.First, l.Keys
		all = append(all, k)
	}
	return all, nil
}

// generalLayers returns the layers as the kernel of kernel.GeneralModule reads them; all matrices must be in blocks.
func generalLayers(d device.Decode, hidden int) (all []kernel.GeneralLayer, err error) {
	for i := range d.Layers {
		l := &d.Layers[i]
		k := kernel.GeneralLayer{
			Heads: l.Heads, KVHeads: l.KVHeads, HeadDim: l.HeadDim, Inter: l.Down.Cols(), Post: [2]kernel.Mat{mat(l.AttnPost), mat(l.FFNPost)}, OBias: mat(l.OBias),
			VNorm: l.VNorm, VIsK: l.VIsK, Shared: l.Shared, Scale: l.Scale, Cap: l.Cap, GELU: l.Act == device.GELUTanh,
			Residual: one(l.Residual), OutScale: one(l.OutScale),
		}
		k.Norms, k.Bias, k.Cache = [2]kernel.Mat{mat(l.AttnNorm), mat(l.FFNNorm)}, mat(l.Bias), mat(l.Cache)
		k.QNorm, k.KNorm, k.Row, k.First, k.Keys = mat(l.QNorm), mat(l.KNorm), l.Row, l.First, l.Keys
		qkv := []int{l.Heads * l.HeadDim, l.KVHeads * l.HeadDim, l.KVHeads * l.HeadDim}
		switch {
		case l.Shared:
			qkv = qkv[:1]
		case l.VIsK:
			qkv = qkv[:2]
		}
		var o, down [1]kernel.Blocks
		inBlocks := cut(k.QKV[:], l.QKV, qkv...) && cut(o[:], l.O, hidden) && cut(k.GateUp[:], l.GateUp, k.Inter, k.Inter) && cut(down[:], l.Down, hidden)
		k.O, k.Down = o[0], down[0]
		if p := l.PerLayer; p != nil {
			inBlocks = inBlocks && cut(k.PerLayer[:1], p.Gate, p.Gate.Rows()) && cut(k.PerLayer[1:], p.Project, hidden)
			k.Input, k.InputNorm = mat(p.Input), mat(p.Norm)
		}
		if !inBlocks {
			return nil, fmt.Errorf("a matrix of layer %d is not in blocks", i)
		}
		all = append(all, k)
	}
	return all, nil
}

// cutNetwork sets the matrices of the network of a layer, or of its experts.
func cutNetwork(k *kernel.DecodeLayer, l *device.DecodeLayer, s kernel.DecodeShape) bool {
	var down [1]kernel.Blocks
	ok := false
	if e := l.Experts; e != nil {
		ok = cut(k.GateUp[:1], e.Gate, e.Gate.Rows()) && cut(k.GateUp[1:], e.Up, e.Up.Rows()) &&
			cut(down[:], e.Down, e.Down.Rows())
		if r := e.Router.(*weight); r.parts == nil { // else it is in blocks, and refused
			k.Router = mat(r.t)
		}
	} else {
		ok = cut(k.GateUp[:], l.GateUp, s.Inter, s.Inter) && cut(down[:], l.Down, s.Hidden)
	}
	k.Down = down[0]
	return ok
}

// cut returns consecutive rows of a matrix in blocks, if each piece lies in one part of it.
func cut(dst []kernel.Blocks, w device.Weight, rows ...int) bool {
	m, first := w.(*weight), 0
	if m.parts == nil || m.host != nil || m.fp8 != nil || !m.inBlocks() {
		return false
	}
	for i, n := range rows {
		found := false
		for _, k := range m.parts {
			if k.first <= first && first+n <= k.first+k.rows {
				dst[i], found = k.blocks.Slice(first-k.first, first-k.first+n), true
			}
		}
		if !found {
			return false
		}
		first += n
	}
	return first == m.t.Rows
}
