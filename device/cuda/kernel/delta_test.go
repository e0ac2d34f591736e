//go:build emulate

package kernel

import (
	"fmt"
	"testing"

	"apr/device"
	"apr/internal/near"
	"apr/internal/ref"
	"apr/tensor"
)

// TestDeltaSegments: with scratch memory for a chunk of a sequence at a time, or for some, a rule and its gradients are the same
// numbers; sums of dLogA and ddt have another order. The same call gives the same bits.
func TestDeltaSegments(t *testing.T) {
	const state = 16 * 40
	d := device.Delta{Sequences: device.Sequences{Batch: 3, Len: 200}, KeyHeads: 1, ValueHeads: 2, KeyDim: 16, ValueDim: 40}
	const between = deltaMixed + 4*device.DeltaChunk*40 // on tensor cores; less than twice the pairs that plain ones take
	whole := deltaScratch
	defer func() { deltaScratch = whole }()
	for _, typ := range floatTypes {
		for _, docs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, documents %v", typ, docs), func(t *testing.T) {
				l := newLab(t)
				n := d.Batch * d.Len
				u, ba, do := l.random(n, d.Channels(), 1), l.random(n, 2*d.ValueHeads, 1), l.random(n, d.Inner(), 1)
				logA, dt := l.random(1, d.ValueHeads, 1), l.random(1, d.ValueHeads, 1)
				ut, bat, dot := l.in(typ, u), l.in(typ, ba), l.in(typ, do)
				at, tt := l.in(tensor.F32, logA), l.in(tensor.F32, dt)
				var first Mat
				if docs {
					ids := make([]int, n)
					for i := range ids {
						ids[i] = i % d.Len / 70 * 70
					}
					first = l.ids(ids)
				}
				type results struct{ o, to, du, dba, dLogA, ddt Mat }
				run := func(scratch int) (r results) {
					deltaScratch = scratch
					r.o, r.du, r.dba = l.out(typ, n, d.Inner()), l.out(typ, n, d.Channels()), l.out(typ, n, 2*d.ValueHeads)
					if !docs {
						r.to = l.out(tensor.F32, d.Batch*d.ValueHeads, state)
					}
					r.dLogA, r.ddt = l.inout(tensor.F32, ref.New(1, d.ValueHeads)), l.inout(tensor.F32, ref.New(1, d.ValueHeads))
					DeltaNet(l.op(), r.o, ut, bat, at, tt, Mat{}, r.to, first, d, 227<<10)
					states := l.out(tensor.F32, d.Batch*d.ValueHeads*d.Chunks(), state)
					DeltaNetBackward(l.op(), r.du, r.dba, r.dLogA, r.ddt, dot, ut, bat, at, tt, states, first, d, 227<<10)
					return r
				}
				want := run(whole)
				for _, scratch := range []int{whole, d.ValueHeads * (8*state + between), d.ValueHeads * 2 * (12*state + 2*between)} {
					got := run(scratch)
					checkSame(t, l, "o", got.o, want.o)
					checkSame(t, l, "du", got.du, want.du)
					checkSame(t, l, "dba", got.dba, want.dba)
					if !docs {
						checkSame(t, l, "state", got.to, want.to)
					}
					if scratch == whole {
						checkSame(t, l, "dLogA", got.dLogA, want.dLogA)
						checkSame(t, l, "ddt", got.ddt, want.ddt)
					}
					near.CheckRel(t, "dLogA", l.get(got.dLogA).V, l.get(want.dLogA).V, 1e-5)
					near.CheckRel(t, "ddt", l.get(got.ddt).V, l.get(want.ddt).V, 1e-5)
				}
			})
		}
	}
}
