package generate

import (
	"math"
	"math/rand/v2"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/model/modeltest"
	"apr/tensor"
)

// smallest is a model that an engine needs to be one.
const smallest = "../testdata/golden/qwen2/tied_gqa/student"

// drawsByLimits: of logits that many texts have in common, each text draws one id by the limits of its request. Ids are
// drawn as often as the host's distribution says, and those that are left out never. Neighbours have other limits.
func drawsByLimits(t *testing.T, dev device.Device) {
	m := modeltest.On(t, dev, modeltest.Open(t, smallest))
	const rows, rounds = 128, 8
	vocab := m.Config.Vocab
	e := newEngine(m, dev.NewStream(), EngineOptions{Slots: 1, Rows: rows, Capacity: 8, Vocab: vocab})
	defer e.free()
	all := []Options{
		{Temperature: .8, TopP: .7}, {Temperature: 1}, {Temperature: 1.5, TopK: 6}, {Temperature: 2, TopK: 9, TopP: .6},
	}
	rng, logits := rand.New(rand.NewPCG(1, 2)), make([]float32, vocab)
	for i := range logits {
		logits[i] = float32(math.Round(rng.NormFloat64()*4) / 2) // many are equal
	}
	counts := make([][]float64, len(all))
	for i := range counts {
		counts[i] = make([]float64, vocab)
	}
	z := e.s.Temp("z", device.Logits, tensor.F32, rows, vocab)
	defer e.s.Release(z)
	host := make([]float32, 0, rows*vocab)
	for range rows {
		host = append(host, logits...)
	}
	e.s.Upload(z, host)
	for round := range rounds {
		qs, told := make([]row, rows), make([]float32, 4*rows)
		for i := range qs {
			r := Request{Options: all[i%len(all)], Sample: round*rows + i, LogProbs: -1}
			qs[i] = row{q: &Sequence{r: r, key: textKey(r)}, chooses: true}
		}
		e.find(z, e.prepare(qs, rows, true))
		if err := e.s.Download(told, e.best); err != nil {
			t.Fatal(err)
		}
		for i := range qs {
			counts[i%len(all)][int(told[2*rows+2*i])]++
		}
	}
	for i, o := range all {
		n, chi, free := float64(rows*rounds/len(all)), 0., -1.
		p, rest, seen := kept(logits, o), 0., 0.
		for id, c := range counts[i] {
			want := p[int32(id)] * n
			switch {
			case want == 0 && c > 0:
				t.Errorf("%+v: id %d is left out, and drawn %g times", o, id, c)
			case want < 5: // too rare for χ²: together
				rest, seen = rest+want, seen+c
			default:
				chi, free = chi+(c-want)*(c-want)/want, free+1
			}
		}
		if rest >= 5 {
			chi, free = chi+(seen-rest)*(seen-rest)/rest, free+1
		}
		// A χ² of f degrees of freedom has mean f and variance 2f.
		if !(chi < free+5*math.Sqrt(2*max(free, 1))) {
			t.Errorf("%+v: χ² of %g draws is %g, of %g degrees of freedom", o, n, chi, free)
		}
	}
}

func TestDrawsByLimits(t *testing.T) { drawsByLimits(t, modeltest.CPU(t, cpu.Options{})) }

// A device draws what needs neither the ids before nor log-probabilities, and not where it is too cold for it.
func TestWhoChooses(t *testing.T) {
	for _, c := range []struct {
		r        Request
		gpu, cpu way
	}{
		{Request{Options: Options{Temperature: .8, TopP: .95}, LogProbs: -1}, drawn, onHost},
		{Request{Options: Options{Temperature: .8, RepeatPenalty: 1}, LogProbs: -1}, drawn, onHost},
		{Request{LogProbs: -1}, likely, likely},
		{Request{Options: Options{Temperature: 1}}, onHost, onHost},
		{Request{Options: Options{Temperature: 1, Never: []int32{1}}, LogProbs: -1}, onHost, onHost},
		{Request{Options: Options{Temperature: 1, RepeatPenalty: 1.1, RepeatLastN: 4}, LogProbs: -1}, onHost, onHost},
		{Request{Options: Options{Temperature: 1e-5}, LogProbs: -1}, onHost, onHost},
	} {
		e, q := &Engine{o: EngineOptions{Vocab: 9}}, &Sequence{r: c.r}
		if gpu, cpu := e.wayOf(q, true), e.wayOf(q, false); gpu != c.gpu || cpu != c.cpu {
			t.Errorf("%+v: %d, and %d without a device that draws; want %d, %d", c.r, gpu, cpu, c.gpu, c.cpu)
		}
	}
}
