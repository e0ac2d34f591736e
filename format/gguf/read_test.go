//go:build !windows

package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
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

// save writes b as a file of the name "m" and returns its path.
func save(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRefused(t *testing.T) {
	const array, u8, str = uint32(Array), uint32(Uint8), uint32(String)
	kv := func() *builder { return head(0, 1) }
	big := func() *builder { return new(builder).raw("GGUF").raw("\x00\x00\x00\x03").u64(0, 0) }
	align := func(a uint32) []byte { return kv().key("general.alignment", Uint32).u32(a).pad(1024, 0).b }
	two := func(second uint64, n int) []byte {
		return head(2, 0).tensor("a", 0, 0, 2).tensor("b", 0, second, 2).pad(32, n).b
	}
	for _, c := range []struct {
		name string
		file []byte
		want string // after the path
	}{
		{"empty", nil, "offset 0: magic of 4 bytes passes the end of the file at 0 [E-GGUF-005]"},
		{"magic cut", []byte("GGU"), "offset 0: magic of 4 bytes passes the end of the file at 3 [E-GGUF-005]"},
		{"magic", []byte("GGML\x03\x00\x00\x00"), `offset 0: file begins with "GGML", not "GGUF" [E-GGUF-001]`},
		{"magic of the other byte order", []byte("FUGG\x00\x00\x00\x03"), `offset 0: file begins with "FUGG", not "GGUF" [E-GGUF-001]`},
		{"version cut", []byte("GGUF\x03"), "offset 4: version of 4 bytes passes the end of the file at 5 [E-GGUF-005]"},
		{"version 0", new(builder).raw("GGUF").u32(0).u64(0, 0).b, "offset 4: version 0 is not supported; supported: 2, 3 [E-GGUF-002]"},
		{"version 1", new(builder).raw("GGUF").u32(1).u64(0, 0).b, "offset 4: version 1 is not supported; supported: 2, 3 [E-GGUF-002]"},
		{"version 4", new(builder).raw("GGUF").u32(4).u64(0, 0).b, "offset 4: version 4 is not supported; supported: 2, 3 [E-GGUF-002]"},
		{"byte order", big().b, "offset 4: version 3 of a big-endian file; supported are little-endian files [E-GGUF-003]"},
		{"counts cut", new(builder).raw("GGUF").u32(3).u64(0).b, "offset 16: number of keys of 8 bytes passes the end of the file at 16 [E-GGUF-005]"},
		{"tensors over the limit", head(100_001, 0).b, "offset 8: number of tensors 100001 is over the limit of 100000 [E-GGUF-030]"},
		{"tensors beyond the file", head(2, 0).u64(0, 0, 0, 0).b, "offset 8: number of tensors 2 is more than the file of 56 bytes can hold [E-GGUF-030]"},
		{"tensors negative", head(1<<64-1, 0).b, "offset 8: number of tensors 18446744073709551615 is over the limit of 100000 [E-GGUF-030]"},
		{"keys over the limit", head(0, 1<<63).b, "offset 16: number of keys 9223372036854775808 is over the limit of 100000 [E-GGUF-010]"},
		{"keys beyond the file", head(0, 2).u64(0, 0, 0).b, "offset 16: number of keys 2 is more than the file of 48 bytes can hold [E-GGUF-010]"},

		{"key empty", kv().key("", Uint8).raw("1").pad(8, 0).b, "offset 32: key is empty [E-GGUF-011]"},
		{"key too long", kv().key(strings.Repeat("k", 65536), Uint8).raw("1").b, "offset 24: key of 65536 bytes is over the limit of 65535 [E-GGUF-011]"},
		{"key past the end", kv().u64(1000).pad(8, 8).b, "offset 32: key of 1000 bytes passes the end of the file at 40 [E-GGUF-005]"},
		{"key not ASCII", kv().key("ké", Uint8).raw("1").b, "offset 33: byte 0xc3 in a key is not printable ASCII [E-GGUF-011]"},
		{"key with escape sequence", kv().key("\x1b[2J", Uint8).raw("1").b, "offset 32: byte 0x1b in a key is not printable ASCII [E-GGUF-011]"},
		{"key twice", head(0, 2).key("k", Uint8).raw("1").key("k", Uint8).raw("2").b, `key "k", offset 46: occurs twice [E-GGUF-012]`},
		{"value type unknown", kv().key("k", 13).u64(0).b, `key "k", offset 33: value type 13 is unknown [E-GGUF-013]`},
		{"value cut", kv().key("k", Uint64).u32(0).b, `key "k", offset 37: value of 8 bytes passes the end of the file at 41 [E-GGUF-005]`},
		{"string longer than the rest", kv().key("k", String).u64(9).raw("12345678").b, `key "k", offset 45: string of 9 bytes passes the end of the file at 53 [E-GGUF-005]`},
		{"string over the limit", kv().key("k", String).u64(16<<20 + 1).b, `key "k", offset 37: string of 16777217 bytes is over the limit of 16777216 [E-GGUF-014]`},
		{"string length wraps", kv().key("k", String).u64(1<<64 - 8).b, `key "k", offset 37: string of 18446744073709551608 bytes is over the limit of 16777216 [E-GGUF-014]`},
		{"array longer than the rest", kv().key("k", Array).u32(uint32(Uint32)).u64(3).u64(0).b, `key "k", offset 49: array of 12 bytes passes the end of the file at 57 [E-GGUF-005]`},
		{"array over the limit", kv().key("k", Array).u32(u8).u64(64<<20 + 1).b, `key "k", offset 41: array of 67108865 elements is over the limit of 67108864 [E-GGUF-015]`},
		{"array bytes wrap", kv().key("k", Array).u32(uint32(Uint64)).u64(1 << 61).b, `key "k", offset 41: array of 2305843009213693952 elements is over the limit of 67108864 [E-GGUF-015]`},
		{"array of unknown type", kv().key("k", Array).u32(13).u64(0).b, `key "k", offset 37: value type 13 of elements is unknown [E-GGUF-013]`},
		{"array of arrays", kv().key("k", Array).u32(array).u64(0).b, `key "k", offset 37: is an array of arrays [E-GGUF-016]`},
		{"strings longer than the rest", kv().key("k", Array).u32(str).u64(2).str("a").u64(5).raw("1234").b,
			`key "k", offset 66: string of 5 bytes passes the end of the file at 70 [E-GGUF-005]`},
		{"boolean 2", kv().key("k", Bool).raw("\x02").b, `key "k", offset 37: boolean is 2, not 0 or 1 [E-GGUF-017]`},
		{"boolean 255 in an array", kv().key("k", Array).u32(uint32(Bool)).u64(3).raw("\x00\x01\xff").b, `key "k", offset 51: boolean is 255, not 0 or 1 [E-GGUF-017]`},
		{"alignment not u32", kv().key("general.alignment", Uint64).u64(32).b, `key "general.alignment": expected u32, found u64 [E-GGUF-020]`},
		{"alignment 0", align(0), `key "general.alignment": alignment 0 is not a power of two of 8 or more [E-GGUF-018]`},
		{"alignment 4", align(4), `key "general.alignment": alignment 4 is not a power of two of 8 or more [E-GGUF-018]`},
		{"alignment 24", align(24), `key "general.alignment": alignment 24 is not a power of two of 8 or more [E-GGUF-018]`},
		{"alignment beyond the file", align(1 << 31), `key "general.alignment": alignment 2147483648 is beyond the file of 1024 bytes [E-GGUF-018]`},
		{"a part", kv().key("split.count", Uint16).raw("\x03\x00").b, `key "split.count": the model is in 3 files, which is not supported [E-GGUF-023]`},

		{"tensor cut", one(0, 0, 0, 1)[:50], `tensor "w", offset 49: offset of 8 bytes passes the end of the file at 50 [E-GGUF-005]`},
		{"name empty", head(1, 0).tensor("", 0, 0, 1).pad(32, 4).b, `tensor "", offset 32: tensor name is empty [E-GGUF-031]`},
		{"name too long", head(1, 0).tensor(strings.Repeat("n", 64), 0, 0, 1).pad(32, 4).b,
			`tensor "` + strings.Repeat("n", 64) + `", offset 32: tensor name of 64 bytes is over the limit of 63 [E-GGUF-031]`},
		{"name not UTF-8", head(1, 0).tensor("a\xff", 0, 0, 1).pad(32, 4).b, `tensor "a\xff", offset 32: tensor name is not UTF-8 [E-GGUF-031]`},
		{"name with escape sequence", head(1, 0).tensor("\x1b[2J", 0, 0, 1).pad(32, 4).b, `tensor "\x1b[2J", offset 32: tensor name has a control character [E-GGUF-031]`},
		{"name climbs", head(1, 0).tensor("a/../b", 0, 0, 1).pad(32, 4).b, `tensor "a/../b", offset 32: tensor name has a ".." component [E-GGUF-031]`},
		{"name twice", head(2, 0).tensor("a", 0, 0, 1).tensor("a", 0, 32, 1).pad(32, 36).b, `tensor "a", offset 65: occurs twice [E-GGUF-032]`},
		{"rank 5", one(0, 0, 4, 1, 1, 1, 1, 1), `tensor "w", offset 33: 5 dimensions are over the limit of 4 [E-GGUF-033]`},
		{"rank of 4 GiB", head(1, 0).str("w").u32(1<<32-1).pad(64, 0).b, `tensor "w", offset 33: 4294967295 dimensions are over the limit of 4 [E-GGUF-033]`},
		{"dimension over i64", one(0, 0, 4, 1<<63), `tensor "w", offset 37: dimension 9223372036854775808 is over 9223372036854775807 [E-GGUF-034]`},
		{"product overflows", one(0, 0, 4, 1<<32, 1<<31), `tensor "w", offset 45: the product of shape [2147483648 4294967296] overflows [E-GGUF-034]`},
		{"product wraps to 0", one(0, 0, 4, 1<<32, 1<<32), `tensor "w", offset 45: the product of shape [4294967296 4294967296] overflows [E-GGUF-034]`},
		{"product wraps beside 0", one(0, 0, 0, 1<<32, 1<<32, 0), `tensor "w", offset 53: the product of shape [0 4294967296 4294967296] overflows [E-GGUF-034]`},
		{"bytes overflow", one(0, 0, 4, 1<<62), `tensor "w", offset 45: 4611686018427387904 elements of F32 overflow [E-GGUF-035]`},
		{"bytes over i64", one(0, 0, 4, 1<<61), `tensor "w", offset 45: 2305843009213693952 elements of F32 overflow [E-GGUF-035]`},
		{"padding past the end", head(1, 0).tensor("w", 24, 0, 1<<63-1).pad(32, 4).b, `tensor "w": 9223372036854775807 bytes at offset 64+0 exceed the file of 68 [E-GGUF-050]`},
		{"row not whole blocks", one(8, 0, 34, 16, 2), `tensor "w", offset 53: rows of 16 elements are not whole blocks of 32, which Q8_0 has [E-GGUF-036]`},
		{"row not whole superblocks", one(12, 0, 144, 128, 2), `tensor "w", offset 53: rows of 128 elements are not whole blocks of 256, which Q4_K has [E-GGUF-036]`},
		{"scalar in blocks", one(2, 0, 18), `tensor "w", offset 37: rows of 1 elements are not whole blocks of 32, which Q4_0 has [E-GGUF-036]`},
		{"removed type", one(4, 0, 20, 32), `tensor "w", offset 45: type Q4_2 (4) was removed from the format [E-GGUF-037]`},
		{"unknown type", one(40, 0, 20, 32), `tensor "w", offset 45: type 40 is unknown [E-GGUF-037]`},
		{"type negative", one(1<<32-1, 0, 20, 32), `tensor "w", offset 45: type 4294967295 is unknown [E-GGUF-037]`},
		{"half a block of iq4_nl", one(20, 0, 9, 16), `tensor "w", offset 45: rows of 16 elements are not whole blocks of 32, which IQ4_NL has [E-GGUF-036]`},
		{"unsupported type", one(3, 0, 20, 32), `tensor "w", offset 45: type Q4_1 is not supported [E-GGUF-038]`},
		{"offset misaligned", one(0, 16, 32, 1), `tensor "w": offset 16 is not a multiple of the alignment 32 [E-GGUF-040]`},
		{"hole at the start", one(0, 32, 36, 1), `tensor "w": offset 32 leaves a hole from 0 [E-GGUF-042]`},
		{"hole between", two(64, 72), `tensor "b": offset 64 leaves a hole from 32 [E-GGUF-042]`},
		{"overlap", two(0, 40), `tensor "b": offset 0 overlaps tensor "a"; the next payload is due at 32 [E-GGUF-041]`},
		{"order unlike data", head(2, 0).tensor("a", 0, 32, 2).tensor("b", 0, 0, 2).pad(32, 40).b, `tensor "a": offset 32 leaves a hole from 0 [E-GGUF-042]`},
		{"offset wraps", one(0, 1<<64-32, 36, 1), `tensor "w": offset 18446744073709551584 leaves a hole from 0 [E-GGUF-042]`},
		{"data cut", one(0, 0, 7, 2), `tensor "w": 8 bytes at offset 64+0 exceed the file of 71 [E-GGUF-050]`},
		{"data missing", head(1, 0).tensor("w", 0, 0, 2).b, `tensor "w": 8 bytes at offset 64+0 exceed the file of 57 [E-GGUF-050]`},
		{"second tensor cut", two(32, 39), `tensor "b": 8 bytes at offset 96+32 exceed the file of 135 [E-GGUF-050]`},
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

func TestAccepted(t *testing.T) {
	v2 := bytes.Clone(small)
	v2[4] = 2
	for _, c := range []struct {
		name string
		file []byte
		want string // name dtype shape size, …
		warn string // after the path
	}{
		{"nothing", head(0, 0).b, "", ""},
		{"every part", small, "blk.0.attn_q.bias bf16 [3] 6, empty f32 [5 0] 0, q q8_0 [2 32] 68, scalar f16 [] 2, token_embd.weight f32 [3 2] 24", ""},
		{"version 2", v2, "blk.0.attn_q.bias bf16 [3] 6, empty f32 [5 0] 0, q q8_0 [2 32] 68, scalar f16 [] 2, token_embd.weight f32 [3 2] 24", ""},
		{"last padding missing", small[:len(small)-4], "blk.0.attn_q.bias bf16 [3] 6, empty f32 [5 0] 0, q q8_0 [2 32] 68, scalar f16 [] 2, token_embd.weight f32 [3 2] 24", ""},
		{"alignment 64", head(2, 1).key("general.alignment", Uint32).u32(64).tensor("a", 0, 0, 1).tensor("b", 0, 64, 1).pad(64, 68).b, "a f32 [1] 4, b f32 [1] 4", ""},
		{"zero elements without data", head(1, 0).tensor("w", 0, 0, 0).b, "w f32 [0] 0", ""},
		{"non-ASCII name", head(1, 0).tensor("größe", 0, 0, 2).pad(32, 8).b, "größe f32 [2] 8", ""},
		{"empty strings and arrays", head(0, 3).key("a", String).str("").key("b", Array).u32(uint32(String)).u64(0).
			key("c", Array).u32(uint32(String)).u64(2).str("").str("").b, "", ""},
		{"bytes left over", one(0, 0, 40, 2), "w f32 [2] 8", "offset 96: 8 bytes after the last tensor belong to none [E-GGUF-051]"},
		{"all blocks", head(6, 0).tensor("a", 2, 0, 32).tensor("b", 6, 32, 32).tensor("c", 8, 64, 32).tensor("d", 12, 128, 256).
			tensor("e", 13, 288, 256).tensor("f", 14, 480, 256, 2).pad(32, 480+420).b,
			"a q4_0 [32] 18, b q5_0 [32] 22, c q8_0 [32] 34, d q4_k [256] 144, e q5_k [256] 176, f q6_k [2 256] 420", ""},
		{"plain types", head(5, 0).tensor("a", 24, 0, 1).tensor("b", 25, 32, 1).tensor("c", 26, 64, 1).tensor("d", 27, 96, 1).tensor("e", 28, 128, 1).pad(32, 136).b,
			"a i8 [1] 1, b i16 [1] 2, c i32 [1] 4, d i64 [1] 8, e f64 [1] 8", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := save(t, c.file)
			f, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var list []string
			for _, x := range f.Tensors() {
				list = append(list, fmt.Sprintf("%s %s %v %d", x.Name, x.DType, x.Shape, x.Size))
			}
			if got := strings.Join(list, ", "); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			want := ""
			if c.warn != "" {
				want = path + ": " + c.warn
			}
			if got := strings.Join(f.Warnings(), ", "); got != want {
				t.Errorf("warnings: %s, want %s", got, want)
			}
			readAll(t, f)
		})
	}
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

// TestPayload compares payloads with the bytes at the offsets of the file.
func TestPayload(t *testing.T) {
	f, err := Open(save(t, small))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	start := len(small) - 112
	for name, want := range map[string][]byte{
		"token_embd.weight": small[start : start+24], "blk.0.attn_q.bias": small[start+24 : start+30],
		"scalar": small[start+32 : start+34], "q": small[start+40 : start+108], "empty": {},
	} {
		x, ok := f.Tensor(name)
		got := make([]byte, x.Size)
		if n, err := x.ReadAt(got, 0); !ok || n != len(got) || err != nil && err != io.EOF || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, want)
		}
	}
}

func TestMetadata(t *testing.T) {
	f, err := Open(save(t, small))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := f.Metadata()
	get := func(v any, ok bool, err error) string { return fmt.Sprintf("%v %v %v", v, ok, err) }
	uint64s := func(key string) string { v, ok, err := m.Uint(key); return get(v, ok, err) }
	floats := func(key string) string { v, ok, err := m.Float(key); return get(v, ok, err) }
	bools := func(key string) string { v, ok, err := m.Bool(key); return get(v, ok, err) }
	strs := func(key string) string { v, ok, err := m.Str(key); return get(fmt.Sprintf("%q", v), ok, err) }
	lists := func(key string) string { v, ok, err := m.Strings(key); return get(fmt.Sprintf("%q", v), ok, err) }
	ints := func(key string) string { v, ok, err := m.Ints(key); return get(v, ok, err) }
	other := func(key, want, found string) string {
		return fmt.Sprintf("true %s: key %q: expected %s, found %s [E-GGUF-020]", f.Path(), key, want, found)
	}
	for _, c := range []struct{ name, got, want string }{
		{"uint", uint64s("general.alignment"), "8 true <nil>"},
		{"uint missing", uint64s("x"), "0 false <nil>"},
		{"uint of a string", uint64s("general.architecture"), "0 " + other("general.architecture", "an integer", "string")},
		{"uint of a negative", uint64s("a.i64"), "0 " + other("a.i64", "a non-negative integer", "-5")},
		{"uint of a float", uint64s("a.float"), "0 " + other("a.float", "an integer", "f32")},
		{"float", floats("a.float"), "1e-06 true <nil>"},
		{"float of an integer", floats("a.i64"), "-5 true <nil>"},
		{"float of a boolean", floats("a.bool"), "0 " + other("a.bool", "a number", "bool")},
		{"float missing", floats("x"), "0 false <nil>"},
		{"bool", bools("a.bool"), "true true <nil>"},
		{"bool of an integer", bools("general.alignment"), "false " + other("general.alignment", "a boolean", "u32")},
		{"bool missing", bools("x"), "false false <nil>"},
		{"string", strs("general.architecture"), `"qwen2" true <nil>`},
		{"string of an array", strs("a.strings"), `"" ` + other("a.strings", "a string", "array of string")},
		{"string missing", strs("x"), `"" false <nil>`},
		{"strings", lists("a.strings"), `["x" "" "yz"] true <nil>`},
		{"strings of integers", lists("a.ints"), "[] " + other("a.ints", "an array of strings", "array of i32")},
		{"strings missing", lists("x"), "[] false <nil>"},
		{"ints", ints("a.ints"), "[1 -1 3] true <nil>"},
		{"no ints", ints("a.empty"), "[] true <nil>"},
		{"ints of strings", ints("a.strings"), "[] " + other("a.strings", "an array of integers", "array of string")},
		{"ints missing", ints("x"), "[] false <nil>"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, c.got, c.want)
		}
	}
	want := []string{"general.alignment", "general.architecture", "a.bool", "a.float", "a.ints", "a.strings", "a.empty", "a.i64"}
	if !reflect.DeepEqual(m.Keys(), want) {
		t.Errorf("keys %q", m.Keys())
	}
}

// TestNumbers reads every scalar type.
func TestNumbers(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		t    Type
		raw  []byte
		want float64
	}{
		{Uint8, []byte{0xff}, 255}, {Int8, []byte{0xff}, -1}, {Uint16, []byte{0xfe, 0xff}, 65534}, {Int16, []byte{0xfe, 0xff}, -2},
		{Uint32, le.AppendUint32(nil, 1<<32-1), 1<<32 - 1}, {Int32, le.AppendUint32(nil, 1<<32-1), -1},
		{Uint64, le.AppendUint64(nil, 1<<63), 1 << 63}, {Int64, le.AppendUint64(nil, 1<<63), -1 << 63},
		{Float32, new(builder).f32(0.1).b, 0.1}, {Float64, le.AppendUint64(nil, 0x3ff8000000000000), 1.5},
	} {
		f, err := Open(save(t, head(0, 1).key("k", c.t).raw(string(c.raw)).b))
		if err != nil {
			t.Fatal(err)
		}
		if got, ok, err := f.Metadata().Float("k"); got != c.want || !ok || err != nil {
			t.Errorf("%s: %v, %v, want %v", c.t, got, err, c.want)
		}
		f.Close()
	}
}

func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "model")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{"fifo": fifo, "directory": dir, "missing": dir + "/x", "device": "/dev/null"} {
		if _, err := Open(path); fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostileCost holds the price of refusing a bad file: a second, and 64 MiB plus four times its size.
func TestHostileCost(t *testing.T) {
	keys := head(0, 99_999)
	for i := range 99_998 {
		keys.key(fmt.Sprintf("k%05x", i), Uint8).raw("1")
	}
	tensors := head(100_000, 0)
	for i := range 99_999 {
		tensors.tensor(fmt.Sprintf("%05x", i), 0, 0)
	}
	for name, file := range map[string][]byte{
		"claimed array":   head(0, 1).key("k", Array).u32(uint32(Uint64)).u64(64<<20).pad(8, 1000).b,
		"claimed strings": head(0, 1).key("k", Array).u32(uint32(String)).u64(64<<20).pad(8, 1000).b,
		"claimed string":  head(0, 1).key("k", String).u64(16<<20).pad(8, 1000).b,
		"empty strings":   head(0, 1).key("k", Array).u32(uint32(String)).u64(4<<20 + 1).raw(strings.Repeat("\x00", 32<<20)).b,
		"many keys":       keys.key("k00000", Uint8).raw("1").b,
		"many tensors":    tensors.tensor("00000", 0, 0).b,
	} {
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
		got := after.TotalAlloc - before.TotalAlloc
		t.Logf("%s: %d bytes allocated for a file of %d, %v: %v", name, got, len(file), took, err)
		if got > 64<<20+4*uint64(len(file)) || took > time.Second {
			t.Errorf("%s: %d bytes allocated, %v", name, got, took)
		}
	}
}

// TestEveryPrefixAndFlip opens every prefix and every single-byte change of a small file: an error or a readable file.
func TestEveryPrefixAndFlip(t *testing.T) {
	if err := open(t, small); err != nil {
		t.Fatal(err)
	}
	payloads := len(small) - 4 // the last padding may be missing
	accepted := 0
	contracttest.Cases(t, hostile.EachDamage(t, small, func(name string, b []byte) {
		switch err := open(t, b); {
		case err == nil && len(b) < payloads:
			t.Errorf("%s accepted", name)
		case err == nil && len(b) == len(small):
			accepted++
		}
	}))
	if accepted == 0 {
		t.Error("no change was accepted, though the payload's bytes are free")
	}
}

// open reads all of b as a file: a fault of kind Format, or tensors and metadata that can be read.
func open(t testing.TB, b []byte) error {
	h, err := parse(bytes.NewReader(b), "m", int64(len(b)))
	if err != nil {
		if fault.KindOf(err) != fault.Format {
			t.Errorf("no fault of kind Format: %v", err)
		}
		return err
	}
	readMetadata(h.meta)
	for _, x := range h.tensors {
		n, ok := tensor.Elements(x.Shape)
		if !ok || n%int64(x.DType.BlockLen()) != 0 || n/int64(x.DType.BlockLen())*int64(x.DType.BlockBytes()) != x.Size {
			t.Errorf("%v: %d elements in %d bytes", x.Info, n, x.Size)
		}
		if got, err := io.Copy(io.Discard, io.NewSectionReader(x, 0, x.Size)); err != nil || got != x.Size {
			t.Errorf("%v: %d bytes read, %v", x.Info, got, err)
		}
	}
	return nil
}

// readMetadata asks for every key in every form.
func readMetadata(m *Metadata) {
	for _, key := range append(m.Keys(), "none") {
		m.Uint(key)
		m.Float(key)
		m.Bool(key)
		m.Str(key)
		m.Strings(key)
		m.Ints(key)
		m.Type(key)
	}
}

// TestTruncatedWhileReading cuts a file at 100 lengths while it is being read.
func TestTruncatedWhileReading(t *testing.T) {
	for i := range 100 {
		path := save(t, small)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		keep := i * 7919 % (len(small) - 4)
		if err := os.Truncate(path, int64(keep)); err != nil {
			t.Fatal(err)
		}
		failed := 0
		for _, x := range f.Tensors() {
			if _, err := x.ReadAt(make([]byte, x.Size), 0); err != nil && err != io.EOF {
				failed++
				if fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), fmt.Sprintf("tensor %q", x.Name)) {
					t.Errorf("cut at %d: %v", keep, err)
				}
			}
		}
		if failed == 0 {
			t.Errorf("cut at %d: every payload was read", keep)
		}
		f.Close()
	}
	contracttest.Cases(t, 100)
}

// TestInstant opens a sparse file of 15 GB with the metadata of a large vocabulary by its header alone.
func TestInstant(t *testing.T) {
	const tensors, words = 400, 152_000
	b := head(tensors, 1).key("tokenizer.ggml.tokens", Array).u32(uint32(String)).u64(words)
	for i := range words {
		b.str(fmt.Sprintf("token%d", i))
	}
	const size = 5120 * 3600 * 2
	for i := range uint64(tensors) {
		b.tensor(fmt.Sprintf("blk.%d.ffn_up.weight", i), 30, i*size, 5120, 3600)
	}
	b.pad(32, 0)
	path := save(t, b.b)
	if err := os.Truncate(path, int64(len(b.b))+tensors*size); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := near.CPUTime()
	f, err := Open(path)
	took := near.CPUTime() - start
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := after.TotalAlloc - before.TotalAlloc
	t.Logf("%d tensors in %v, %d bytes allocated", len(f.Tensors()), took, got)
	if len(f.Tensors()) != tensors || took > 100*time.Millisecond || got > 50<<20 {
		t.Errorf("%d tensors in %v, %d bytes allocated", len(f.Tensors()), took, got)
	}
}

// FuzzParse reads any bytes as a file: a fault, or tensors and metadata that can be read.
func FuzzParse(f *testing.F) {
	f.Add(small)
	f.Add(head(0, 0).b)
	f.Add(one(12, 0, 144, 256))
	f.Add(one(0, 0, 0, 1<<32, 1<<32, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		var err error
		hostile.Bounded(t, len(b), func() { err = open(t, b) })
		if err == nil {
			sameAgain(t, b)
		}
	})
}

// sameAgain writes the tensors of b to a new file, if the writer takes their names, and compares them with what is read
// of it.
func sameAgain(t *testing.T, b []byte) {
	h, err := parse(bytes.NewReader(b), "m", int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	sources := make([]tensor.Source, len(h.tensors))
	for i, x := range h.tensors {
		sources[i] = x.Source()
	}
	var out bytes.Buffer
	if _, err := Encode(&out, sources, nil); err != nil {
		return
	}
	again, err := parse(bytes.NewReader(out.Bytes()), "m", int64(out.Len()))
	if err != nil || len(again.tensors) != len(h.tensors) {
		t.Fatalf("what was written is read otherwise: %v", err)
	}
	set := stored.NewSet(again.tensors)
	for _, x := range h.tensors {
		y, ok := set.Tensor(x.Name)
		if !ok || y.DType != x.DType || !slices.Equal(y.Shape, x.Shape) || !bytes.Equal(payload(t, x), payload(t, y)) {
			t.Fatalf("%v was written, %v is read", x.Info, y.Info)
		}
	}
}

// payload reads the bytes of a tensor.
func payload(t *testing.T, x tensor.Stored) []byte {
	b, err := io.ReadAll(io.NewSectionReader(x, 0, x.Size))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
