package manifest

import (
	"strings"
	"testing"
)

func TestPackKeepsText(t *testing.T) {
	for _, text := range []string{
		"", "%", "a%", ".reg .b32 %r<9>;", "%tid.x %clock64 %r-1",
		".reg .b32 %r<9>;\nadd.s32 %r3, %r1, %r2;\nadd.s32 %r4, %r3, %r3;\n.reg .b32 %r<3>;\nmov.b32 %r2, %r1;\n",
		"ld.param.u64 %rd1, [%rd2+8];\nld.u64 %rd3, [%rd2+-8];\n@%p1 bra $L__BB0_1;\n",
		"mov.b32 %f9, %f10;\nmov.b32 %f1, %f9;",
	} {
		packed, err := Pack([]byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if back, err := Unpack(packed); err != nil || string(back) != text {
			t.Errorf("%q came back as %q, %v", text, back, err)
		}
	}
}

// Text that would come back as another must never be stored.
func TestPackRefusesWhatItCannotKeep(t *testing.T) {
	for _, text := range []string{"mov %r007, %r1;", "add %r+1;", "%r~2"} {
		if _, err := Pack([]byte(text)); err == nil || !strings.Contains(err.Error(), "registers of a form") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := Unpack([]byte("no stream")); err == nil {
		t.Error("what is no stream was unpacked")
	}
}
