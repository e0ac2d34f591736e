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

// TestMapRounds: where scratch has no room for all batch rows, nor for all keys of a strip, rounds and strips give what one would.
func TestMapRounds(t *testing.T) {
	defer func(n int) { mapScratch = n }(mapScratch)
	const weight, invN = 3., .1
	own, big := whole(5, 130, 4, 2, 24), whole(5, 130, 2, 1, 40)
	own.Window, big.Window = 90, 70
	for _, room := range []int{20 << 10, 300 << 10} { // strips of 8 queries of a row, and of 64 of four
		t.Run(fmt.Sprint(room, " bytes"), func(t *testing.T) {
			mapScratch = room
			l := newLab(t)
			side := func(a device.Attn) (Map, ref.Map) {
				n := a.Batch * a.QLen
				q, k, b := l.random(n, a.Heads*a.HeadDim, 1), l.random(n, a.KVHeads*a.HeadDim, 1), l.random(1, a.Heads, 1)
				m := Map{Q: l.in(tensor.F32, q), K: l.in(tensor.F32, k), Sinks: l.in(tensor.F32, b), Attn: a}
				_, lse := ref.Attention(q, k, k, a, nil, b.V)
				m.LSE = l.in(tensor.F32, lse)
				return m, ref.Map{Q: q, K: k, Attn: a, Sinks: b.V}
			}
			s, mine := side(own)
			b, theirs := side(big)
			n := own.Batch * own.QLen
			counts, named := make([]bool, n), []int{}
			for r := range n {
				if counts[r] = r%7 != 3; counts[r] {
					named = append(named, r)
				}
			}
			sum, wantQ, wantK, wantB := ref.AttentionDivergence(mine, theirs, counts, weight, invN)
			dq, dk, db := l.inout(tensor.F32, ref.New(n, wantQ.Cols)), l.inout(tensor.F32, ref.New(n, wantK.Cols)), l.inout(tensor.F32, ref.New(1, own.Heads))
			l.rec().InvN = invN
			l.op()
			CompareMaps(l, dq, dk, db, s, b, Mat{}, l.ids(named), weight)
			near.CheckRel(t, "divergence", []float64{l.rec().Sums[device.AttentionTransfer]}, []float64{sum}, 1e-5)
			near.CheckL2(t, "dq", l.get(dq).V, wantQ.V, 1e-5)
			near.CheckL2(t, "dk", l.get(dk).V, wantK.V, 1e-5)
			near.CheckL2(t, "dsinks", l.get(db).V, wantB.V, 1e-4)
		})
	}
}
