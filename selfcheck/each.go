package selfcheck

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// each calls f for 0…n−1 on all processors.
func each(n int, f func(int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	workers.Wait()
}
