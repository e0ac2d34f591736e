//go:build emulate

package generate_test

import (
	"context"
	"math/rand/v2"
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

// TestCUDADraft: on a GPU a pass verifies several proposals; in float32 the greedy text is that of single tokens, and
// a drawn one does not depend on the number of proposals.
func TestCUDADraft(t *testing.T) {
	dir, err := emulator.Build()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("APR_CUDA_LIB_DIR", dir)
	d, err := cuda.Open(cuda.Options{Compute: cuda.F32})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := d.NewStream()
	f := modeltest.Open(t, "../testdata/golden/qwen2/tied_gqa/teacher")
	m, err := model.LoadFrozenAs(d, f, device.TeacherWeights, device.Form{})
	if err != nil {
		t.Fatal(err)
	}
	draft := model.NewTrainable(d, f.Config)
	if err := draft.LoadWeights(s, f); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range draft.Params() {
		host := make([]float32, p.Rows*p.Cols)
		if err := s.Download(host, p.Value); err != nil {
			t.Fatal(err)
		}
		for i := range host {
			host[i] *= float32(1 + .1*rng.NormFloat64())
		}
		s.Upload(p.Value, host)
	}
	draft.Refresh(s)
	o, prompt := generate.Options{MaxTokens: 12, RepeatPenalty: 1, Vocab: 320, Seed: 3}, []int32{3, 1, 4, 1, 5}
	write := func(k int) []int32 {
		d := generate.Draft{Model: draft.Frozen(), Tokens: k}
		r, st, err := generate.Speculate(context.Background(), m, s, prompt, o, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		if st.Accepted == 0 {
			t.Errorf("%d tokens: no proposal was kept", k)
		}
		contracttest.Cases(t, 1)
		return r.IDs
	}
	want, err := generate.Generate(context.Background(), m, s, prompt, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := write(3); !slices.Equal(got, want.IDs) {
		t.Errorf("greedy: %v, want %v", got, want.IDs)
	}
	o.Temperature = 1
	if a, b := write(1), write(3); !slices.Equal(a, b) {
		t.Errorf("drawn: %v and %v", a, b)
	}
}
