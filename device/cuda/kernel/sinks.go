package kernel

import (
	"fmt"
	"unsafe"

	"apr/device"
	"apr/tensor"
)

// SinksModule has the kernels of AttentionSinks and SinkGrad.
const SinksModule = "sinks"

// sinkScratch is the scratch that sinks take at most; the other half is for attention.
const sinkScratch = MaxScratch / 2

// sinksArgs is struct SinksArgs of sinks.cu.
type sinksArgs struct {
	o, seen, lse, sinks    uint64
	oStride, lseStride     int64
	heads, d, packs, items uint32
}

// sinkTermsArgs is struct SinkTermsArgs of sinks.cu.
type sinkTermsArgs struct {
	o, dout, lse, sinks, terms     uint64
	oStride, doutStride, lseStride int64
	heads, d, units                uint32
}

// Attend is Attention, or another launcher of the same.
type Attend func(queue Queue, o, lse, q, k, v Mat, a device.Attn, first Mat)

// AttentionSinks is attend with a logit of each head that joins the softmax, sinks [1,Heads] float32. A sink b has no value, so it
// changes nothing but the sum that the keys are divided by: with l the log-sum-exp of the scores alone,
//
//	o ·= 1/(1+e^(b−l)),  lse = l + ln(1+e^(b−l))
//
// which one more kernel does, whatever attended. In bfloat16 o is rounded a second time. With that lse the backward of attention is
// that without sinks.
//
// Bytes moved by the last kernel: twice those of o. The rows of a batch that scratch has no room for come later.
func AttentionSinks(queue Queue, attend Attend, o, lse, q, k, v Mat, a device.Attn, first, sinks Mat) {
	if a.Batch == 0 || a.QLen == 0 {
		return
	}
	one := 4 * a.QLen * a.Heads // bytes of a batch row
	per := min(a.Batch, max(1, sinkScratch/one))
	seen := Mat{queue.Scratch(per * one), per * a.QLen, a.Heads, a.Heads, tensor.F32}
	for lo := 0; lo < a.Batch; lo += per {
		part := a
		part.Batch = min(per, a.Batch-lo)
		rows := func(m Mat, n int) Mat { return m.rows(lo*n, (lo+part.Batch)*n) }
		out, some := rows(o, a.QLen), seen.rows(0, part.Batch*a.QLen)
		attend(queue, out, some, rows(q, a.QLen), rows(k, a.KStride), rows(v, a.KStride), part, rows(first, a.QLen))
		addSinks(queue, out, rows(lse, a.QLen), some, sinks, a.HeadDim)
	}
}

// addSinks changes o, and writes lse unless it is zero; seen [n,heads] has no gaps.
func addSinks(queue Queue, o, lse, seen, sinks Mat, d int) {
	pack, unroll := packWidth(d, o), 2
	if pack == 1 {
		unroll = 4
	}
	packs := o.Cols / pack
	eachRows(o.Rows, packs, func(lo, hi int) {
		a := &sinksArgs{
			o: o.rows(lo, hi).Ptr, seen: seen.rows(lo, hi).Ptr, lse: lse.rows(lo, hi).Ptr, sinks: sinks.Ptr, oStride: int64(o.Stride),
			lseStride: int64(lse.Stride), heads: uint32(seen.Cols), d: uint32(d), packs: uint32(packs), items: uint32((hi - lo) * packs),
		}
		launch(queue, SinksModule, fmt.Sprintf("add_sinks_%s_%d", typeName(o.Type), pack), int(a.items), 256*unroll, 256, unsafe.Pointer(a))
	})
}

// SinkGrad adds the gradients of sinks: dsinks[h] −= Σ_rows e^(b−lse)·Σ dO∘O of the head, with do, o [n,heads·d], lse [n,heads] of
// AttentionSinks and dsinks [1,heads]. Sums are float32, in an order that depends on the shape alone.
//
// Bytes moved: those of dO and O.
func SinkGrad(queue Queue, dsinks, do, o, lse, sinks Mat, d int) {
	if o.Rows == 0 {
		return
	}
	heads := sinks.Cols
	per := min(o.Rows, max(1, sinkScratch/(4*heads)))
	terms := Mat{queue.Scratch(4 * per * heads), per, heads, heads, tensor.F32}
	pack := packWidth(d, o, do)
	for lo := 0; lo < o.Rows; lo += per {
		hi := min(lo+per, o.Rows)
		a := &sinkTermsArgs{
			o: o.rows(lo, hi).Ptr, dout: do.rows(lo, hi).Ptr, lse: lse.rows(lo, hi).Ptr, sinks: sinks.Ptr, terms: terms.Ptr,
			oStride: int64(o.Stride), doutStride: int64(do.Stride), lseStride: int64(lse.Stride),
			heads: uint32(heads), d: uint32(d), units: uint32((hi - lo) * heads),
		}
		launch(queue, SinksModule, fmt.Sprintf("sink_terms_%s_%d", typeName(o.Type), pack), int(a.units), 8, 256, unsafe.Pointer(a))
		BiasGrad(queue, dsinks, terms.rows(0, hi-lo))
	}
}
