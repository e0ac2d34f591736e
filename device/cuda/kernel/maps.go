package kernel

import (
	"fmt"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// MapsModule has the kernels of CompareMaps.
const MapsModule = "maps"

const (
	mapTile    = 64  // queries and keys of a thread block
	mapThreads = 256 // of a thread block
)

// mapScratch is the most bytes of scratch that a round takes, unless a query needs more.
var mapScratch = MaxScratch / 4 * 3

// mapSide is struct MapSide of maps.cu.
type mapSide struct {
	q, k, lse, sinks            uint64
	qStride, kStride, lseStride int64
	heads, group, d, window     int32
	scale, cap, uncap           float32
}

// mapsArgs is struct MapsArgs of maps.cu.
type mapsArgs struct {
	own, big                         mapSide
	first, named, counts             uint64
	lp, l, lpSink, lSink             uint64
	e, sinkTerms, divergence         uint64
	dq, dk, record                   uint64
	dqStride, dkStride               int64
	weight                           float64
	len, fromQ, queries, fromK, keys int32
	rows, names, begin, all          uint32
}

// Map is one side of CompareMaps: device.AttnMap with its tensors as matrices.
type Map struct {
	Q, K, LSE, Sinks Mat
	Attn             device.Attn
}

// rows returns batch rows [lo,hi) of a side.
func (m Map) rows(lo, hi int) mapSide {
	n, a := m.Attn.QLen, m.Attn
	uncap := float32(0)
	if a.Cap > 0 {
		uncap = float32(1 / a.Cap)
	}
	return mapSide{
		q: m.Q.rows(lo*n, hi*n).Ptr, k: m.K.rows(lo*n, hi*n).Ptr, lse: m.LSE.rows(lo*n, hi*n).Ptr, sinks: m.Sinks.Ptr,
		qStride: int64(m.Q.Stride), kStride: int64(m.K.Stride), lseStride: int64(m.LSE.Stride),
		heads: int32(a.Heads), group: int32(a.Heads / a.KVHeads), d: int32(a.HeadDim), window: int32(a.Window),
		scale: float32(a.ScoreScale()), cap: float32(a.Cap), uncap: uncap,
	}
}

// CompareMaps adds the divergence of the student's map own from the teacher's big to the record, and its gradient to dq, dk and dsinks,
// which may be zero: see device.MapComparer. named are the rows that count, zero for all; one that is not there is noted as FaultRow.
//
// A round has some batch rows. It goes over strips of their queries: the logarithms of both averages for a strip and all its keys,
// its divergence, dq and E. Then it goes over strips of keys, with all queries that see them, for dk. So the averages are computed
// twice, and each gradient is summed in float32 and rounded once. All sums have fixed orders. With H and H′ heads of student and
// teacher and P pairs of a query and a key, products are 2·(7·H·d + 2·H′·d′)·P, none of them on tensor cores.
func CompareMaps(q Queue, dq, dk, dsinks Mat, own, big Map, first, named Mat, weight float64) {
	a := own.Attn
	if a.Batch == 0 || a.QLen == 0 {
		return
	}
	need(own.Q.Type == dq.Type && own.Q.Type == dk.Type && own.Q.Type == big.Q.Type, "CompareMaps", "types differ")
	strip, per := mapStrip(a)
	n := per * a.QLen
	var terms Mat
	if !dsinks.IsZero() {
		terms = Mat{q.Scratch(4 * n * a.Heads), n, a.Heads, a.Heads, tensor.F32}
	}
	args := mapsArgs{
		counts: q.Scratch(4 * n), lp: q.Scratch(4 * strip * n), l: q.Scratch(4 * strip * n), lpSink: q.Scratch(4 * n), lSink: q.Scratch(4 * n),
		e: q.Scratch(4 * n * a.Heads), sinkTerms: terms.Ptr, divergence: q.Scratch(8 * n), record: q.Record(), weight: weight,
		dqStride: int64(dq.Stride), dkStride: int64(dk.Stride), named: vectorOf(named), names: uint32(named.Rows * named.Cols), all: uint32(own.Q.Rows),
		len: int32(a.QLen),
	}
	for lo := 0; lo < a.Batch; lo += per {
		hi := min(lo+per, a.Batch)
		args.own, args.big, args.first = own.rows(lo, hi), big.rows(lo, hi), vectorOf(first.rows(lo*a.QLen, hi*a.QLen))
		args.dq, args.dk = dq.rows(lo*a.QLen, hi*a.QLen).Ptr, dk.rows(lo*a.QLen, hi*a.QLen).Ptr
		args.rows, args.begin = uint32((hi-lo)*a.QLen), uint32(lo*a.QLen)
		args.round(q, hi-lo, strip, a, own.Q.Type)
	}
	if !dsinks.IsZero() {
		BiasGrad(q, dsinks, terms)
	}
}

// mapStrip returns the queries, or keys, of a strip, and the batch rows of a round.
func mapStrip(a device.Attn) (strip, per int) {
	fixed := a.QLen * (8*a.Heads + 32) // of a batch row
	room := func(strip, rows int) bool { return rows*(fixed+8*strip*a.QLen) <= mapScratch }
	for strip = mapTile; strip > 1 && !room(strip, 1); strip /= 2 {
	}
	for per = 1; per < min(a.Batch, mostGroups) && room(strip, per+1); per++ {
	}
	for strip < a.QLen && room(2*strip, per) {
		strip *= 2
	}
	return min(strip, a.QLen), per
}

// round launches what belongs to some batch rows.
func (m mapsArgs) round(q Queue, batch, strip int, a device.Attn, d tensor.DType) {
	start := func(name string, x, y int) {
		args := m
		q.Launch(Launch{Module: MapsModule, Kernel: name, Grid: [3]int{x, y, batch}, Block: mapThreads, Args: unsafe.Pointer(&args)})
	}
	flat := func(name string, items int) {
		args := m
		launch(q, MapsModule, name, items, mapThreads, mapThreads, unsafe.Pointer(&args))
	}
	average, suffix := "maps_average_"+typeName(d), fmt.Sprintf("_%s_%d", typeName(d), mapColumns(a.HeadDim))
	flat("maps_begin", int(m.rows))
	if m.names > 0 {
		flat("maps_named", int(m.names))
	}
	for at := 0; at < a.QLen; at += strip {
		m.fromQ, m.queries = int32(at), int32(min(strip, a.QLen-at))
		m.fromK, m.keys = 0, m.fromQ+m.queries
		tiles := ceil(int(m.queries), mapTile)
		start(average, ceil(int(m.keys), mapTile), tiles)
		start("maps_divergence", int(m.queries), 1)
		start("maps_queries"+suffix, tiles, a.Heads)
	}
	for at := 0; at < a.QLen; at += strip {
		m.fromK, m.keys = int32(at), int32(min(strip, a.QLen-at))
		m.fromQ, m.queries = m.fromK, int32(a.QLen-at)
		tiles := ceil(int(m.keys), mapTile)
		start(average, tiles, ceil(int(m.queries), mapTile))
		start("maps_keys"+suffix, tiles, a.KVHeads)
	}
	flat("maps_finish", 1)
}

// mapColumns returns the widest head of the kernels that serve one of d values.
func mapColumns(d int) int {
	if d <= 128 {
		return 128
	}
	return 512
}
