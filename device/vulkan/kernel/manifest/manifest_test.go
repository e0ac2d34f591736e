package manifest

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"testing/fstest"
)

func TestSources(t *testing.T) {
	dir := fstest.MapFS{
		"a.wgsl": {Data: []byte("//apr:kernel y:rw ids:r:i32 | n:u32 eps:f32\n//apr:variants f32 q\n" +
			"//apr:include w_$variant\nfn run(group: u32, lane: u32) {}\n")},
		"w_f32.wgsl":  {Data: []byte("// float32\n")},
		"part_x.wgsl": {Data: []byte("// shared\n")},
		"w_q.wgsl":    {Data: []byte("//apr:include x\n// blocks\n")},
	}
	all, err := Sources(dir)
	if err != nil || len(all) != 2 || all[0].Name != "a_f32" || all[1].Name != "a_q" {
		t.Fatalf("%v, %v", all, err)
	}
	if k := all[1]; k.Word("eps") != 7 || !strings.Contains(k.Source, "// shared\n// blocks\n") ||
		!strings.Contains(k.Source, "@binding(1) var<storage, read> ids: array<i32>") {
		t.Errorf("%+v", k)
	}
	for text, want := range map[string]string{
		"//apr:kernel y:w | n:u32\n":                                   "neither r nor rw",
		"//apr:kernel y:rw | n\n":                                      "has no type",
		"//apr:kernel y:rw |\n//apr:include none\n":                    "there is neither",
		"//apr:kernel y:rw |\n//apr:kernel y:rw |\n":                   "has 2 lines",
		"//apr:kernel | n:u32\n":                                       "0 bindings",
		"//apr:kernel a:r b:r c:r d:r e:r f:r g:r h:r i:r j:r k:r |\n": "11 bindings",
	} {
		if _, err := Sources(fstest.MapFS{"a.wgsl": {Data: []byte(text)}}); err == nil || !strings.Contains(err.Error(),
			want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// module returns SPIR-V of instructions.
func module(instructions ...[]uint32) (b []byte) {
	for _, w := range []uint32{0x07230203, 0x10300, 0, 100, 0} {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	for _, words := range instructions {
		words[0] |= uint32(len(words)) << 16
		for _, w := range words {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
	}
	return b
}

func TestExact(t *testing.T) {
	in := module([]uint32{opTypeFirst + 3, 1}, []uint32{opVariable, 2, 3, storageBufferClass}, []uint32{opVariable,
		2, 4, workgroupClass},
		[]uint32{opConstantNull, 2, 5}, []uint32{opStore, 4, 5}, []uint32{opStore, 4, 6}, []uint32{opFMul, 1, 7, 8, 9})
	out, err := Exact(in)
	want := module([]uint32{opDecorate, 3, aliased}, []uint32{opDecorate, 7, noContraction},
		[]uint32{opTypeFirst + 3, 1},
		[]uint32{opVariable, 2, 3, storageBufferClass}, []uint32{opVariable, 2, 4,
			workgroupClass}, []uint32{opConstantNull, 2, 5}, []uint32{opStore, 4, 6},
		[]uint32{opFMul, 1, 7, 8, 9})
	if err != nil || !bytes.Equal(out, want) {
		t.Errorf("%x, %v\nwant %x", out, err, want)
	}
	for name, b := range map[string][]byte{"no words": {1, 2, 3}, "no types": module(), "cut": in[:len(in)-4]} {
		if _, err := Exact(b); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestPack(t *testing.T) {
	modules := [][]byte{module([]uint32{opTypeFirst, 1}), module([]uint32{opTypeFirst, 2}, []uint32{opTypeFirst, 3})}
	packed, err := Pack(modules)
	if err != nil {
		t.Fatal(err)
	}
	m := Manifest{Kernels: []Kernel{{Name: "a", Bytes: len(modules[0])}, {Name: "b", Bytes: len(modules[1])}}}
	got, err := m.Unpack(packed)
	if err != nil || !bytes.Equal(got["a"], modules[0]) || !bytes.Equal(got["b"], modules[1]) {
		t.Errorf("%v, %v", got, err)
	}
	m.Kernels[1].Bytes += 4
	if _, err := m.Unpack(packed); err == nil {
		t.Error("a manifest with more bytes is accepted")
	}
	m.Kernels[1].Bytes -= 8
	if _, err := m.Unpack(packed); err == nil {
		t.Error("a manifest with fewer bytes is accepted")
	}
}
