package corpus

import (
	"math/big"
	"slices"
	"testing"
)

// slowPCG is PCG-DXSM by its definition (O'Neill 2014, with numpy's 64-bit output function) in arbitrary precision:
//
//	s ← s·a + c mod 2¹²⁸;  h, l = high and low half of s
//	h ← h ⊕ h>>32;  h ← h·m;  h ← h ⊕ h>>48;  output h·(l|1) mod 2⁶⁴
type slowPCG struct{ s *big.Int }

func hexInt(s string) *big.Int {
	n, ok := new(big.Int).SetString(s, 16)
	if !ok {
		panic(s)
	}
	return n
}

func (p *slowPCG) next() uint64 {
	mod128 := new(big.Int).Lsh(big.NewInt(1), 128)
	p.s.Mul(p.s, hexInt("2360ed051fc65da44385df649fccf645"))
	p.s.Add(p.s, hexInt("5851f42d4c957f2d14057b7ef767814f"))
	p.s.Mod(p.s, mod128)
	h, l := new(big.Int).Rsh(p.s, 64).Uint64(), new(big.Int).And(p.s, hexInt("ffffffffffffffff")).Uint64()
	h ^= h >> 32
	h *= 0xda942042e4dd58b5
	h ^= h >> 48
	return h * (l | 1)
}

// TestOrderByDefinition shuffles again with the slow generator and big products.
func TestOrderByDefinition(t *testing.T) {
	for _, n := range []int{1, 2, 12, 1000} {
		for epoch := range uint64(3) {
			state := new(big.Int).Lsh(big.NewInt(42), 64)
			pcg := slowPCG{state.Add(state, new(big.Int).SetUint64(epoch))}
			want := make([]uint32, n)
			for i := range want {
				want[i] = uint32(i)
			}
			for i := n - 1; i > 0; i-- {
				m := big.NewInt(int64(i + 1))
				reject := new(big.Int).Mod(new(big.Int).Lsh(big.NewInt(1), 64), m)
				var x, low *big.Int
				for {
					x = new(big.Int).Mul(new(big.Int).SetUint64(pcg.next()), m)
					low = new(big.Int).And(x, hexInt("ffffffffffffffff"))
					if low.Cmp(reject) >= 0 {
						break
					}
				}
				j := new(big.Int).Rsh(x, 64).Int64()
				want[i], want[j] = want[j], want[i]
			}
			if got := permutation(nil, n, 42, epoch); !slices.Equal(got, want) {
				t.Errorf("%d rows, epoch %d: %v, want %v", n, epoch, got[:min(n, 12)], want[:min(n, 12)])
			}
		}
	}
}
