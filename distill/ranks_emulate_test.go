//go:build emulate

package distill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"apr/arch"
	"apr/collective"
	"apr/corpus"
	"apr/device"
	"apr/device/cuda"
	"apr/internal/contracttest"
	"apr/model"
)

// pairConfig is a student whose matrices are large enough for two ranks to share.
func pairConfig() arch.Config {
	c := arch.Config{
		Family: "llama", Hidden: 128, Vocab: 320, MaxPositions: 64, Eps: 1e-5, EmbedScale: 1, LogitScale: 1, Tied: true,
		BOS: -1, Pad: -1, InitRange: .1,
		Ropes: []arch.Rope{{Kind: arch.RopeDefault, Theta: 100, HeadDim: 32, Width: 32, Attention: 1}},
	}
	for i := range 2 {
		c.Layers = append(c.Layers, arch.Layer{
			Attn: arch.Attention{HeadDim: 32, Heads: 4, KVHeads: 2, KVFrom: i, Scale: .2, QKVBias: true}, Pre: true, Residual: 1,
			FFN: arch.FFN{Act: arch.SiLU, Width: 160},
		})
	}
	return c
}

// pair trains a student on two GPUs and returns, for each rank, what it keeps and reads at the end, and the records.
func pair(t *testing.T, overlap string, c arch.Config, batches []corpus.Batch) (
	state [2][][]float32, records [2][]Record,
) {
	t.Helper()
	t.Setenv(cuda.OverlapVariable, overlap)
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for r, comm := range collective.Local(2) {
		d, err := cuda.Open(cuda.Options{Index: r})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		d.KeepShare(device.Share{Rank: r, World: 2})
		te := loadTeacher(t, d, filepath.Join(tiedDir, "teacher"))
		wg.Go(func() {
			if errs[r] = JoinDevices(comm, d); errs[r] != nil {
				return
			}
			s, m := d.NewStream(), model.NewTrainable(d, c)
			m.Init(s, 7)
			tr := newTrainer(m, s, corpus.Batch{Rows: 4, SeqLen: 12}, te, device.LossSpec{Alpha: 0.5, Temperature: 2})
			tr.MicroRows, tr.Ranks = 2, Ranks{Comm: comm, Joined: true}
			for _, b := range batches {
				rec, err := tr.Apply(context.Background(), b)
				if err != nil {
					errs[r] = err
					comm.Abort(err)
					return
				}
				rec.Phases, rec.Exchange = device.Scalars{}.Phases, 0
				records[r] = append(records[r], rec)
			}
			for _, p := range m.Params() {
				s.(device.Exchanger).Widen(p) // what products read, where gradients were
				for _, x := range []device.Tensor{p.Value, p.M, p.V, p.Grad} {
					host := make([]float32, x.Rows*x.Cols)
					errs[r] = errors.Join(errs[r], s.Download(host, x))
					state[r] = append(state[r], host)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return state, records
}

// Gradients that travel beside the backward pass give the bits of those that travel after it: masters, moments, weights
// that were gathered beside the next step's teacher, and records, with several micro-batches, with rows without a
// target, and with a rank that has none at all.
func TestCUDARanksOverlap(t *testing.T) {
	openEmulator(t)
	t.Setenv("APR_EMULATOR_DEVICES", "2")
	defer func(n int) { sentTogether = n }(sentTogether)
	sentTogether = 1 // what each layer has travels alone
	half := unevenBatch()
	clear(half.Mask[4*half.SeqLen:]) // rank 1 computes nothing
	batches := []corpus.Batch{unevenBatch(), half, unevenBatch()}
	state, records := pair(t, "1", pairConfig(), batches)
	late, lateRecords := pair(t, "0", pairConfig(), batches)
	shared := false
	for r := range state {
		for i := range state[r] {
			contracttest.Cases(t, 1)
			if !slices.Equal(state[r][i], late[r][i]) {
				t.Errorf("rank %d: tensor %d has other bits than without overlap", r, i)
			}
			shared = shared || len(state[r][i]) < len(state[r][i/4*4+3])
			if i%4 == 3 && !slices.Equal(state[0][i], state[1][i]) {
				t.Errorf("the ranks read different weights in tensor %d", i)
			}
		}
		if fmt.Sprint(records[r]) != fmt.Sprint(lateRecords[r]) {
			t.Errorf("rank %d: records %+v, without overlap %+v", r, records[r], lateRecords[r])
		}
	}
	if !shared {
		t.Error("the ranks share nothing: the test is of whole tensors alone")
	}
}
