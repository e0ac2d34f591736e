package aprfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"apr/internal/contracttest"
	"apr/internal/fault"
	"apr/internal/hostile"
	"apr/internal/near"
	"apr/tensor"
)

func put16(at int, v uint16) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint16(b[at:], v) }
}
func put32(at int, v uint32) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], v) }
}
func put64(at int, v uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], v) }
}

// change returns one() with a field changed.
func change(f func(*draft)) []byte {
	d := one()
	f(&d)
	return d.build()
}

func hdr(f func([]byte)) []byte { return change(func(d *draft) { d.header = f }) }
func meta(s string) []byte      { return change(func(d *draft) { d.meta = s }) }

// lz4Blob compresses the body of one() with its true size, then lets spoil change it.
func compressed(flag Flags, spoil func([]byte) []byte) []byte {
	d := one()
	d.header = put16(6, uint16(flag))
	d.body = func(body []byte) []byte {
		var out []byte
		if flag == ZSTD {
			e, _ := zstd.NewWriter(nil)
			out = e.EncodeAll(body, nil)
		} else {
			out = binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
			block := make([]byte, lz4.CompressBlockBound(len(body)))
			n, _ := lz4.CompressBlock(body, block, nil)
			out = append(out, block[:n]...)
		}
		if spoil != nil {
			out = spoil(out)
		}
		return out
	}
	return d.build()
}

func TestRefused(t *testing.T) {
	good := one().build()
	for _, c := range []struct {
		name string
		file []byte
		want string // after the path
	}{
		{"empty", nil, "offset 0: file of 0 bytes is too short for a header of 64 [E-APR-001]"},
		{"3 bytes", []byte("APR"), "offset 0: file of 3 bytes is too short for a header of 64 [E-APR-001]"},
		{"63 bytes", good[:63], "offset 0: file of 63 bytes is too short for a header of 64 [E-APR-001]"},
		{"no magic", make([]byte, 64), `offset 0: no .apr file: it begins with "\x00\x00\x00\x00" [E-APR-002]`},
		{"APRN", []byte("APRN1234"), "offset 0: this is a version 1 container of classical machine learning, not a language model [E-APR-002]"},
		{"APR1", []byte("APR1" + strings.Repeat("x", 60)), "offset 0: this is the older APR1 container, which is not supported [E-APR-002]"},
		{"APR2 of another kind", []byte("APR2" + strings.Repeat("x", 60)), "offset 40: header checksum is 78787878, expected 132a5f9a [E-APR-004]"},
		{"APR2 version", change(func(d *draft) { d.header = func(b []byte) { copy(b, "APR2\x01") } }), "offset 4: version 1.0 is not supported, only 2.0 [E-APR-003]"},
		{"GGUF", []byte("GGUF\x03\x00\x00\x00"), "offset 0: this is a GGUF file, not .apr [E-APR-002]"},
		{"zip", []byte("PK\x03\x04"), "offset 0: this is a zip archive (PyTorch?), which is never read [E-APR-002]"},
		{"pickle 2", []byte("\x80\x02}q"), "offset 0: this is a pickle, which is never read [E-APR-002]"},
		{"pickle 5", []byte("\x80\x05}q"), "offset 0: this is a pickle, which is never read [E-APR-002]"},
		{"safetensors", []byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"), "offset 0: this is a safetensors file, not .apr [E-APR-002]"},
		{"version 1", hdr(func(b []byte) { b[4] = 1 }), "offset 4: version 1 is an older dump, only version 2 is supported [E-APR-003]"},
		{"version 3", hdr(func(b []byte) { b[4] = 3 }), "offset 4: version 3 is an older dump, only version 2 is supported [E-APR-003]"},
		{"header checksum 0", change(func(d *draft) { d.crc = put32(40, 0) }), "offset 40: header checksum is 00000000, expected a6ddbe27 [E-APR-004]"},
		{"header changed", change(func(d *draft) { d.crc = put32(8, 2) }), "offset 40: header checksum is a6ddbe27, expected 1c88ba30 [E-APR-004]"},
		{"reserved byte changed", change(func(d *draft) { d.crc = func(b []byte) { b[63] = 1 } }), "offset 40: header checksum is a6ddbe27, expected d1da8eb1 [E-APR-004]"},
		{"unknown flags", hdr(put16(6, 0x1400)), "offset 6: unknown flags 0x1000 [E-APR-005]"},
		{"encrypted", hdr(put16(6, uint16(Encrypted))), "offset 6: encrypted files are not supported [E-APR-006]"},
		{"column-major", hdr(put16(6, uint16(ColumnMajor))), "offset 6: column-major files are not supported [E-APR-007]"},

		{"metadata in the header", hdr(put64(12, 60)), "offset 12: metadata at 60 overlaps the header [E-APR-008]"},
		{"metadata wraps", hdr(put64(12, 1<<64-1)), "offset 12: metadata at 18446744073709551615+2 overflows 64 bits [E-APR-008]"},
		{"metadata over the index", hdr(put32(20, 65)), "offset 24: metadata ends at 129, after the start of the index at 128 [E-APR-008]"},
		{"index after the data", hdr(put64(24, 193)), "offset 24: index starts at 193, after the data at 192 [E-APR-008]"},
		{"data past the end", hdr(put64(32, 261)), "offset 32: data starts at 261, past the end of the file at 260 [E-APR-009]"},
		{"data wraps", hdr(put64(32, 1<<64-1)), "offset 32: data starts at 18446744073709551615, past the end of the file at 260 [E-APR-009]"},
		{"metadata over the limit", meta(`"` + strings.Repeat("x", 16<<20) + `"`), "offset 20: metadata of 16777218 bytes is over the limit of 16777216 [E-APR-010]"},

		{"metadata empty", meta(""), "metadata, offset 64: expected a value, found end of text [E-APR-011]"},
		{"metadata cut", meta(`{"a":`), "metadata, offset 69: expected a value, found end of text [E-APR-011]"},
		{"metadata an array", meta(`[]`), "metadata, offset 64: expected an object, found an array [E-APR-017]"},
		{"metadata two values", meta(`{}{}`), "metadata, offset 66: '{' after the value [E-APR-016]"},
		{"metadata padded with NUL", meta("{}\x00"), `metadata, offset 66: '\x00' after the value [E-APR-016]`},
		{"metadata not UTF-8", meta("{\"a\":\"\xff\"}"), "metadata, offset 70: byte 0xff is not UTF-8 [E-APR-012]"},
		{"metadata byte order mark", meta("\xef\xbb\xbf{}"), "metadata, offset 64: byte order mark [E-APR-012]"},
		{"metadata unpaired surrogate", meta(`{"a":"\ud800"}`), "metadata, offset 70: unpaired surrogate [E-APR-012]"},
		{"metadata too deep", meta(`{"a":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + "}"), "metadata, offset 100: nested deeper than 32 [E-APR-014]"},
		{"alias conflict", meta(`{"hidden_size":64,"n_embd":65}`), `metadata key "hidden_size": differs from key "n_embd", which means the same [E-APR-040]`},
		{"alias conflict without the canonical key", meta(`{"n_layers":1,"n_layer":2}`), `metadata key "n_layers": differs from key "n_layer", which means the same [E-APR-040]`},
		{"model_config not JSON", meta(`{"model_config":"{"}`), `metadata key "model_config": text is not a JSON object: offset 1: expected a key, found end of text [E-APR-011]`},
		{"model_config a number", meta(`{"model_config":1}`), `metadata key "model_config": expected a string, found 1 [E-APR-017]`},

		{"too many tensors", hdr(put32(8, 100_001)), "offset 8: 100001 tensors are over the limit of 100000 [E-APR-020]"},
		{"count beyond the index", hdr(put32(8, 4)), "offset 8: index of 64 bytes is too short for 4 tensors [E-APR-022]"},
		{"count larger than the index", hdr(put32(8, 2)), "offset 157: tensor name of 0 bytes, expected 1 to 256 [E-APR-021]"},
		{"count smaller than the index", hdr(put32(8, 0)), "offset 128: index holds more than the tensors the header counts [E-APR-023]"},
		{"index cut", change(func(d *draft) {
			d.index = bytes.Repeat(line{strings.Repeat("n", 100), 0, []uint64{2}, 0, 8}.bytes(), 1)[:60]
			d.lines = nil
			d.header = put32(8, 1)
		}), "offset 192: index is cut: it holds fewer tensors than the header counts [E-APR-022]"},
		{"JSON index", change(func(d *draft) { d.lines = nil; d.index = []byte(`[{"name":"w"}]`); d.header = put32(8, 1) }),
			"offset 128: tensor name of 31579 bytes, expected 1 to 256 [E-APR-021]"},
		{"name of 257 bytes", with(line{strings.Repeat("n", 257), 0, nil, 0, 4}).build(), "offset 128: tensor name of 257 bytes, expected 1 to 256 [E-APR-021]"},
		{"name not UTF-8", with(line{"a\xff", 0, nil, 0, 4}).build(), `tensor "a\xff", offset 128: tensor name is not UTF-8 [E-APR-021]`},
		{"name with control character", with(line{"a\x1b[2J", 0, nil, 0, 4}).build(), `tensor "a\x1b[2J", offset 128: tensor name has a control character [E-APR-021]`},
		{"name climbs", with(line{"../a", 0, nil, 0, 4}).build(), `tensor "../a", offset 128: tensor name has a ".." component [E-APR-021]`},
		{"name absolute", with(line{"/a", 0, nil, 0, 4}).build(), `tensor "/a", offset 128: tensor name is an absolute path [E-APR-021]`},
		{"unsorted", with(line{"b", 0, nil, 0, 4}, line{"a", 0, nil, 64, 4}).build(), `tensor "a", offset 149: name is out of order, after "b" [E-APR-024]`},
		{"duplicate", with(line{"a", 0, nil, 0, 4}, line{"a", 0, nil, 64, 4}).build(), `tensor "a", offset 149: name occurs twice [E-APR-025]`},
		{"two names of one tensor", with(line{"model.norm.weight", 0, nil, 0, 4}, line{"output_norm.weight", 0, nil, 64, 4}).build(),
			`tensor "output_norm.weight": means the same tensor as "model.norm.weight" [E-APR-025]`},
		{"rank 9", with(line{"w", 0, []uint64{1, 1, 1, 1, 1, 1, 1, 1, 1}, 0, 4}).build(), `tensor "w", offset 128: 9 dimensions are over the limit of 8 [E-APR-026]`},
		{"product overflows", with(line{"w", 0, []uint64{1 << 32, 1 << 32}, 0, 0}).build(), `tensor "w", offset 128: the product of shape [4294967296 4294967296] overflows [E-APR-027]`},
		{"dimension over int64", with(line{"w", 0, []uint64{1 << 63}, 0, 0}).build(), `tensor "w", offset 128: dimension 9223372036854775808 is over 9223372036854775807 [E-APR-027]`},
		{"size wraps to the payload", with(line{"w", 0, []uint64{1<<62 + 2}, 0, 8}).build(), `tensor "w", offset 128: size 8 fits no meaning of code 0 with shape [4611686018427387906] [E-APR-030]`},
		{"code unknown", with(line{"w", 10, []uint64{2}, 0, 8}).build(), `tensor "w", offset 128: type code is unknown: 10 [E-APR-028]`},
		{"code 255", with(line{"w", 255, []uint64{2}, 0, 8}).build(), `tensor "w", offset 128: type code is unknown: 255 [E-APR-028]`},
		{"Q4_1", with(line{"w", 3, []uint64{64}, 0, 40}).build(), `tensor "w", offset 128: type Q4_1 is not supported [E-APR-029]`},
		{"Q5_1", with(line{"w", 7, []uint64{64}, 0, 48}).build(), `tensor "w", offset 128: type Q5_1 is not supported [E-APR-029]`},
		{"wrong size", with(line{"w", 0, []uint64{2}, 0, 7}).build(), `tensor "w", offset 128: size 7 fits no meaning of code 0 with shape [2] [E-APR-030]`},
		{"Q8_0 with odd rows", with(line{"w", 8, []uint64{2, 16}, 0, 34}).build(), `tensor "w", offset 128: size 34 fits no meaning of code 8 with shape [2 16] [E-APR-030]`},
		{"no elements with payload", with(line{"w", 0, []uint64{0}, 0, 4}).build(), `tensor "w", offset 128: size 4 of a tensor without elements fits no meaning, expected 0 [E-APR-030]`},
		{"elements without payload", with(line{"w", 0, []uint64{2}, 0, 0}).build(), `tensor "w", offset 128: size 0 fits no meaning of code 0 with shape [2] [E-APR-030]`},
		{"ambiguous rows", with(line{"w", 12, []uint64{2, 200}, 0, 288}).build(),
			`tensor "w", offset 128: size 288 is ambiguous: rows of 200 elements may be padded to blocks or not [E-APR-031]`},
		{"range wraps", with(line{"w", 0, []uint64{2}, 1<<64 - 8, 8}).build(), `tensor "w", offset 128: payload at 18446744073709551608+8 overflows 64 bits [E-APR-032]`},
		{"range past the end", with(line{"w", 0, []uint64{2}, 64, 8}).build()[:192], `tensor "w", offset 128: payload at 64+8 passes the end of the file, 0 bytes into the data [E-APR-032]`},
		{"huge range", with(line{"w", 0, []uint64{1 << 40}, 0, 1 << 42}).build(), `tensor "w", offset 128: payload at 0+4398046511104 passes the end of the file, 4 bytes into the data [E-APR-032]`},
		{"in the footer", draft{meta: "{}", lines: []line{{"w", 5, []uint64{8}, 0, 64}}, data: make([]byte, 62)}.build(),
			"offset 258: file of 258 bytes is cut: its data end at 256, its checksum at 260 [E-APR-034]"},
		{"overlap", with(line{"a", 0, []uint64{32}, 0, 128}, line{"b", 0, []uint64{2}, 64, 8}).build(), `tensor "b": payload at 64+8 overlaps tensor "a" at 0+128 [E-APR-033]`},
		{"same start, another size", with(line{"a", 0, []uint64{1}, 0, 4}, line{"b", 0, []uint64{2}, 0, 8}).build(), `tensor "b": payload at 0+8 overlaps tensor "a" at 0+4 [E-APR-033]`},
		{"file too long", change(func(d *draft) { d.tail = "x" }), "offset 256: file has 261 bytes, but its data end at 256 and its checksum at 260 [E-APR-034]"},
		{"footer cut", good[:258], "offset 258: file of 258 bytes is cut: its data end at 256, its checksum at 260 [E-APR-034]"},
		{"own file without footer", change(func(d *draft) { d.meta = `{"writer":"apr/1"}`; d.noFooter = true }), "offset 256: checksum at the end is missing; the file is cut [E-APR-035]"},
		{"own file cut after the last payload", change(func(d *draft) { d.meta = `{"writer":"apr/1"}` })[:200], "offset 200: checksum at the end is missing; the file is cut [E-APR-035]"},
		{"sharded without sharding", hdr(put16(6, uint16(Sharded))), "metadata: flag SHARDED is set, but the metadata has no sharding [E-APR-042]"},

		{"both compressions", compressed(LZ4|ZSTD, nil), "offset 64: metadata is no JSON object, and both compression flags are set [E-APR-037]"},
		{"LZ4 of nothing", change(func(d *draft) {
			d.header = put16(6, uint16(LZ4))
			d.body = func([]byte) []byte { return []byte{1} }
		}), "offset 64: metadata is no JSON object, and 1 bytes are no LZ4 block [E-APR-037]"},
		{"LZ4 claims too much", compressed(LZ4, func(b []byte) []byte { put32(0, 1<<31)(b); return b }), "offset 64: claimed size 2147483648 is over the limit of 47000 bytes [E-APR-038]"},
		{"LZ4 claims more", compressed(LZ4, func(b []byte) []byte { put32(0, 9999)(b); return b }), "offset 64: LZ4 block holds 196 bytes, but 9999 are claimed [E-APR-037]"},
		{"LZ4 cut", compressed(LZ4, func(b []byte) []byte { return b[:len(b)-6] }), "offset 64: metadata is no JSON object, and the rest is no LZ4 block [E-APR-037]"},
		{"no LZ4", change(func(d *draft) { d.meta = "{"; d.header = put16(6, uint16(LZ4)) }), "offset 64: metadata is no JSON object, and the rest is no LZ4 block [E-APR-037]"},
		{"no ZSTD", change(func(d *draft) { d.meta = "{"; d.header = put16(6, uint16(ZSTD)) }),
			"offset 64: metadata is no JSON object, and the rest is no ZSTD data: invalid input: magic number mismatch [E-APR-037]"},
		{"ZSTD bomb", compressed(ZSTD, func([]byte) []byte {
			e, _ := zstd.NewWriter(nil)
			return e.EncodeAll(make([]byte, 8<<20), nil)
		}), "offset 64: decompressed data are over the limit of 899000 bytes [E-APR-038]"},
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
	for _, c := range []struct {
		name string
		file []byte
		want string // name dtype shape size layout; …
		warn string
	}{
		{"no tensors", draft{meta: "{}"}.build(), "", ""},
		{"no tensors, no footer", draft{meta: "{}", noFooter: true}.build(), "", "the file has no checksum at the end"},
		{"scalar", with(line{"w", 0, nil, 0, 4}).build(), "w f32 [] 4 plain", ""},
		{"zero elements", with(line{"w", 12, []uint64{0, 256}, 0, 0}).build(), "w q4_k [0 256] 0 plain", ""},
		{"non-ASCII name", with(line{"größe", 30, []uint64{3}, 0, 6}).build(), "größe bf16 [3] 6 plain", ""},
		{"data order unlike index order", with(line{"a", 0, []uint64{1}, 64, 4}, line{"b", 0, []uint64{1}, 0, 4}).build(), "a f32 [1] 4 plain; b f32 [1] 4 plain", ""},
		{"identical ranges", with(line{"a", 0, []uint64{1}, 0, 4}, line{"b", 0, []uint64{1}, 0, 4}).build(), "a f32 [1] 4 plain; b f32 [1] 4 plain", ""},
		{"unaligned offset", with(line{"a", 0, []uint64{1}, 0, 4}, line{"b", 0, []uint64{1}, 4, 4}).build(), "a f32 [1] 4 plain; b f32 [1] 4 plain", ""},
		{"footer missing", change(func(d *draft) { d.noFooter = true }), "w f32 [2] 8 plain", "the file has no checksum at the end"},
		{"ends with the payload", change(func(d *draft) { d.noFooter = true })[:200], "w f32 [2] 8 plain", "the file has no checksum at the end"},
		{"flags 0", hdr(put16(6, 0)), "w f32 [2] 8 plain", ""},
		{"flags of hints", hdr(put16(6, 0x3e0)), "w f32 [2] 8 plain", ""},
		{"LZ4 flag on plain data", hdr(put16(6, 0x401)), "w f32 [2] 8 plain", ""},
		{"signed", hdr(put16(6, uint16(Signed))), "w f32 [2] 8 plain", "the signature is not checked"},
		{"LZ4", compressed(LZ4, nil), "w f32 [2] 8 plain", "the file is compressed; its content is held in memory"},
		{"ZSTD", compressed(ZSTD, nil), "w f32 [2] 8 plain", "the file is compressed; its content is held in memory"},
		{"APR2", hdr(func(b []byte) { copy(b, "APR2") }), "w f32 [2] 8 plain", ""},
		{"minor version", hdr(func(b []byte) { b[5] = 1 }), "w f32 [2] 8 plain", "version 2.1 is newer than 2.0"},
		{"reserved bytes", hdr(func(b []byte) { b[50] = 1 }), "w f32 [2] 8 plain", ""},
		{"repeated key", meta(`{"name":"a","name":"b"}`), "w f32 [2] 8 plain", `metadata key "name" occurs again at offset 12 of the metadata; the last value counts`},
		{"equal aliases", meta(`{"hidden_size":64,"n_embd":64,"eps":1e-6,"norm_eps":0.000001,"d_model":null}`), "w f32 [2] 8 plain", ""},
		{"GGUF names", with(line{"blk.0.attn_q.weight", 0, []uint64{1}, 0, 4}, line{"token_embd.weight", 0, []uint64{1}, 64, 4}).build(),
			"model.embed_tokens.weight f32 [1] 4 plain; model.layers.0.self_attn.q_proj.weight f32 [1] 4 plain", ""},
		{"optimiser state", with(line{"__training__.m", 0, []uint64{1}, 0, 4}, line{"w", 0, []uint64{1}, 64, 4}).build(), "w f32 [1] 4 plain", ""},
		{"empty head", with(line{"lm_head.weight", 0, []uint64{5, 2}, 0, 0}, line{"w", 0, []uint64{1}, 0, 4}).build(), "w f32 [1] 4 plain", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := mustOpen(t, save(t, c.file))
			if got := describe(f); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if got := strings.Join(f.Warnings(), "; "); got != c.warn {
				t.Errorf("warnings %q, want %q", got, c.warn)
			}
			readAll(t, f)
			if err := f.Verify(); err != nil {
				t.Error(err)
			}
			if errs := f.Padding(); len(errs) > 0 {
				t.Error(errs)
			}
		})
	}
}

func describe(f *File) string {
	var list []string
	for _, x := range f.Tensors() {
		e, _ := f.Entry(x.Name)
		list = append(list, fmt.Sprintf("%s %s %v %d %s", x.Name, x.DType, x.Shape, x.Size, e.Layout))
	}
	return strings.Join(list, "; ")
}

// TestTypes holds every meaning of every code, and the choice by size.
func TestTypes(t *testing.T) {
	for _, c := range []struct {
		code byte
		dims []uint64
		size uint64
		want string
	}{
		{0, []uint64{3}, 12, "f32 plain"}, {1, []uint64{3}, 6, "f16 plain"}, {30, []uint64{3}, 6, "bf16 plain"},
		{2, []uint64{2, 32}, 36, "q4_0 plain"}, {2, []uint64{2, 24}, 36, "q4_0 flat"}, {2, []uint64{24}, 18, "q4_0 plain"},
		{3, []uint64{5}, 40, "f64 plain"}, {3, []uint64{32}, 256, "f64 plain"},
		{4, []uint64{3}, 12, "i32 plain"}, {5, []uint64{3}, 24, "i64 plain"},
		{6, []uint64{22}, 22, "i8 plain"}, {6, []uint64{32}, 22, "q5_0 plain"}, {6, []uint64{2, 32}, 44, "q5_0 plain"},
		{7, []uint64{24}, 24, "u8 plain"},
		{8, []uint64{2, 32}, 36, "aprq4 plain"}, {8, []uint64{3, 5}, 18, "aprq4 flat"}, {8, []uint64{2, 32}, 68, "q8_0 plain"},
		{9, []uint64{2, 3}, 10, "aprq8 plain"}, {129, []uint64{2, 3}, 10, "aprq8 plain"}, {128, []uint64{33}, 36, "aprq4 plain"},
		{12, []uint64{2, 256}, 288, "q4_k plain"}, {13, []uint64{2, 256}, 352, "q5_k plain"}, {14, []uint64{2, 256}, 420, "q6_k plain"},
		{12, []uint64{200}, 144, "q4_k plain"},                                                                        // one row
		{12, []uint64{4, 128}, 4 * 144, "q4_k row-padded"},                                                            // r·p = 512
		{12, []uint64{4, 128}, 2 * 144, "q4_k flat"},                                                                  //
		{12, []uint64{2, 128}, 2 * 144, "q4_k row-padded"},                                                            // r·p = 256: sizes differ by one block
		{12, []uint64{2, 128}, 144, "q4_k flat"},                                                                      //
		{14, []uint64{896, 896}, 896 * 4 * 210, "q6_k row-padded"},                                                    //
		{14, []uint64{896, 896}, 3136 * 210, "q6_k flat"},                                                             //
		{12, []uint64{2, 129}, 2 * 144, "size 288 is ambiguous: rows of 129 elements may be padded to blocks or not"}, // r·p = 254
		{12, []uint64{2, 129}, 144, "size 144 fits no meaning of code 12 with shape [2 129]"},
		{13, []uint64{1 << 40, 1 << 22}, 0, "size 0 fits no meaning of code 13 with shape [1099511627776 4194304]"},
	} {
		d := with(line{"w", c.code, c.dims, 0, c.size})
		f, err := Open(save(t, d.build()))
		got := ""
		if err != nil {
			got = err.(*fault.Error).Msg
		} else {
			e, _ := f.Entry("w")
			got = e.DType.String() + " " + e.Layout.String()
			f.Close()
		}
		if got != c.want {
			t.Errorf("code %d, %v, %d bytes: %s, want %s", c.code, c.dims, c.size, got, c.want)
		}
	}
}

func TestVerify(t *testing.T) {
	good := one().build()
	for _, at := range []int{64, 150, 193, 255, 256, 259} { // metadata is "{}", so byte 66 is padding
		b := bytes.Clone(good)
		b[at] ^= 1
		f, err := Open(save(t, b))
		if err != nil {
			continue // found already
		}
		if err := f.Verify(); fault.KindOf(err) != fault.Format || !strings.Contains(err.Error(), "[E-APR-036]") {
			t.Errorf("byte %d: %v", at, err)
		}
		f.Close()
	}
}

func TestPaddingAndDeviations(t *testing.T) {
	for _, c := range []struct {
		name                string
		file                []byte
		padding, deviations string // DIR stands for the path
	}{
		{"good", one().build(), "[]", "[]"},
		{"after the metadata", change(func(d *draft) { d.body = func(b []byte) []byte { b[2] = 1; return b } }), "[P: offset 66: padding after the metadata is not zero [E-APR-051]]", "[]"},
		{"after the payload", change(func(d *draft) { d.data[9] = 1 }), `[P: offset 201: padding after tensor "w" is not zero [E-APR-051]]`, "[]"},
		{"hole", with(line{"a", 0, nil, 0, 4}, line{"b", 0, nil, 128, 4}).build(), `[P: offset 196: hole of 124 bytes after tensor "a" [E-APR-050]]`, "[]"},
		{"hole at the start", with(line{"b", 0, nil, 64, 4}).build(), `[P: offset 192: hole of 64 bytes before the first payload [E-APR-050]]`, "[]"},
		{"unaligned", with(line{"a", 0, nil, 0, 4}, line{"b", 0, nil, 4, 4}).build(), "[]", `[P: tensor "b" at 4, not a multiple of 64]`},
		{"reserved", hdr(func(b []byte) { b[50] = 1 }), "[]", "[P: reserved bytes of the header are not zero]"},
		{"no footer", change(func(d *draft) { d.noFooter = true }), "[]", "[P: checksum at the end is missing]"},
		{"GGUF name", with(line{"output.weight", 0, nil, 0, 4}).build(), "[]", `[P: tensor "output.weight" has the GGUF name of "lm_head.weight"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.padding != "[]" {
				contracttest.Cases(t, 1)
			}
			path := save(t, c.file)
			f := mustOpen(t, path)
			if got := strings.ReplaceAll(fmt.Sprint(f.Padding()), path, "P"); got != c.padding {
				t.Errorf("padding %s, want %s", got, c.padding)
			}
			if got := strings.ReplaceAll(fmt.Sprint(f.Deviations()), path, "P"); got != c.deviations {
				t.Errorf("deviations %s, want %s", got, c.deviations)
			}
		})
	}
}

// TestHostileCost holds the price of refusing a bad file: a second, and 64 MiB plus four times its size.
func TestHostileCost(t *testing.T) {
	random := make([]byte, 4<<20)
	for i := range random {
		random[i] = byte(i * i >> 7)
	}
	for name, file := range map[string][]byte{
		"many repeated keys": meta("{" + strings.Repeat(`"a":1,`, 2<<20) + `"b":[}`),
		"dense metadata":     meta("[" + strings.Repeat("1,", 8<<20-2) + "1]"),
		"claimed count":      hdr(put32(8, 100_000)),
		"claimed index":      hdr(func(b []byte) { put32(8, 100_000)(b); put64(32, 1<<62)(b) }),
		"LZ4 claim":          change(func(d *draft) { d.meta = "{" + string(random); d.header = put16(6, uint16(LZ4)) }),
		"LZ4 run": compressed(LZ4, func([]byte) []byte {
			b := append(binary.LittleEndian.AppendUint32(nil, 1<<31-1), 0x1f, 'x', 1, 0)
			b = append(b, bytes.Repeat([]byte{255}, 4<<20)...)
			b = append(b, 0, 0x10, 'x') // 1 literal, a match of 15+4+255·2²²+0, 1 literal
			put32(0, 1+19+255*4<<20+1)(b)
			return b
		}),
		"ZSTD bomb": compressed(ZSTD, func([]byte) []byte {
			e, _ := zstd.NewWriter(nil)
			return e.EncodeAll(make([]byte, 512<<20), nil)
		}),
	} {
		path := save(t, file)
		runtime.GC()
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
		t.Logf("%s: %d bytes, %d KiB allocated, %v: %.120s", name, len(file), got>>10, took, strings.TrimPrefix(fmt.Sprint(err), path))
		if got > 64<<20+4*uint64(len(file)) || took > time.Second {
			t.Errorf("%s: %d bytes allocated, %v", name, got, took)
		}
	}
}

// small is a file with every part: metadata, a tied head, an empty tensor, blocks, a scalar.
func small() []byte {
	return draft{
		meta: `{"tied_embeddings":true,"hidden_size":2,"tokenizer.vocabulary":["a","b"],"tokenizer.merges":["a b"],"writer":"x"}`,
		lines: []line{{"e", 0, []uint64{0}, 0, 0}, {"lm_head.weight", 1, []uint64{1, 2}, 0, 4}, {"model.embed_tokens.weight", 1, []uint64{1, 2}, 0, 4},
			{"q", 8, []uint64{32}, 64, 34}, {"s", 30, nil, 128, 2}},
		data: make([]byte, 192),
	}.build()
}

// TestEveryPrefixAndFlip opens every prefix and every single-byte change of a small file: an error or a readable file.
func TestEveryPrefixAndFlip(t *testing.T) {
	good := small()
	try := func(b []byte) error {
		f, err := openBytes(b)
		if err != nil {
			if fault.KindOf(err) != fault.Format {
				t.Errorf("no fault of kind Format: %v", err)
			}
			return err
		}
		return checkAll(t, f)
	}
	if err := try(good); err != nil {
		t.Fatal(err)
	}
	contracttest.Cases(t, hostile.EachDamage(t, good, func(name string, b []byte) {
		if try(b) != nil {
			return
		}
		if len(b) < len(good) || !bytes.Equal(b[:headerSize], good[:headerSize]) {
			t.Errorf("%s accepted", name)
		}
	}))
}

// FuzzParse reads any bytes as a file (with the header checksum repaired: behind it is what matters): a fault, or
// tensors that can be read and checks that do not crash.
func FuzzParse(f *testing.F) {
	f.Add(small())
	f.Add(one().build())
	f.Add(compressed(LZ4, nil))
	f.Add(compressed(ZSTD, nil))
	f.Add(with(line{"w", 12, []uint64{4, 128}, 0, 576}, line{"x", 8, []uint64{64}, 576, 68}).build())
	f.Add(meta(`{"model_config":"{\"n_embd\":1}","sharding":{"shard_count":1,"shard_index":0}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= headerSize {
			b = bytes.Clone(b)
			binary.LittleEndian.PutUint32(b[40:], headerCRC(b))
		}
		var m *File
		var err error
		hostile.Bounded(t, len(b), func() {
			if m, err = openBytes(b); err == nil {
				err = checkAll(t, m)
			}
		})
		if err != nil && fault.KindOf(err) != fault.Format {
			t.Fatalf("no fault of kind Format: %v", err)
		}
		if err == nil {
			sameAgain(t, m)
		}
	})
}

// sameAgain writes the tensors of m to a new file, if the writer takes their types, and compares them with what is read
// of it.
func sameAgain(t *testing.T, m *File) {
	var sources []tensor.Source
	for _, x := range m.Tensors() {
		sources = append(sources, x.Source())
	}
	var b bytes.Buffer
	if _, err := Encode(&b, sources, Options{}); err != nil {
		return
	}
	again, err := openBytes(b.Bytes())
	if err != nil {
		t.Fatalf("what was written is refused: %v", err)
	}
	if err := again.Verify(); err != nil {
		t.Fatal(err)
	}
	for _, x := range m.Tensors() {
		y, ok := again.Tensor(x.Name)
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

// openBytes opens b as a single file.
func openBytes(b []byte) (*File, error) {
	p := &part{path: "m.apr", file: bytes.NewReader(b), size: int64(len(b))}
	if err := p.open(); err != nil {
		return nil, err
	}
	f := &File{path: "m.apr", parts: []*part{p}}
	return f, f.merge()
}
