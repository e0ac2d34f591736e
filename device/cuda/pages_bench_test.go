//go:build gpu

package cuda_test

import (
	"context"
	"fmt"
	"testing"

	"apr/device"
	"apr/device/cuda"
	"apr/tensor"
)

// BenchmarkAttendPages attends with heads of Qwen2.5 7B, over the pages of four layers in turn: together they are more
// than the second cache holds.
func BenchmarkAttendPages(b *testing.B) {
	findDriver(b)
	d := open(b, cuda.Options{})
	defer d.Close()
	s := d.NewStream()
	const heads, kv, dim, layers = 28, 4, 128, 4
	for _, c := range []struct{ rows, keys int }{{1, 300}, {64, 150}, {64, 300}, {64, 512}, {64, 2000}, {256, 300}} {
		b.Run(fmt.Sprintf("%d rows, %d keys", c.rows, c.keys), func(b *testing.B) {
			numbers := func(name string, n int, of func(i int) int) device.Tensor {
				t, all := s.Temp(name, device.Batch, tensor.I32, n, 1), make([]int32, n)
				for i := range all {
					all[i] = int32(of(i))
				}
				s.UploadInts(t, all)
				return t
			}
			pool := c.rows * c.keys
			table := numbers("table", pool, func(i int) int { return i })
			first := numbers("first", c.rows, func(i int) int { return i * c.keys })
			keys := numbers("keys", c.rows, func(int) int { return c.keys })
			q := s.Temp("q", device.Activations, tensor.BF16, 2*c.rows, heads*dim)
			s.Zero(q)
			var pages []device.Tensor
			for range layers {
				p := s.Temp("pages", device.Activations, tensor.BF16, pool, 2*kv*dim)
				s.Zero(p)
				pages = append(pages, p)
			}
			b.SetBytes(int64(pool * 2 * kv * dim * 2))
			b.ResetTimer()
			for i := range b.N {
				p := pages[i%layers]
				o, x := q.RowRange(0, c.rows), q.RowRange(c.rows, 2*c.rows)
				k, v := p.ColRange(0, kv*dim), p.ColRange(kv*dim, 2*kv*dim)
				s.(device.Pager).AttendPages(o, x, k, v, device.Paged{
					Heads: heads, KVHeads: kv, HeadDim: dim, Table: table, First: first, Keys: keys, Most: c.keys,
				})
			}
			if _, err := s.Wait(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			for _, t := range append(pages, table, first, keys, q) {
				s.Release(t)
			}
		})
	}
}
