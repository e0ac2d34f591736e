package quant

import "math"

//go:generate sh -c "cd ../tools && go run ./avo/quant -pkg quant -out ../quant/search_amd64.s -stubs ../quant/stubs_amd64.go"

// The searches for Q4_K, Q5_K and Q6_K exist twice: as plain loops over one group, which say what is computed, and as
// vector code over eight groups side by side, a lane each, which does the same operations in the same order and so finds
// the same bits. The structures here are what the vector code reads and writes: rows of eight float64.

// affineGroups are the eight groups of a block.
type affineGroups struct {
	x       [group][8]float64 // element i of all groups
	low     [8]float64        // min(0, least element)
	width   [8]float64        // greatest element − low; 1 where that is 0
	sum     [8]float64        // Σx
	squares [8]float64        // Σx²
	flat    [8]bool           // no width: zeros, or one negative number
}

// affineBest is the best trial of every group.
type affineBest struct{ s, m, gain [8]float64 }

// affineRound is the choice of integer scales and minima for ideal s and m.
type affineRound struct {
	s, m, sc, min, err [8]float64
	lowest, next       [8]float64 //nolint:unused // the assembly keeps what it compares there
}

// symmetricGroups are eight groups of 16 elements.
type symmetricGroups struct {
	x       [16][8]float64
	extreme [8]float64 // element of largest magnitude
}

type symmetricBest struct{ s, gain [8]float64 }

// symmetricRound is the choice of integer scales for ideal s.
type symmetricRound struct{ s, sc, err [8]float64 }

// set takes the groups of a block.
func (g *affineGroups) set(x *[superblock]float64) {
	for j := range 8 {
		part := (*[group]float64)(x[group*j:])
		lo, hi, sum, squares := math.Min(0, part[0]), part[0], 0.0, 0.0
		for i, v := range part {
			lo, hi, sum, squares = min(lo, v), max(hi, v), sum+v, squares+float64(v*v)
			g.x[i][j] = v
		}
		g.low[j], g.width[j], g.sum[j], g.squares[j], g.flat[j] = lo, hi-lo, sum, squares, hi == lo
		if hi == lo {
			g.width[j] = 1
		}
	}
}

// fit is fitAffine for all groups.
func (g *affineGroups) fit(natural, wide *[8]affineTrial, top int) {
	var b affineBest
	for j := range b.gain {
		b.gain[j] = math.Inf(-1)
	}
	scan := func(b *affineBest, phase float64) {
		for k := -12; k <= 12; k += 3 {
			scanLanes(g, b, float64(top)+float64(0.1*float64(k)), phase, float64(top))
		}
	}
	scan(&b, 0)
	w := b
	for _, phase := range affinePhases {
		scan(&w, phase)
	}
	g.refine(natural, &b, top)
	g.refine(wide, &w, top)
}

// refine is refineAffine for all groups: a lane that is done finds its own trial again.
func (g *affineGroups) refine(trials *[8]affineTrial, b *affineBest, top int) {
	for range 4 {
		before := b.gain
		if refineLanes(g, b, float64(top)); b.gain == before {
			break
		}
	}
	for j := range trials {
		trials[j] = affineTrial{s: b.s[j], m: b.m[j], gain: b.gain[j], err: g.squares[j] - b.gain[j]}
		if g.flat[j] {
			trials[j] = affineTrial{m: -g.low[j]}
		}
	}
}

// round is roundGroup without its wider search for all groups of b; least are their errors.
func (g *affineGroups) round(b *affineBlock, ideal *[8]affineTrial, top int) (least [8]float64) {
	var r affineRound
	for j := range ideal {
		r.s[j], r.m[j] = ideal[j].s, ideal[j].m
	}
	d, dmin := halfValue(b.d), halfValue(b.dmin)
	roundLanes(g, &r, d, dmin, inverse(d), inverse(dmin), float64(top))
	for j := range r.sc {
		b.sc[j], b.m[j] = byte(r.sc[j]), byte(r.min[j])
	}
	return r.err
}

// set takes eight groups.
func (g *symmetricGroups) set(x []float64) {
	for j := range 8 {
		part := (*[16]float64)(x[16*j:])
		for i, v := range part {
			g.x[i][j] = v
		}
		g.extreme[j] = extremeOf(part[:])
	}
}

// fit is fitSymmetric for eight groups, with n = 32.
func (g *symmetricGroups) fit(s []float64) {
	var b symmetricBest
	for k := -9; k <= 9; k++ {
		symmetricScanLanes(g, &b, -(32 + float64(0.1*float64(k))))
	}
	for range 4 {
		before := b.gain
		if symmetricRefineLanes(g, &b); b.gain == before {
			break
		}
	}
	copy(s, b.s[:])
}

// round chooses the scales of eight groups.
func (g *symmetricGroups) round(sc []int8, s []float64, d float64) (err [8]float64) {
	var r symmetricRound
	copy(r.s[:], s)
	symmetricRoundLanes(g, &r, d, inverse(d))
	for j := range r.sc {
		sc[j] = int8(r.sc[j])
	}
	return r.err
}
