package tensor

import (
	"bytes"
	"strings"
	"testing"
)

func TestSource(t *testing.T) {
	for _, payload := range []string{"", "abc", strings.Repeat("x", 1<<20+1)} {
		s := BytesSource(Info{Name: "w", DType: U8, Shape: []int{len(payload)}}, []byte(payload))
		stored := Stored{Info: s.Info, ReaderAt: strings.NewReader(payload)}
		for name, source := range map[string]Source{"bytes": s, "stored": stored.Source()} {
			var b bytes.Buffer
			if err := source.Payload(&b); err != nil || b.String() != payload || source.Size != int64(len(payload)) {
				t.Errorf("%s of %d bytes: %d bytes, size %d, %v", name, len(payload), b.Len(), source.Size, err)
			}
		}
	}
}
