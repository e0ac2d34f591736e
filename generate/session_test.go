package generate_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"apr/device"
	"apr/device/cpu"
	"apr/generate"
	"apr/internal/fault"
	"apr/model"
	"apr/model/modeltest"
)

// Turns of a session give the ids of whole generations, whatever they share with the turn before: everything, a part, nothing;
// after an answer that ended, that was stopped, and on a device that goes on early. Every family: windows and states cannot forget all.
func TestSessionIsGenerate(t *testing.T) {
	for _, dir := range families(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			f := modeltest.Open(t, dir)
			d := modeltest.CPU(t, cpu.Options{})
			m, err := model.LoadFrozen(d, f, device.StudentWeights)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []device.Stream{d.NewStream(), fetching{d.NewStream()}} {
				checkTurns(t, m, s)
			}
		})
	}
}

// checkTurns compares the turns of a session with generations from nothing.
func checkTurns(t *testing.T, m *model.Model, s device.Stream) {
	t.Helper()
	o := greedy(6, m.Config.Vocab)
	session := generate.NewSession(m, s, o, min(64, m.Config.MaxPositions))
	defer session.Free()
	prompt, turn := []int32{5, 6, 7, 8, 9, 10, 11, 12}, 0
	cached := 0 // positions, at least
	next := func(what string, emit func(int32) error) []int32 {
		t.Helper()
		turn++
		want, err := generate.Generate(t.Context(), m, s, prompt, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := session.Continue(t.Context(), prompt, emit)
		if emit == nil && (err != nil || !slices.Equal(got.IDs, want.IDs)) || !slices.Equal(got.IDs, want.IDs[:len(got.IDs)]) {
			t.Errorf("turn %d, %s: %v (%v), want %v", turn, what, got.IDs, err, want.IDs)
		}
		if emit == nil && got.CachedTokens < cached {
			t.Errorf("turn %d, %s: %d positions were kept, want %d", turn, what, got.CachedTokens, cached)
		}
		return got.IDs
	}
	first := next("the first", nil)
	prompt = slices.Concat(prompt, first, []int32{3, 4})
	cached = len(prompt) - 3 // the last id of an answer is read with the next turn
	next("a longer one", nil)
	cached = 0
	prompt = slices.Concat(prompt[:6], []int32{20, 21})
	next("another end", nil)
	enough := errors.New("enough")
	n := 0
	part := next("one that is stopped", func(int32) error {
		if n++; n == 3 {
			return enough
		}
		return nil
	})
	prompt = slices.Concat(prompt, part, []int32{15})
	cached = len(prompt) - 2
	next("after one that was stopped", nil)
	cached = 0
	prompt = []int32{40, 41}
	next("nothing in common", nil)
}

// An end token in the cache, a cancelled prompt and a full context.
func TestSessionEnds(t *testing.T) {
	s, m, _ := load(t)
	o := greedy(8, m.Config.Vocab)
	free, err := generate.Generate(t.Context(), m, s, []int32{100, 101}, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Stop = free.IDs[4:5]
	for _, stream := range []device.Stream{s, fetching{s}} {
		session := generate.NewSession(m, stream, o, 16)
		r, err := session.Continue(t.Context(), []int32{100, 101}, nil)
		if err != nil || r.FinishReason != "stop" {
			t.Fatalf("%+v (%v)", r, err)
		}
		prompt := slices.Concat([]int32{100, 101}, r.IDs, o.Stop, []int32{7})
		want, err := generate.Generate(t.Context(), m, s, prompt, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r, err = session.Continue(t.Context(), prompt, nil); err != nil || !slices.Equal(r.IDs, want.IDs) {
			t.Errorf("%v (%v), want %v", r.IDs, err, want.IDs)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := session.Continue(cancelled, []int32{1, 2, 3}, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled turn: %v", err)
		}
		long := make([]int32, 14)
		if r, err = session.Continue(t.Context(), long, nil); err != nil || len(r.IDs) != 2 {
			t.Errorf("%d ids in the room for 2 (%v)", len(r.IDs), err)
		}
		if _, err := session.Continue(t.Context(), make([]int32, 16), nil); fault.KindOf(err) != fault.Inference {
			t.Errorf("a prompt that fills the context: %v", err)
		}
		session.Free()
	}
}
