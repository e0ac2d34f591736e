//go:build gpu

package bench_test

import (
	"slices"
	"testing"
	"time"
)

// TestSlotSpeed shows what a pass of 64 rows through a 7B model in Q4_K_M costs, with head and draws and texts of
// 150 to 300 positions: on the device, with passes that are queued without a wait; for who waits for each; for the
// host that asks; and by operation, launched one by one.
func TestSlotSpeed(t *testing.T) {
	d, m := load7B(t)
	defer d.Close()
	const rows, rounds, passes = 64, 5, 20
	s := d.NewStream()
	p := newSlots(d, m, s, rows, rows, 151665, 512)
	number := 0
	pass := func() {
		p.pass(rows, number)
		number++
	}
	told := make([]float32, 4*rows)
	wait := func() {
		if err := s.Download(told, p.best); err != nil {
			t.Fatal(err)
		}
	}
	for range 150 {
		pass()
	}
	wait()
	var queued, each, host []float64
	for range rounds {
		start := time.Now()
		for range passes {
			begun := time.Now()
			pass()
			host = append(host, 1e6*time.Since(begun).Seconds())
		}
		wait()
		queued = append(queued, 1e3*time.Since(start).Seconds()/passes)
		start = time.Now()
		for range passes / 2 {
			pass()
			wait()
		}
		each = append(each, 2e3*time.Since(start).Seconds()/passes)
	}
	for _, all := range [][]float64{queued, each, host} {
		slices.Sort(all)
	}
	t.Logf("a pass of %d slots: %.3f ms on the device, %.3f ms with a wait for each, %.1f µs of the host; %s",
		rows, queued[rounds/2], each[rounds/2], host[len(host)/2], p.cache.Replaying(s))
	d.StartProfile()
	pass()
	wait()
	stats, err := d.Profile()
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range stats {
		t.Logf("%-36s %3d calls %8.4f ms", st.Op, st.Calls, 1e3*st.Time.Seconds())
	}
}
