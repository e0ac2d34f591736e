package par

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func Example() {
	pool := New(4)
	defer pool.Close()
	squares := make([]int, 5)
	pool.Run(len(squares), func(_, task int) { squares[task] = task * task })
	fmt.Println(squares)
	// Output: [0 1 4 9 16]
}

// TestRunEveryTaskOnce counts calls for many shapes, repeatedly, so that late workers meet the next job.
func TestRunEveryTaskOnce(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 8} {
		p := New(workers)
		if p.Workers() != workers {
			t.Fatalf("Workers() = %d, want %d", p.Workers(), workers)
		}
		for _, tasks := range []int{0, 1, 2, 3, 7, 8, 100, 1000} {
			for round := range 50 {
				counts := make([]atomic.Int32, tasks)
				busy := make([]atomic.Bool, workers)
				p.Run(tasks, func(w, task int) {
					if !busy[w].CompareAndSwap(false, true) {
						t.Errorf("worker %d runs two tasks at once", w)
					}
					counts[task].Add(1)
					busy[w].Store(false)
				})
				for i := range counts {
					if got := counts[i].Load(); got != 1 {
						t.Fatalf("workers %d tasks %d round %d: task %d ran %d times", workers, tasks, round, i, got)
					}
				}
			}
		}
		p.Close()
	}
}

// TestEnded: tasks are counted while a Run goes on, and not otherwise.
func TestEnded(t *testing.T) {
	for _, workers := range []int{1, 4} {
		p := New(workers)
		want := int64(0)
		for _, tasks := range []int{0, 1, 7, 100} {
			p.Run(tasks, func(_, task int) {
				if n := p.Ended(); workers == 1 && n != want+int64(task) || n < want || n > want+int64(tasks) {
					t.Errorf("%d workers, in task %d of %d: %d ended, %d before the Run", workers, task, tasks, n, want)
				}
			})
			want += int64(tasks)
			if n := p.Ended(); n != want {
				t.Errorf("%d workers: %d ended, want %d", workers, n, want)
			}
		}
		p.Close()
	}
}

func TestRunAfterPark(t *testing.T) {
	p := New(3)
	defer p.Close()
	for range 20 {
		time.Sleep(2 * time.Millisecond) // long enough to park
		var sum atomic.Int64
		p.Run(10, func(_, task int) {
			sum.Add(int64(task))
			time.Sleep(100 * time.Microsecond) // the caller parks too
		})
		if sum.Load() != 45 {
			t.Fatalf("sum = %d, want 45", sum.Load())
		}
	}
}

func TestSplitCoversRange(t *testing.T) {
	p := New(2)
	defer p.Close()
	for _, c := range []struct{ n, grain int }{{0, 4}, {1, 4}, {4, 4}, {5, 4}, {100, 7}, {3, 100}} {
		seen := make([]atomic.Int32, c.n)
		p.Split(c.n, c.grain, func(_, lo, hi int) {
			if lo%c.grain != 0 || hi-lo > c.grain || hi <= lo {
				t.Errorf("n %d grain %d: piece [%d,%d)", c.n, c.grain, lo, hi)
			}
			for i := lo; i < hi; i++ {
				seen[i].Add(1)
			}
		})
		for i := range seen {
			if seen[i].Load() != 1 {
				t.Fatalf("n %d grain %d: element %d seen %d times", c.n, c.grain, i, seen[i].Load())
			}
		}
	}
}

func TestPanicReachesCaller(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		p := New(workers)
		for _, bad := range []int{0, 5, 19} {
			func() {
				defer func() {
					got, ok := recover().(*Panic)
					if !ok || got.Task != bad || !errors.Is(got, io.ErrUnexpectedEOF) || len(got.Stack) == 0 {
						t.Errorf("workers %d: recovered %v, want the panic of task %d", workers, got, bad)
					}
				}()
				p.Run(20, func(_, task int) {
					if task == bad {
						panic(io.ErrUnexpectedEOF)
					}
				})
				t.Errorf("workers %d: Run returned", workers)
			}()
		}
		ran := atomic.Int32{} // the pool survives
		p.Run(6, func(_, _ int) { ran.Add(1) })
		if ran.Load() != 6 {
			t.Errorf("after a panic %d tasks ran, want 6", ran.Load())
		}
		p.Close()
	}
}

func TestAllTasksPanic(t *testing.T) {
	p := New(4)
	defer p.Close()
	defer func() {
		if _, ok := recover().(*Panic); !ok {
			t.Error("no panic")
		}
	}()
	p.Run(64, func(_, task int) { panic(task) })
}

func TestCloseEndsGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 10 {
		p := New(8)
		p.Run(8, func(_, _ int) {})
		p.Close()
		p.Close()
		n := atomic.Int32{}
		p.Run(8, func(_, _ int) { n.Add(1) })
		if n.Load() != 8 {
			t.Fatalf("closed pool ran %d of 8 tasks", n.Load())
		}
	}
	after := runtime.NumGoroutine()
	for range 1000 { // a goroutine is counted for a moment after its last statement
		if after <= before {
			return
		}
		time.Sleep(time.Millisecond)
		after = runtime.NumGoroutine()
	}
	t.Errorf("%d goroutines before, %d after", before, after)
}

func TestConcurrentCallersTakeTurns(t *testing.T) {
	p := New(3)
	defer p.Close()
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				p.Run(6, func(_, _ int) {
					if inside.Add(1) > 3 {
						t.Error("more tasks at once than workers")
					}
					total.Add(1)
					inside.Add(-1)
				})
			}
		})
	}
	wg.Wait()
	if total.Load() != 2400 {
		t.Errorf("%d tasks ran, want 2400", total.Load())
	}
}

func BenchmarkForkJoin(b *testing.B) {
	for _, c := range []struct {
		workers, tasks int
	}{{1, 8}, {2, 1}, {2, 2}, {2, 8}, {2, 64}} {
		b.Run(fmt.Sprintf("workers=%d/tasks=%d", c.workers, c.tasks), func(b *testing.B) {
			p := New(c.workers)
			defer p.Close()
			b.ReportAllocs()
			for b.Loop() {
				p.Run(c.tasks, func(_, _ int) {})
			}
		})
	}
}
