package quant

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"apr/tensor"
)

// digests are the first bytes of SHA-256 over the blocks of 64 rows of each distribution, by the searches in plain Go.
var digests = map[tensor.DType]string{
	tensor.Q4_0: "727ce5124f704539a155b93637cae5f5", tensor.Q5_0: "eb97f5c9c3037854e21e7a2e574af8df",
	tensor.Q8_0: "4858f704ead9ff1724d13290ed863fd4", tensor.Q4_K: "e97529fd43ac00e690fa2f24df9396d0",
	tensor.Q5_K: "6eea9c6f60f13d9fab84e5470ceec99a", tensor.Q6_K: "ebded7a151cfd061d77cb356d6a9c872",
	tensor.Q3_K: "f171204af40f91a94d042c1733aada18", tensor.Q2_K: "5eaf59fc7d982df1b0930709961223b1",
	tensor.IQ4_NL: "37fd3a9caedffc8a7d4129f4ae9ccaae",
}

// Equal input gives equal bytes on every processor, by vector code and without it.
func TestQuantizeBytes(t *testing.T) { checkDigests(t) }

func checkDigests(t *testing.T) {
	t.Helper()
	for _, d := range encodable {
		h := sha256.New()
		for i, dist := range distributions {
			r := rand.New(rand.NewPCG(61, uint64(i)))
			blocks, _ := quantized(t, randomRow(r, 64*256, dist.at), d)
			h.Write(blocks)
		}
		if got := hex.EncodeToString(h.Sum(nil)[:16]); got != digests[d] {
			t.Errorf("%v: %s, want %s", d, got, digests[d])
		}
	}
}
