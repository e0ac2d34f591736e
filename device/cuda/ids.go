package cuda

import (
	"apr/device"
)

// remember keeps what is uploaded to t, so that ids can be checked before an operation reads them. A buffer of which
// parts were written by the device is not known any more.
func (b *buffer) remember(t device.Tensor, src []int32) {
	if len(src) == 0 || b.void != nil {
		return
	}
	n := int(b.size / 4)
	if len(b.ids) != n {
		b.ids = make([]int32, n)
	}
	for r := range t.Rows {
		copy(b.ids[t.Off+r*t.Stride:][:t.Cols], src[r*t.Cols:])
	}
}

// known checks ids against [0, limit) as far as the host knows them, and fails the stream at the
// first one outside. Ids that the device computed are left to the kernels.
func (s *Stream) known(op string, ids device.Tensor, limit int) bool {
	b := ids.Buf.(*buffer)
	n := ids.Rows * ids.Cols
	if n == 0 || b.ids == nil {
		return true
	}
	for i, id := range b.ids[ids.Off : ids.Off+n] {
		if id < 0 || int(id) >= limit {
			s.fail(idOutside(op, int64(id), int64(limit)).At("position %d", i))
			return false
		}
	}
	return true
}
