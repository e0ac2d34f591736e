package kernel

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	"apr/device/vulkan/kernel/manifest"
)

func hash(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }

// TestCurrent: the manifest is of the sources that are here, and of the SPIR-V that is embedded.
func TestCurrent(t *testing.T) {
	texts, err := manifest.Sources(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	m := Manifest()
	if len(texts) != len(m.Kernels) || len(texts) < 40 {
		t.Fatalf("%d sources, %d kernels in the manifest: run `make kernels`", len(texts), len(m.Kernels))
	}
	for i, text := range texts {
		k := m.Kernels[i]
		if k.Name != text.Name || k.Source != hash([]byte(text.Source)) {
			t.Errorf("%s is not what was compiled: run `make kernels`", text.Name)
		}
		code := Modules()[k.Name].Code
		b := make([]byte, 0, 4*len(code))
		for _, w := range code {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		if hash(b) != k.Hash || len(b) != k.Bytes {
			t.Errorf("the SPIR-V of %s is not that of the manifest", k.Name)
		}
	}
	if hash(packed) != m.Packed {
		t.Error("the file with the kernels is not that of the manifest")
	}
}
