//go:build emulate

package generate_test

import (
	"slices"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/device/cuda/emulator"
	"apr/generate"
	"apr/internal/contracttest"
	"apr/model"
	"apr/model/modeltest"
)

// passes are what passes over several sequences computed: the hidden states of each one's rows, and what the
// device counted.
type passes struct {
	hidden                 [][]float32
	launches, graphs, sets []int64
	recalled               int64 // passes whose operations the host did not make again
}

// run makes passes of 16 rows over up to five sequences: each is read in rows, some leave and others take their
// pages, and the longest comes from one bucket of keys into the next.
func (r *passes) run(t *testing.T, o cuda.Options) {
	d, err := cuda.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	const rows, positions = 16, 320
	f := longer{modeltest.Open(t, "../testdata/golden/families/llama")}
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	s := d.NewStream()
	p := m.NewPaged(model.PagedSizes{Slots: 5, Rows: rows, Capacity: positions, Positions: 2*positions + 3*model.PageRows})
	defer p.Free()
	hidden := d.Alloc("hidden", device.Activations, d.Info().Activations, rows, f.Config.Hidden)
	defer d.Free(hidden)
	p.Admit(s, 0, positions)
	var slots []int
	for i := range 26 {
		switch slots = slots[:0]; i {
		case 3, 8: // 1 is read, three rows at a time, then written
			p.Admit(s, 1, 40)
		case 6: // its pages go to others
			p.Leave(1)
			p.Admit(s, 4, 40)
			p.Admit(s, 2, 50)
		}
		for range 11 { // a prompt of 286
			slots = append(slots, 0)
		}
		if i >= 3 && i < 6 || i >= 8 && i < 12 {
			slots = append(slots, 1, 1, 1)
		}
		if i >= 6 && i < 9 {
			slots = append(slots, 4)
		}
		if i >= 7 {
			slots = slices.Insert(slots, 0, 2)
		}
		ids := make([]int32, rows)
		for k := range slots {
			ids[k] = int32((7*i + 3*k) % f.Config.Vocab)
		}
		before := d.Stats()
		m.ExtendEach(s, hidden, p, ids, slots, model.Behind{})
		got := make([]float32, len(slots)*f.Config.Hidden)
		if err := s.Download(got, hidden.RowRange(0, len(slots))); err != nil {
			t.Fatal(err)
		}
		after := d.Stats()
		r.hidden = append(r.hidden, got)
		r.launches = append(r.launches, after.Launches-before.Launches)
		r.graphs = append(r.graphs, after.Graphs-before.Graphs)
		r.sets = append(r.sets, after.GraphSets-before.GraphSets)
		r.recalled = after.Recalled
	}
}

// TestCUDAPassIsReplayed: after a few passes the body of a pass is one launch, whatever sequences take part, of
// which no argument changes within a bucket of keys; its bits are those of single launches.
func TestCUDAPassIsReplayed(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	var one, graph passes
	one.run(t, cuda.Options{Compute: cuda.BF16, NoGraphs: true})
	graph.run(t, cuda.Options{Compute: cuda.BF16})
	changed := 0
	for i, want := range one.hidden {
		contracttest.Cases(t, 1)
		if !slices.Equal(graph.hidden[i], want) {
			t.Errorf("pass %d differs from single launches", i)
		}
		if i < 4 { // the rotary table is uploaded on the way, then kernels run one by one, then they are captured
			continue
		}
		if one.launches[i] != one.launches[4] || graph.launches[i] != 0 || graph.graphs[i] != 1 {
			t.Errorf("pass %d: %d single launches; replayed %d and %d graphs",
				i, one.launches[i], graph.launches[i], graph.graphs[i])
		}
		if graph.sets[i] > 0 {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("arguments changed in %d passes, the bucket of keys in one: %d", changed, graph.sets)
	}
	if graph.recalled < 20 || one.recalled != 0 {
		t.Errorf("the operations of %d passes were known, and of %d without graphs", graph.recalled, one.recalled)
	}
	t.Logf("%d launches a pass, or one graph", one.launches[4])
}

// TestCUDASlotsDrawAnew: where all ids are equally likely, each token of each text is drawn by random numbers of
// its own.
func TestCUDASlotsDrawAnew(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	d, err := cuda.Open(cuda.Options{Compute: cuda.BF16})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	f := modeltest.Open(t, "../testdata/golden/families/llama")
	m, err := model.LoadFrozenAs(d, f, device.StudentWeights, device.Form{Blocks: true})
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 12
	r := generate.Request{Prompt: []int32{1}, Options: generate.Options{MaxTokens: tokens, Temperature: 1e9}, LogProbs: -1}
	requests := []generate.Request{r, r, r}
	for i := range requests {
		requests[i].Sample = i
	}
	o := generate.EngineOptions{Slots: 3, Capacity: tokens + 1, Rows: 4, Vocab: f.Config.Vocab}
	texts := write(t, m, o, requests, []int{0, 1, 2})
	for i, text := range texts {
		contracttest.Cases(t, 1)
		seen := map[int32]bool{}
		for _, token := range text.tokens {
			seen[token.ID] = true
		}
		if len(text.tokens) != tokens || len(seen) < tokens/2 {
			t.Errorf("text %d has %d ids in %v", i, len(seen), text.tokens)
		}
		for j := range i {
			if slices.EqualFunc(text.tokens, texts[j].tokens, func(a, b generate.Token) bool { return a.ID == b.ID }) {
				t.Errorf("texts %d and %d are one: %v", i, j, text.tokens)
			}
		}
	}
}
