package quant

import "testing"

// The vector code of every level that this processor has finds the bits of the plain loops.
func TestQuantizeBytesOfVectorCode(t *testing.T) {
	best := vectors
	defer func() { vectors = best }()
	for vectors = plain; vectors < best; vectors++ {
		t.Run([]string{plain: "plain", avx2: "AVX2"}[vectors], checkDigests)
	}
}
