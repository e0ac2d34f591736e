package bench

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"apr/internal/contracttest"
)

// TestCollectives: both communicators are measured with all ranks, and each rate is the bytes over the median time.
func TestCollectives(t *testing.T) {
	ctx := context.Background()
	sockets, err := SocketsGroup(ctx, 3)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []*Communicator{LocalGroup(3), sockets} {
		called := make([]map[string]int, 3)
		do := g.Do
		var mu sync.Mutex
		g.Do = func(rank int, operation string, n int) error {
			mu.Lock()
			if called[rank] == nil {
				called[rank] = map[string]int{}
			}
			called[rank][operation]++
			mu.Unlock()
			return do(rank, operation, n)
		}
		steps := 0
		rows, err := MeasureCollectives(ctx, g, []int64{16, 4 << 10}, 2*time.Millisecond, func() { steps++ })
		g.Close()
		if err != nil || len(rows) != 9 || steps != 9 {
			t.Fatalf("%s: %d rows, %v", g.Name, len(rows), err)
		}
		for _, r := range rows {
			if r.Ranks != 3 || r.Calls < 3 || !(r.LeastUS > 0 && r.LeastUS <= r.MedianUS) {
				t.Errorf("%+v", r)
			}
			factors := map[string]float64{SumRanks: 4. / 3, ReduceScatter: 2. / 3, AllGather: 2. / 3, BroadcastAll: 1}
			factor := factors[r.Operation]
			want := float64(r.Bytes) / r.MedianUS / 1e3
			if !(math.Abs(r.AlgorithmGB-want) <= 1e-9*want && math.Abs(r.BusGB-factor*want) <= 1e-9*want) {
				t.Errorf("%+v: want %g and %g GB/s", r, want, factor*want)
			}
			for rank := range 3 {
				if called[rank][r.Operation] != called[0][r.Operation] || called[rank][r.Operation] < r.Calls {
					t.Errorf("%s of %s: rank %d made %d calls", r.Operation, g.Name, rank, called[rank][r.Operation])
				}
			}
		}
		contracttest.Cases(t, len(rows))
	}
}

// TestCollectivesFail: a failure of one rank is the measurement's.
func TestCollectivesFail(t *testing.T) {
	bad := errors.New("bad")
	g := &Communicator{Ranks: 2, Operations: []string{SumRanks}, Do: func(rank int, _ string, _ int) error {
		if rank == 1 {
			return bad
		}
		return nil
	}}
	if _, err := MeasureCollectives(context.Background(), g, []int64{4}, 0, func() {}); !errors.Is(err, bad) {
		t.Errorf("got %v", err)
	}
}
