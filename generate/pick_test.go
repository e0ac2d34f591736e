package generate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// ordered returns the ids of logits from the likeliest on, the lowest of equal ones first.
func ordered(logits []float32) []int32 {
	ids := make([]int32, len(logits))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Or(cmp.Compare(logits[b], logits[a]), cmp.Compare(a, b)) })
	return ids
}

// kept is what top-k and then top-p leave, by sorting everything, with its probabilities.
func kept(logits []float32, o Options) map[int32]float64 {
	ids := ordered(logits)
	if o.TopK > 0 {
		ids = ids[:min(o.TopK, len(ids))]
	}
	weight := func(id int32) float64 { return math.Exp(float64(logits[id]-logits[ids[0]]) / o.Temperature) }
	sum := 0.0
	for _, id := range ids {
		sum += weight(id)
	}
	if o.TopP > 0 && o.TopP < 1 {
		mass, n := 0.0, 0
		for n < len(ids) && mass < o.TopP*sum {
			mass += weight(ids[n])
			n++
		}
		ids, sum = ids[:n], mass
	}
	p := map[int32]float64{}
	for _, id := range ids {
		p[id] = weight(id) / sum
	}
	return p
}

// Over evenly spaced uniform numbers every id is drawn as often as its probability after temperature, top-k and top-p says, computed by
// sorting all ids; ids that are left out are never drawn.
func TestSampleAtDrawsByProbability(t *testing.T) {
	const draws = 20000
	for seed, o := range []Options{
		{Temperature: 1}, {Temperature: .3}, {Temperature: 5, TopP: .9}, {Temperature: 1, TopP: .95}, {Temperature: .8, TopP: .5}, {Temperature: 1, TopK: 3},
		{Temperature: 2, TopK: 40, TopP: .7}, {Temperature: 1, TopP: 1e-9}, {Temperature: 30, TopP: .999}, {Temperature: 1, TopK: 1}, {Temperature: 1, TopK: 1 << 20, TopP: 1},
	} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			logits := make([]float32, 300)
			for i := range logits {
				logits[i] = float32(math.Round(rng.NormFloat64()*12) / 4) // many are equal
			}
			logits[7] = float32(math.Inf(-1))
			want, got := kept(logits, o), map[int32]int{}
			for i := range draws {
				got[sampleAt(logits, o, slices.Max(logits), (float64(i)+.5)/draws)]++
			}
			for id, n := range got {
				if want[id] == 0 {
					t.Errorf("id %d was drawn %d times, and is left out", id, n)
				}
			}
			for id, p := range want {
				if far := math.Abs(float64(got[id]) - p*draws); !(far <= 1.5) {
					t.Errorf("id %d of probability %g was drawn %d times of %d", id, p, got[id], draws)
				}
			}
		})
	}
}

// The likeliest ids are the first of all in order.
func TestLikeliest(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 50 {
		logits := make([]float32, 1+rng.IntN(60))
		for i := range logits {
			logits[i] = float32(rng.IntN(9))
		}
		lse, all := logSumExp(logits), ordered(logits)
		for _, n := range []int{0, 1, 5, 20} {
			var got []int32
			for _, a := range likeliest(logits, n, lse) {
				if got = append(got, a.ID); a.LogProb != float64(logits[a.ID])-lse {
					t.Fatalf("id %d has %g", a.ID, a.LogProb)
				}
			}
			if want := all[:min(n, len(all))]; !slices.Equal(got, want) {
				t.Fatalf("%d likeliest of %v: %v, want %v", n, logits, got, want)
			}
		}
	}
}

// Random numbers are in [0,1), differ by seed, sample, prompt and position, and are the same for the same.
func TestUniformIsAFunctionOfTheRequest(t *testing.T) {
	seen := map[float64]string{}
	for _, r := range []Request{
		{Prompt: []int32{1}}, {Prompt: []int32{2}}, {Prompt: []int32{1, 0}}, {Prompt: []int32{1}, Sample: 1}, {Prompt: []int32{1}, Options: Options{Seed: 1}},
	} {
		for position := range 50 {
			a, b := Sequence{key: textKey(r)}, Sequence{key: textKey(r), slot: 3}
			u := a.uniform(position)
			what := fmt.Sprintf("%v %d %d at %d", r.Prompt, r.Sample, r.Seed, position)
			if other, ok := seen[u]; ok || !(u >= 0 && u < 1) || b.uniform(position) != u {
				t.Fatalf("%s: %g, as %q", what, u, other)
			}
			seen[u] = what
		}
	}
}
