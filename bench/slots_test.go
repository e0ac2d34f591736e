//go:build emulate || gpu

package bench_test

import (
	"fmt"
	"slices"
	"testing"

	"apr/bench"
	"apr/convert"
	"apr/device"
	"apr/device/cuda"
	"apr/generate"
	"apr/model"
	"apr/tensor"
)

// TestSlotsInTiles: passes of 64 rows over matrices in tiles, with head and draws behind, have the bits of single
// launches; once captured each is one graph, whose operations the host does not make again.
func TestSlotsInTiles(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f, err := bench.RandomQuantised(small(t, 512, 640), 7, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	const rows, passes, vocab = 64, 5, 600
	run := func(o cuda.Options) (all [][]float32, last cuda.Stats) {
		findDriver(t)
		d, err := cuda.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
		if err != nil {
			t.Fatal(err)
		}
		s := d.NewStream()
		p := newSlots(d, m, s, rows, 5, vocab, 40)
		for i := range passes {
			before := d.Stats()
			p.pass(5, i)
			got := make([]float32, 4*rows)
			if err := s.Download(got, p.best); err != nil {
				t.Fatal(err)
			}
			all = append(all, got)
			after := d.Stats()
			last = cuda.Stats{
				Launches: after.Launches - before.Launches, Graphs: after.Graphs - before.Graphs,
				GraphSets: after.GraphSets - before.GraphSets, Recalled: after.Recalled - before.Recalled,
			}
		}
		return all, last
	}
	want, one := run(cuda.Options{NoGraphs: true})
	got, last := run(cuda.Options{})
	for i := range want {
		if !slices.Equal(got[i][:10], want[i][:10]) || !slices.Equal(got[i][2*rows:][:10], want[i][2*rows:][:10]) {
			t.Errorf("pass %d differs from single launches", i)
		}
	}
	if last.Launches != 0 || last.Graphs != 1 || last.GraphSets != 0 || last.Recalled != 1 || one.Launches < 20 {
		t.Errorf("%+v; one by one %+v", last, one)
	}
}

// slots are sequences and what a pass over them needs.
type slots struct {
	m                                     *model.Model
	s                                     device.Stream
	cache                                 *model.Paged
	ids                                   []int32
	hidden, z, best, chosen, keys, limits device.Tensor
}

// newSlots gives n slots sequences of up to most positions.
func newSlots(d *cuda.Device, m *model.Model, s device.Stream, rows, n, vocab, most int) *slots {
	p := &slots{
		m: m, s: s, ids: make([]int32, rows),
		cache:  m.NewPaged(model.PagedSizes{Slots: n, Rows: rows, Capacity: most, Positions: n * (most + model.PageRows)}),
		hidden: d.Alloc("hidden", device.Activations, d.Info().Activations, rows, m.Config.Hidden),
		z:      d.Alloc("logits", device.Logits, tensor.F32, rows, vocab),
		best:   d.Alloc("best", device.Logits, tensor.F32, 2*rows, 2),
		chosen: d.Alloc("chosen", device.Logits, tensor.I32, rows, 1),
		keys:   d.Alloc("keys", device.Batch, tensor.I32, 2*rows, 1),
		limits: d.Alloc("limits", device.Logits, tensor.F32, rows, device.NextLimits),
	}
	limits := make([]float32, device.NextLimits*rows)
	for i := range rows {
		copy(limits[device.NextLimits*i:], []float32{.8, .95, 0})
	}
	s.Upload(p.limits, limits)
	for slot := range n {
		p.cache.Admit(s, slot, most)
	}
	return p
}

// pass makes pass number i over n slots, as an engine does whose texts are all drawn.
func (p *slots) pass(n, i int) {
	rows := len(p.ids)
	all, keys := make([]int, n), make([]int32, 2*rows)
	for slot := range all {
		all[slot], p.ids[slot] = slot, int32((7*slot+3*i)%p.z.Cols)
	}
	for k := range keys {
		keys[k] = int32(1000*i + k)
	}
	p.s.UploadInts(p.keys, keys)
	p.m.ExtendEach(p.s, p.hidden, p.cache, p.ids, all, model.Behind{Tensors: []device.Tensor{p.z}, Run: func() {
		p.m.Logits(p.s, p.z, p.hidden)
		p.s.ArgMax(p.chosen, p.best.RowRange(0, rows), p.z)
		p.s.(device.NextDrawer).DrawNext(p.chosen, p.best.RowRange(rows, 2*rows), p.z, device.Tensor{}, p.keys, p.limits)
	}})
}

// TestTextsInTiles: texts of an engine over matrices in tiles are the same alone and among others, of which one is read
// in rows while others write.
func TestTextsInTiles(t *testing.T) {
	t.Setenv("APR_EMULATOR_CC", "9.0")
	f, err := bench.RandomQuantised(small(t, 512, 640), 7, convert.Q4_K_M)
	if err != nil {
		t.Fatal(err)
	}
	d := openCUDA(t)
	defer d.Close()
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	requests := make([]generate.Request, 3)
	for i := range requests {
		requests[i] = generate.Request{
			Options: generate.Options{MaxTokens: 2 + i, Temperature: .8, TopP: .95, Seed: 3}, LogProbs: -1,
			Prompt: []int32{5, 7, 11, 13, 17}[:1+2*i],
		}
	}
	write := func(slots int, requests []generate.Request) (all []string) {
		e := generate.NewEngine(m, d.NewStream(), generate.EngineOptions{
			Slots: slots, Capacity: 16, Rows: generate.PassRows(d), Vocab: 600,
		})
		defer e.Close()
		var texts []*generate.Sequence
		for _, r := range requests {
			q, err := e.Submit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, q)
		}
		for _, q := range texts {
			r, err := q.Result()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprint(r.IDs))
		}
		return all
	}
	together := write(2, requests)
	for i, r := range requests {
		if alone := write(1, []generate.Request{r}); alone[0] != together[i] {
			t.Errorf("text %d is %s, alone %s", i, together[i], alone[0])
		}
	}
}
