package ref

import "apr/device"

// AttendPages is that of device.Pager: attention of one query a row, with the keys and values that the table lists from
// entry first[r] on, keys[r] of them; 0 without any. sinks are the values of a.Sinks.
func AttendPages(q, k, v Mat, table, first, keys []int, a device.Paged, sinks []float64) Mat {
	o := New(q.Rows, q.Cols)
	for r, n := range keys {
		if n == 0 {
			continue
		}
		rows := table[first[r] : first[r]+n]
		one, _ := Attention(q.RowRange(r, r+1), Embed(k, rows), Embed(v, rows), a.Attn(1, n), nil, sinks)
		copy(o.Row(r), one.V)
	}
	return o
}
