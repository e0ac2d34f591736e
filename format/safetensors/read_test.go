//go:build !windows

package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/format/internal/stored"
	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
	"apr/internal/near"
	"apr/tensor"
)

// raw returns the bytes of a file with that header and n bytes of data.
func raw(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range n {
		b = append(b, byte(i))
	}
	return b
}

// save writes b as a file of the name "m" and returns its path.
func save(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// one returns a header with one tensor of these fields.
func one(dtype, shape, offsets string) string {
	return fmt.Sprintf(`{"w":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
}

const f32x2 = `"dtype":"F32","shape":[2],"data_offsets":[0,8]`

func TestRefused(t *testing.T) {
	length := func(n uint64, rest string) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), rest...) }
	for _, c := range []struct {
		name string
		file []byte
		want string // after the path
	}{
		{"empty", nil, "offset 0: file of 0 bytes is too short for a header length of 8 bytes [E-ST-001]"},
		{"7 bytes", make([]byte, 7), "offset 0: file of 7 bytes is too short for a header length of 8 bytes [E-ST-001]"},
		{"header length 0", make([]byte, 16), "offset 0: header length is 0 [E-ST-002]"},
		{"header over the limit", length(100_000_001, "{}"), "offset 0: header length 100000001 is over the limit of 100000000 [E-ST-003]"},
		{"header past the end", length(3, "{}"), "offset 0: header of 8+3 bytes passes the end of the file at 10 [E-ST-004]"},
		{"header length wraps", length(1<<64-8, "{}"), "offset 0: header length 18446744073709551608 is over the limit of 100000000 [E-ST-003]"},
		{"not UTF-8", raw("{\"a\xff\":1}", 0), "offset 11: byte 0xff is not UTF-8 [E-ST-011]"},
		{"byte order mark", raw("\xef\xbb\xbf{}", 0), "offset 8: byte order mark [E-ST-011]"},
		{"root an array", raw("[]", 0), "offset 8: expected an object, found an array [E-ST-016]"},
		{"root null", raw("null", 0), "offset 8: expected an object, found null [E-ST-016]"},
		{"header cut", raw(`{"w":`, 0), "offset 13: expected a value, found end of text [E-ST-010]"},
		{"NUL after the header", raw("{}\x00", 0), `offset 10: '\x00' after the value [E-ST-015]`},
		{"second value after the header", raw("{} {}", 0), `offset 11: '{' after the value [E-ST-015]`},
		{"too deep", raw(`{"w":`+strings.Repeat("[", 8)+strings.Repeat("]", 8)+"}", 0), "offset 20: nested deeper than 8 [E-ST-013]"},
		{"too many values", raw("["+strings.Repeat("1,", 1<<22)+"1]", 0), "offset 8388615: more than 4194304 values [E-ST-014]"},
		{"name twice", raw(`{"w":{`+f32x2+`},"w":{`+f32x2+`}}`, 8), `offset 62: key "w" occurs twice [E-ST-012]`},
		{"name twice by escape", raw(`{"w":{`+f32x2+`},"\u0077":{`+f32x2+`}}`, 8), `offset 62: key "w" occurs twice [E-ST-012]`},
		{"field twice", raw(`{"w":{`+f32x2+`,"dtype":"F32"}}`, 8), `offset 61: key "dtype" occurs twice [E-ST-012]`},
		{"metadata key twice", raw(`{"__metadata__":{"a":"1","\u0061":"2"}}`, 0), `offset 33: key "a" occurs twice [E-ST-012]`},
		{"unpaired surrogate", raw(`{"\ud800":{`+f32x2+`}}`, 8), "offset 10: unpaired surrogate [E-ST-011]"},
		{"field missing", raw(`{"w":{"dtype":"F32","shape":[2]}}`, 8), `tensor "w", offset 13: key "data_offsets" is missing [E-ST-017]`},
		{"dtype missing", raw(`{"w":{"shape":[2],"data_offsets":[0,8]}}`, 8), `tensor "w", offset 13: key "dtype" is missing [E-ST-017]`},
		{"field unknown", raw(`{"w":{`+f32x2+`,"x":1}}`, 8), `tensor "w", offset 65: unknown key "x" [E-ST-018]`},
		{"field in another case", raw(`{"w":{"Dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8),
			`tensor "w", offset 22: unknown key "Dtype"; did you mean "dtype"? [E-ST-018]`},
		{"tensor not an object", raw(`{"w":[]}`, 0), `tensor "w", offset 13: expected an object, found an array [E-ST-016]`},
		{"dtype not a string", raw(one("1", "[2]", "[0,8]"), 8), `tensor "w", offset 22: key "dtype": expected a string, found 1 [E-ST-016]`},
		{"dtype unknown", raw(one(`"F33"`, "[2]", "[0,8]"), 8), `tensor "w": dtype "F33" is unknown [E-ST-030]`},
		{"dtype in lower case", raw(one(`"f32"`, "[2]", "[0,8]"), 8), `tensor "w": dtype "f32" is unknown [E-ST-030]`},
		{"not whole bytes", raw(one(`"F4"`, "[3]", "[0,2]"), 2), `tensor "w": 3 elements of F4 are not whole bytes [E-ST-034]`},
		{"6 bits", raw(one(`"F6_E2M3"`, "[2]", "[0,2]"), 2), `tensor "w": 2 elements of F6_E2M3 are not whole bytes [E-ST-034]`},
		{"unsupported dtype", raw(one(`"F8_E5M2"`, "[2]", "[0,2]"), 2), `tensor "w": dtype F8_E5M2 is not supported [E-ST-035]`},
		{"dimension negative", raw(one(`"F32"`, "[-2]", "[0,8]"), 8), `tensor "w", offset 37: key "shape": expected a non-negative integer, found -2 [E-ST-016]`},
		{"dimension minus zero", raw(one(`"F32"`, "[-0]", "[0,0]"), 0), `tensor "w", offset 37: key "shape": expected a non-negative integer, found -0 [E-ST-016]`},
		{"dimension fractional", raw(one(`"F32"`, "[2.0]", "[0,8]"), 8), `tensor "w", offset 37: key "shape": expected a non-negative integer, found 2.0 [E-ST-016]`},
		{"dimension with exponent", raw(one(`"F32"`, "[2e0]", "[0,8]"), 8), `tensor "w", offset 37: key "shape": expected a non-negative integer, found 2e0 [E-ST-016]`},
		{"dimension with leading zero", raw(one(`"F32"`, "[02]", "[0,8]"), 8), "offset 38: number with a leading zero [E-ST-010]"},
		{"dimension a string", raw(one(`"F32"`, `["2"]`, "[0,8]"), 8),
			`tensor "w", offset 37: key "shape": expected a non-negative integer, found the string "2" [E-ST-016]`},
		{"dimension over u64", raw(one(`"F32"`, "[18446744073709551616]", "[0,8]"), 8),
			`tensor "w", offset 37: key "shape": integer 18446744073709551616 does not fit 64 bits [E-ST-016]`},
		{"dimension over i64", raw(one(`"F32"`, "[9223372036854775808]", "[0,8]"), 8),
			`tensor "w": dimension 9223372036854775808 is over 9223372036854775807 [E-ST-032]`},
		{"shape not an array", raw(one(`"F32"`, "2", "[0,8]"), 8), `tensor "w", offset 36: key "shape": expected an array, found 2 [E-ST-016]`},
		{"rank 9", raw(one(`"F32"`, "[1,1,1,1,1,1,1,1,2]", "[0,8]"), 8), `tensor "w": 9 dimensions are over the limit of 8 [E-ST-031]`},
		{"product overflows", raw(one(`"F32"`, "[4294967296,4294967296]", "[0,8]"), 8),
			`tensor "w": the product of shape [4294967296 4294967296] overflows [E-ST-032]`},
		{"product wraps to the size", raw(one(`"F32"`, "[4294967298,9223372036854775807]", "[0,8]"), 8),
			`tensor "w": the product of shape [4294967298 9223372036854775807] overflows [E-ST-032]`},
		{"product wraps beside 0", raw(one(`"F32"`, "[4294967296,4294967296,0]", "[0,0]"), 0),
			`tensor "w": the product of shape [4294967296 4294967296 0] overflows [E-ST-032]`},
		{"product times bits wraps to the size", raw(one(`"F32"`, "[576460752303423490]", "[0,8]"), 8),
			`tensor "w": 576460752303423490 elements of 32 bits overflow [E-ST-033]`},
		{"one offset", raw(one(`"F32"`, "[2]", "[8]"), 8), `tensor "w": data_offsets has 1 numbers, expected 2 [E-ST-036]`},
		{"three offsets", raw(one(`"F32"`, "[2]", "[0,8,8]"), 8), `tensor "w": data_offsets has 3 numbers, expected 2 [E-ST-036]`},
		{"offset a string", raw(one(`"F32"`, "[2]", `[0,"8"]`), 8),
			`tensor "w", offset 58: key "data_offsets": expected a non-negative integer, found the string "8" [E-ST-016]`},
		{"offset fractional", raw(one(`"F32"`, "[2]", `[0,8.0]`), 8),
			`tensor "w", offset 58: key "data_offsets": expected a non-negative integer, found 8.0 [E-ST-016]`},
		{"offsets reversed", raw(one(`"F32"`, "[2]", "[8,0]"), 8), `tensor "w": data_offsets are reversed: 8 > 0 [E-ST-037]`},
		{"wrong size", raw(one(`"F32"`, "[2]", "[0,7]"), 8), `tensor "w": data_offsets span 7 bytes, but F32 [2] needs 8 [E-ST-038]`},
		{"past the end", raw(one(`"F32"`, "[2]", "[0,8]"), 7), `tensor "w": data_offsets [0, 8] pass the end of the data at 7 [E-ST-040]`},
		{"far past the end", raw(one(`"F32"`, "[2]", "[18446744073709551600,18446744073709551608]"), 8),
			`tensor "w": data_offsets [18446744073709551600, 18446744073709551608] pass the end of the data at 8 [E-ST-040]`},
		{"hole at the start", raw(one(`"F32"`, "[2]", "[4,12]"), 12), `tensor "w": data_offsets [4, 12] leave a hole from 0 [E-ST-042]`},
		{"hole between", raw(`{"a":{`+f32x2+`},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}`, 16),
			`tensor "b": data_offsets [12, 16] leave a hole from 8 [E-ST-042]`},
		{"overlap", raw(`{"a":{`+f32x2+`},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8),
			`tensor "b": data_offsets [4, 8] overlap tensor "a", which ends at 8 [E-ST-041]`},
		{"same range twice", raw(`{"a":{`+f32x2+`},"b":{`+f32x2+`}}`, 8), `tensor "b": data_offsets [0, 8] overlap tensor "a", which ends at 8 [E-ST-041]`},
		{"empty tensor inside another", raw(`{"a":{`+f32x2+`},"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}`, 8),
			`tensor "b": data_offsets [4, 4] overlap tensor "a", which ends at 8 [E-ST-041]`},
		{"bytes left over", raw(one(`"F32"`, "[2]", "[0,8]"), 9), `data offset 8: 1 bytes after the last tensor belong to none [E-ST-043]`},
		{"data without tensors", raw("{}", 1), `data offset 0: 1 bytes after the last tensor belong to none [E-ST-043]`},
		{"metadata not an object", raw(`{"__metadata__":[]}`, 0), `__metadata__, offset 24: expected an object, found an array [E-ST-022]`},
		{"metadata null", raw(`{"__metadata__":null}`, 0), `__metadata__, offset 24: expected an object, found null [E-ST-022]`},
		{"metadata value a number", raw(`{"__metadata__":{"a":1}}`, 0), `__metadata__ key "a", offset 29: expected a string, found 1 [E-ST-022]`},
		{"name empty", raw(`{"":{`+f32x2+`}}`, 8), `tensor "": tensor name is empty [E-ST-021]`},
		{"name too long", raw(`{"`+strings.Repeat("n", 257)+`":{`+f32x2+`}}`, 8),
			`tensor "` + strings.Repeat("n", 256) + `…": tensor name of 257 bytes is over the limit of 256 [E-ST-021]`},
		{"name with escape sequence", raw(`{"\u001b[2J":{`+f32x2+`}}`, 8), `tensor "\x1b[2J": tensor name has a control character [E-ST-021]`},
		{"name absolute", raw(`{"/etc/passwd":{`+f32x2+`}}`, 8), `tensor "/etc/passwd": tensor name is an absolute path [E-ST-021]`},
		{"name climbs", raw(`{"a/../b":{`+f32x2+`}}`, 8), `tensor "a/../b": tensor name has a ".." component [E-ST-021]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			path := save(t, c.file)
			f, err := Open(path)
			if err == nil {
				f.Close()
				t.Fatal("accepted")
			}
			if err.Error() != path+": "+c.want || fault.KindOf(err) != fault.Format {
				t.Errorf("got  %v (%v)\nwant %s: %s", err, fault.KindOf(err), path, c.want)
			}
		})
	}
}

func TestTooManyTensors(t *testing.T) {
	var b strings.Builder
	for i := range 100_001 {
		fmt.Fprintf(&b, `,"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`, i)
	}
	path := save(t, raw("{"+b.String()[1:]+"}", 0))
	if _, err := Open(path); err == nil || err.Error() != path+": more than 100000 tensors [E-ST-020]" {
		t.Errorf("got %v", err)
	}
}

func TestAccepted(t *testing.T) {
	for _, c := range []struct {
		name string
		file []byte
		want string // name dtype shape size, …
	}{
		{"no tensors", raw("{}", 0), ""},
		{"empty metadata", raw(`{"__metadata__":{}}`, 0), ""},
		{"blanks around the header", raw(" \t\r\n{} \n", 0), ""},
		{"zero elements", raw(one(`"F32"`, "[3,0]", "[0,0]"), 0), "w f32 [3 0] 0"},
		{"rank 0", raw(one(`"F64"`, "[]", "[0,8]"), 8), "w f64 [] 8"},
		{"rank 8", raw(one(`"U8"`, "[1,1,1,1,1,1,1,1]", "[0,1]"), 1), "w u8 [1 1 1 1 1 1 1 1] 1"},
		{"unaligned data", raw(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}`, 5),
			"a u8 [1] 1, b f32 [1] 4"},
		{"order of names unlike data", raw(`{"b":{"dtype":"I64","shape":[1],"data_offsets":[8,16]},"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}`, 16),
			"a bf16 [4] 8, b i64 [1] 8"},
		{"empty tensors between", raw(`{"a":{`+f32x2+`},"e":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},"s":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}`, 8),
			"a f32 [2] 8, e f32 [0] 0, s f32 [0] 0"},
		{"non-ASCII name", raw(`{"größe":{`+f32x2+`}}`, 8), "größe f32 [2] 8"},
		{"escaped name", raw(`{"\u0067r\u00f6\u00dfe":{`+f32x2+`}}`, 8), "größe f32 [2] 8"},
		{"all types", raw(`{"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]},`+
			`"c":{"dtype":"U16","shape":[1],"data_offsets":[2,4]},"d":{"dtype":"I16","shape":[1],"data_offsets":[4,6]},`+
			`"e":{"dtype":"F16","shape":[1],"data_offsets":[6,8]},"f":{"dtype":"U32","shape":[1],"data_offsets":[8,12]},`+
			`"g":{"dtype":"I32","shape":[1],"data_offsets":[12,16]},"h":{"dtype":"U64","shape":[1],"data_offsets":[16,24]}}`, 24),
			"a bool [1] 1, b i8 [1] 1, c u16 [1] 2, d i16 [1] 2, e f16 [1] 2, f u32 [1] 4, g i32 [1] 4, h u64 [1] 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, err := Open(save(t, c.file))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got := describe(f); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			readAll(t, f)
		})
	}
}

// describe lists the tensors of a file.
func describe(f tensor.File) string {
	var list []string
	for _, x := range f.Tensors() {
		list = append(list, fmt.Sprintf("%s %s %v %d", x.Name, x.DType, x.Shape, x.Size))
	}
	return strings.Join(list, ", ")
}

// readAll reads every payload.
func readAll(t testing.TB, f tensor.File) {
	for _, x := range f.Tensors() {
		b, err := io.ReadAll(io.NewSectionReader(x, 0, x.Size))
		if err != nil || int64(len(b)) != x.Size {
			t.Errorf("%s: %d bytes, %v", x.Name, len(b), err)
		}
	}
}

func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "model")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"fifo": fifo, "empty directory": dir, "missing": dir + "/x", "device": "/dev/null"} {
		if _, err := Open(path); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostileCost holds the price of refusing a bad file: a second, and 64 MiB plus four times its size.
func TestHostileCost(t *testing.T) {
	for name, file := range map[string][]byte{
		"claimed header":  append(binary.LittleEndian.AppendUint64(nil, 99_999_999), make([]byte, 1000)...),
		"many dimensions": raw(`{"w":{"dtype":"F32","shape":[`+strings.Repeat("1,", 1<<20)+`1],"data_offsets":[0,4]}}`, 4),
		"many tensors":    raw(`{`+strings.Repeat(`"w":{},`, 1<<19)+`"x":{}}`, 0),
	} {
		contracttest.Cases(t, 1)
		path := save(t, file)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := near.CPUTime()
		_, err := Open(path)
		took := near.CPUTime() - start
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20+4*uint64(len(file)) || took > time.Second {
			t.Errorf("%s: %d bytes allocated, %v", name, got, took)
		}
	}
}

// small is a file with every part: metadata, three types, an empty tensor, a scalar.
var small = raw(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},`+
	`"b":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},"c":{"dtype":"U8","shape":[0],"data_offsets":[10,10]}} `, 10)

// TestEveryPrefixAndFlip opens every prefix and every single-byte change of a small file: an error or a readable file.
func TestEveryPrefixAndFlip(t *testing.T) {
	if err := open(t, small); err != nil {
		t.Fatal(err)
	}
	accepted := 0
	contracttest.Cases(t, hostile.EachDamage(t, small, func(name string, b []byte) {
		switch err := open(t, b); {
		case err == nil && len(b) < len(small):
			t.Errorf("%s accepted", name)
		case err == nil:
			accepted++
		}
	}))
	if accepted == 0 {
		t.Error("no change was accepted, though the payload's bytes are free")
	}
}

// open reads all of b as a file.
func open(t testing.TB, b []byte) error {
	tensors, _, err := parse(bytes.NewReader(b), "m", int64(len(b)))
	if err != nil {
		if fault.KindOf(err) != fault.Format {
			t.Errorf("no fault of kind Format: %v", err)
		}
		return err
	}
	for _, x := range tensors {
		payload(t, x)
	}
	return nil
}

// payload reads the bytes of a tensor.
func payload(t testing.TB, x tensor.Stored) []byte {
	b, err := io.ReadAll(io.NewSectionReader(x, 0, x.Size))
	if err != nil || int64(len(b)) != x.Size {
		t.Fatalf("%s: %d bytes, %v", x.Name, len(b), err)
	}
	return b
}

// FuzzParse reads any bytes as a file: a fault, or tensors that can be read.
func FuzzParse(f *testing.F) {
	f.Add(small)
	f.Add(raw("{}", 0))
	f.Add(raw(one(`"F4"`, "[4]", "[0,2]"), 2))
	f.Add(raw(one(`"F32"`, "[4294967296,4294967296,0]", "[0,0]"), 0))
	f.Add([]byte(`{"weight_map":{"a":"m"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var tensors []tensor.Stored
		var metadata map[string]string
		var err error
		hostile.Bounded(t, len(b), func() { tensors, metadata, err = parse(bytes.NewReader(b), "m", int64(len(b))) })
		if err != nil {
			if fault.KindOf(err) != fault.Format {
				t.Fatalf("no fault of kind Format: %v", err)
			}
			return
		}
		end := 8 + int64(binary.LittleEndian.Uint64(b))
		for _, x := range tensors {
			if n, ok := tensor.Elements(x.Shape); !ok || n*int64(x.DType.BlockBytes()) != x.Size {
				t.Fatalf("%v: %d elements in %d bytes", x.Info, n, x.Size)
			}
			end += x.Size
		}
		if end != int64(len(b)) {
			t.Fatalf("%d of %d bytes are explained", end, len(b))
		}
		sameAgain(t, tensors, metadata)
	})
}

// sameAgain writes a new file of what was read, and compares it with what is read of that.
func sameAgain(t *testing.T, tensors []tensor.Stored, metadata map[string]string) {
	sources := make([]tensor.Source, len(tensors))
	for i, x := range tensors {
		sources[i] = x.Source()
	}
	var b bytes.Buffer
	if _, err := Encode(&b, sources, metadata); err != nil {
		t.Fatal(err)
	}
	metadata = maps.Clone(metadata)
	if _, ok := metadata["format"]; !ok {
		metadata["format"] = "pt" // the writer's own
	}
	list, texts, err := parse(bytes.NewReader(b.Bytes()), "m", int64(b.Len()))
	if err != nil || !maps.Equal(texts, metadata) || len(list) != len(tensors) {
		t.Fatalf("%d tensors and metadata %q are read again as %d and %q: %v", len(tensors), metadata, len(list), texts, err)
	}
	again := stored.NewSet(list)
	for _, x := range tensors {
		y, ok := again.Tensor(x.Name)
		if !ok || y.DType != x.DType || !slices.Equal(y.Shape, x.Shape) || !bytes.Equal(payload(t, x), payload(t, y)) {
			t.Fatalf("%v was written, %v is read", x.Info, y.Info)
		}
	}
}
