package cuda

import (
	"testing"

	"apr/device"
	"apr/internal/contracttest"
	"apr/tensor"
)

// Every element that a rank keeps is added once, in pieces that fit the memory in which they arrive.
func TestTreeChunks(t *testing.T) {
	const world = 4
	for _, room := range []int{1 << 20, 20000, 7000} {
		for rank := range world {
			contracttest.Cases(t, 1)
			share := device.Share{Rank: rank, World: world}
			var ts []device.Tensor
			var shares []device.Share
			for _, n := range []int{5, device.ShareUnit * world, 3*device.ShareUnit*world + 12345} {
				ts = append(ts, device.Tensor{DType: tensor.F32, Rows: 1, Cols: n, Stride: n})
				shares = append(shares, share)
			}
			added := map[int]map[int]bool{}
			for _, chunk := range treeChunks(ts, shares, room) {
				at := 0
				for _, b := range chunk {
					if b.at != at || b.n < 1 {
						t.Fatalf("a block of %d at %d, behind %d", b.n, b.at, at)
					}
					at += b.n
					x := b.own(rank)
					if added[b.x.Cols] == nil {
						added[b.x.Cols] = map[int]bool{}
					}
					for i := x.Off; i < x.Off+x.Cols; i++ {
						if added[b.x.Cols][i] {
							t.Fatalf("element %d of %d is added twice", i, b.x.Cols)
						}
						added[b.x.Cols][i] = true
					}
				}
				if at > room {
					t.Fatalf("%d elements in room for %d", at, room)
				}
			}
			for i, x := range ts {
				lo, hi, tail := shares[i].Own(x.Cols)
				if len(added[x.Cols]) != shares[i].Kept(x.Cols) || hi > lo && !added[x.Cols][hi-1] ||
					tail < x.Cols && !added[x.Cols][x.Cols-1] {
					t.Errorf("room %d, rank %d: %d of %d elements of %d", room, rank, len(added[x.Cols]),
						shares[i].Kept(x.Cols), x.Cols)
				}
			}
		}
	}
}
