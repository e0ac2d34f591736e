package devicetest

import (
	"apr/device"
	"apr/tensor"
)

// Messages of package device that several operations share.
const (
	wrongShapes = "shapes differ"
	wrongTypes  = "types differ"
	noTensor    = "a tensor is missing"
	noWeight    = "the weight is missing"
	noFloats    = "a tensor is neither float32 nor bfloat16"
	noFloat32   = "a tensor that must be float32 is not"
	noIDs       = "ids are not an int32 vector without gaps"
	noLength    = "length differs from the tensor's"
	noVector    = "a vector has not one row of the right length"
	noView      = "a tensor is no view of its memory"
	given       = "a tensor is used after it was given back"
	noRate      = "the rate is not in [0, 1)"
	noFactor    = "a factor is not finite"
	noCap       = "a soft-cap is not finite and positive"
)

// Refusals returns the table of wrong calls: every precondition of every operation at least once.
func Refusals() []Refusal {
	var all []Refusal
	for _, group := range [][]Refusal{
		memoryRefusals(), transferRefusals(), rowRefusals(), pickRefusals(), normRefusals(), headNormRefusals(), productRefusals(), gatedRefusals(), turnRefusals(), elementRefusals(),
		expertRefusals(), rotaryRefusals(), attentionRefusals(), pageRefusals(),
		linearRefusals(), trainRefusals(), drawsLossRefusals(), guideRefusals(),
		projectRefusals(), drawNextRefusals(), drawManyRefusals(), mapRefusals(), lowRankRefusals(), quantizeRefusals(),
	} {
		all = append(all, group...)
	}
	return all
}

func memoryRefusals() []Refusal {
	one := func(op device.Op, name, what string, call func(k *desk)) Refusal {
		return Refusal{Name: op.String() + "/" + name, op: op, what: what, call: call}
	}
	const noSuch = "there is no tensor of such a shape or type"
	return []Refusal{
		one(device.OpTemp, "negative rows", noSuch, func(k *desk) { k.of(tensor.F32, -1, 2) }),
		one(device.OpTemp, "blocks", noSuch, func(k *desk) { k.of(tensor.Q4_K, 1, 256) }),
		one(device.OpTemp, "too large", "a tensor of that many rows and columns is too large", func(k *desk) { k.of(tensor.F32, 1<<40, 1<<40) }),
		one(device.OpAlloc, "negative columns", noSuch, func(k *desk) { k.dev.Alloc("x", device.Batch, tensor.F32, 1, -2) }),
		one(device.OpRelease, "twice", "a tensor is no temp in use", func(k *desk) { k.s.Release(k.gone(tensor.F32, 2, 2)) }),
		one(device.OpRelease, "of no temp", "a tensor is no temp in use", func(k *desk) {
			t := k.dev.Alloc("lasts", device.Batch, tensor.F32, 2, 2)
			k.lasted = append(k.lasted, t)
			k.s.Release(t)
		}),
		one(device.OpFree, "of a temp", "a tensor is a temp or was freed before", func(k *desk) { k.dev.Free(k.acts(2, 2)) }),
		one(device.OpFree, "twice", "a tensor is a temp or was freed before", func(k *desk) {
			t := k.dev.Alloc("freed", device.Batch, tensor.F32, 2, 2)
			k.dev.Free(t)
			k.dev.Free(t)
		}),
		one(device.OpFree, "nothing", noTensor, func(k *desk) { k.dev.Free(device.Tensor{}) }),
		one(device.OpFrozen, "bfloat16", noFloat32, func(k *desk) { k.dev.Frozen(k.narrow(2, 2)) }),
		one(device.OpPhase, "beyond the last", "there is no such phase", func(k *desk) { k.s.Phase(device.NumPhases) }),
		one(device.OpPhase, "negative", "there is no such phase", func(k *desk) { k.s.Phase(-1) }),
	}
}

// sent are the operands of a transfer.
type sent struct {
	t      device.Tensor
	floats []float32
	ints   []int32
}

func transferRefusals() []Refusal {
	floats := func(k *desk) sent { return sent{t: k.acts(3, 4), floats: make([]float32, 12)} }
	ints := func(k *desk) sent { return sent{t: k.of(tensor.I32, 3, 1), ints: make([]int32, 3)} }
	all := refusals(device.OpUpload, floats, func(s device.Stream, a sent) { s.Upload(a.t, a.floats) },
		wrong[sent]{"length", noLength, func(_ *desk, a *sent) { a.floats = a.floats[1:] }},
		wrong[sent]{"type", noFloats, func(k *desk, a *sent) { a.t = k.of(tensor.I32, 3, 4) }},
		wrong[sent]{"no tensor", noTensor, func(_ *desk, a *sent) { a.t = device.Tensor{} }},
		wrong[sent]{"given back", given, func(k *desk, a *sent) { a.t = k.gone(k.act, 3, 4) }},
	)
	all = append(all, refusals(device.OpUploadInts, ints, func(s device.Stream, a sent) { s.UploadInts(a.t, a.ints) },
		wrong[sent]{"length", noLength, func(_ *desk, a *sent) { a.ints = a.ints[1:] }},
		wrong[sent]{"type", "a tensor is not int32", func(k *desk, a *sent) { a.t = k.single(3, 1) }},
	)...)
	all = append(all, refusals(device.OpDownload, floats, func(s device.Stream, a sent) { _ = s.Download(a.floats, a.t) },
		wrong[sent]{"length", noLength, func(_ *desk, a *sent) { a.floats = a.floats[1:] }},
		wrong[sent]{"type", noFloats, func(k *desk, a *sent) { a.t = k.of(tensor.I32, 3, 4) }},
	)...)
	all = append(all, refusals(device.OpFetch, func(k *desk) sent { return sent{t: k.single(3, 4), floats: make([]float32, 12)} },
		func(s device.Stream, a sent) {
			if f, ok := s.(device.Fetcher); ok {
				_ = f.Fetch(a.t)(a.floats)
				return
			}
			device.CheckFetch(a.t) // a stream that has no such operation
			device.CheckFetched(a.floats, a.t.Rows*a.t.Cols)
		},
		wrong[sent]{"gaps", "a tensor has gaps between its rows", func(_ *desk, a *sent) { a.t = a.t.ColRange(0, 3) }},
		wrong[sent]{"type", noFloat32, func(k *desk, a *sent) { a.t = k.narrow(3, 4) }},
		wrong[sent]{"length", noLength, func(_ *desk, a *sent) { a.floats = a.floats[1:] }},
	)...)
	all = append(all, refusals(device.OpRefreshWeight, func(k *desk) *device.Param { return k.param(3, 4) },
		func(s device.Stream, p *device.Param) { s.RefreshWeight(p) },
		wrong[*device.Param]{"no weight", noWeight, func(_ *desk, p **device.Param) { (*p).Weight = nil }},
		wrong[*device.Param]{"value of another shape", wrongShapes, func(k *desk, p **device.Param) { (*p).Value = k.single(4, 3) }},
	)...)
	whole := func(k *desk) sent { return sent{t: k.acts(3, 4)} }
	return append(all, refusals(device.OpZero, whole, func(s device.Stream, a sent) { s.Zero(a.t) },
		wrong[sent]{"no tensor", noTensor, func(_ *desk, a *sent) { a.t = device.Tensor{} }},
		wrong[sent]{"given back", given, func(k *desk, a *sent) { a.t = k.gone(k.act, 3, 4) }},
		wrong[sent]{"more rows than memory", noView, func(_ *desk, a *sent) { a.t.Rows = 4 }},
		wrong[sent]{"beyond the end", noView, func(_ *desk, a *sent) { a.t.Off = 1 }},
		wrong[sent]{"before the beginning", noView, func(_ *desk, a *sent) { a.t.Off = -1 }},
		wrong[sent]{"rows that overlap", noView, func(_ *desk, a *sent) { a.t.Stride = 3 }},
	)...)
}

// moved are the operands of what moves rows.
type moved struct {
	dst, src, rows device.Tensor
	w              device.Weight
}

func rowRefusals() []Refusal {
	all := refusals(device.OpCopy, func(k *desk) moved { return moved{dst: k.acts(3, 4), src: k.acts(3, 4)} },
		func(s device.Stream, a moved) { s.Copy(a.dst, a.src) },
		wrong[moved]{"rows", wrongShapes, func(k *desk, a *moved) { a.src = k.acts(2, 4) }},
		wrong[moved]{"columns", wrongShapes, func(k *desk, a *moved) { a.src = k.acts(3, 5) }},
		wrong[moved]{"types", wrongTypes, func(k *desk, a *moved) { a.src = k.others(3, 4) }},
		wrong[moved]{"given back", given, func(k *desk, a *moved) { a.src = k.gone(k.act, 3, 4) }},
	)
	all = append(all, refusals(device.OpEmbed,
		func(k *desk) moved { return moved{dst: k.acts(3, 4), w: k.weight(5, 4), rows: k.ids(3)} },
		func(s device.Stream, a moved) { s.Embed(a.dst, a.w, a.rows) },
		wrong[moved]{"ids", wrongShapes, func(k *desk, a *moved) { a.rows = k.ids(2) }},
		wrong[moved]{"columns", wrongShapes, func(k *desk, a *moved) { a.dst = k.acts(3, 5) }},
		wrong[moved]{"ids that are no vector", noIDs, func(k *desk, a *moved) { a.rows = k.of(tensor.I32, 3, 2) }},
		wrong[moved]{"ids with gaps", noIDs, func(k *desk, a *moved) { a.rows = k.of(tensor.I32, 3, 2).ColRange(0, 1) }},
		wrong[moved]{"ids of floats", noIDs, func(k *desk, a *moved) { a.rows = k.single(3, 1) }},
		wrong[moved]{"type", noFloats, func(k *desk, a *moved) { a.dst = k.of(tensor.I32, 3, 4) }},
		wrong[moved]{"no weight", noWeight, func(_ *desk, a *moved) { a.w = nil }},
	)...)
	return append(all, refusals(device.OpEmbedBackward,
		func(k *desk) moved { return moved{dst: k.single(5, 4), src: k.acts(3, 4), rows: k.ids(3)} },
		func(s device.Stream, a moved) { s.EmbedBackward(a.dst, a.rows, a.src) },
		wrong[moved]{"ids", wrongShapes, func(k *desk, a *moved) { a.rows = k.ids(4) }},
		wrong[moved]{"columns", wrongShapes, func(k *desk, a *moved) { a.src = k.acts(3, 5) }},
		wrong[moved]{"gradient of another type", noFloat32, func(k *desk, a *moved) { a.dst = k.narrow(5, 4) }},
		wrong[moved]{"ids with gaps", noIDs, func(k *desk, a *moved) { a.rows = k.of(tensor.I32, 3, 2).ColRange(0, 1) }},
	)...)
}

func pickRefusals() []Refusal {
	rows := []wrong[moved]{
		{"columns", wrongShapes, func(k *desk, a *moved) { a.src = k.acts(a.src.Rows, 5) }},
		{"ids", wrongShapes, func(k *desk, a *moved) { a.rows = k.ids(4) }},
		{"types", wrongTypes, func(k *desk, a *moved) { a.src = k.others(a.src.Rows, 4) }},
		{"ids of floats", noIDs, func(k *desk, a *moved) { a.rows = k.single(a.rows.Rows, 1) }},
		{"no floats", noFloats, func(k *desk, a *moved) {
			a.dst, a.src = k.of(tensor.I32, a.dst.Rows, 4), k.of(tensor.I32, a.src.Rows, 4)
		}},
	}
	all := refusals(device.OpGather, func(k *desk) moved { return moved{dst: k.acts(3, 4), src: k.acts(6, 4), rows: k.ids(3)} },
		func(s device.Stream, a moved) { s.Gather(a.dst, a.src, a.rows) }, rows...)
	all = append(all, refusals(device.OpScatter, func(k *desk) moved { return moved{dst: k.acts(6, 4), src: k.acts(1, 4), rows: k.ids(1)} },
		func(s device.Stream, a moved) { s.Scatter(a.dst, a.src, a.rows) }, rows...)...)
	return append(all, refusals(device.OpArgMax, func(k *desk) moved { return moved{rows: k.ids(3), dst: k.single(3, 2), src: k.single(3, 7)} },
		func(s device.Stream, a moved) { s.ArgMax(a.rows, a.dst, a.src) },
		wrong[moved]{"ids", wrongShapes, func(k *desk, a *moved) { a.rows = k.ids(2) }},
		wrong[moved]{"no columns", "there are no columns", func(k *desk, a *moved) { a.src = k.single(3, 0) }},
		wrong[moved]{"best of one column", wrongShapes, func(k *desk, a *moved) { a.dst = k.single(3, 1) }},
		wrong[moved]{"best of another type", noFloat32, func(k *desk, a *moved) { a.dst = k.narrow(3, 2) }},
		wrong[moved]{"ids of floats", noIDs, func(k *desk, a *moved) { a.rows = k.single(3, 1) }},
	)...)
}
