package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"apr/arch"
	"apr/tokenizer"
)

// writeRaw: interim, until modelfile.
func writeRaw(path string, c arch.Config, tok *tokenizer.Tokenizer, params map[string][]float32) error {
	var list []arch.KV
	list = append(list, arch.GGUFMetadata(c)...)
	d := tok.Data()
	kinds := []int32{}
	for _, k := range d.TokenType {
		kinds = append(kinds, int32(k))
	}
	for id := len(d.Vocabulary); id < c.Vocab; id++ {
		d.Vocabulary, kinds = append(d.Vocabulary, fmt.Sprintf("[PAD%d]", id)), append(kinds, int32(tokenizer.Unused))
	}
	list = append(list, arch.KV{Key: "tokenizer.ggml.model", Value: d.Model})
	if d.PreType != "" {
		list = append(list, arch.KV{Key: "tokenizer.ggml.pre", Value: d.PreType})
	}
	list = append(list, arch.KV{Key: "tokenizer.ggml.tokens", Value: d.Vocabulary}, arch.KV{Key: "tokenizer.ggml.token_type", Value: kinds})
	if d.Merges != nil {
		list = append(list, arch.KV{Key: "tokenizer.ggml.merges", Value: d.Merges})
	}
	list = append(list, arch.GGUFTokens(c)...)
	list = append(list, arch.KV{Key: "tokenizer.ggml.add_bos_token", Value: d.AddBOS})
	for _, kv := range tok.GGUFSettings(c.Vocab) {
		list = append(list, arch.KV(kv))
	}
	type tens struct {
		name  string
		shape []int
		v     []float32
	}
	var ts []tens
	at := map[string]int{}
	for _, s := range arch.Slots(c) {
		i, ok := at[s.GGUF.Name]
		if !ok {
			n := 1
			for _, x := range s.GGUF.Shape {
				n *= x
			}
			i = len(ts)
			at[s.GGUF.Name] = i
			ts = append(ts, tens{s.GGUF.Name, s.GGUF.Shape, make([]float32, n)})
		}
		arch.Scatter(s, s.GGUF, params[s.Name], [][]float32{ts[i].v})
	}
	for _, t := range arch.GGUFTables(c) {
		ts = append(ts, tens{t.Name, []int{len(t.Values)}, t.Values})
	}
	var b bytes.Buffer
	u32 := func(x uint32) { _ = binary.Write(&b, binary.LittleEndian, x) }
	u64 := func(x uint64) { _ = binary.Write(&b, binary.LittleEndian, x) }
	str := func(s string) { u64(uint64(len(s))); b.WriteString(s) }
	b.WriteString("GGUF")
	u32(3)
	u64(uint64(len(ts)))
	u64(uint64(len(list)))
	for _, kv := range list {
		str(kv.Key)
		switch v := kv.Value.(type) {
		case bool:
			u32(7)
			b.WriteByte(map[bool]byte{true: 1}[v])
		case string:
			u32(8)
			str(v)
		case uint32:
			u32(4)
			u32(v)
		case float32:
			u32(6)
			u32(math.Float32bits(v))
		case []string:
			u32(9)
			u32(8)
			u64(uint64(len(v)))
			for _, s := range v {
				str(s)
			}
		case []int32:
			u32(9)
			u32(5)
			u64(uint64(len(v)))
			_ = binary.Write(&b, binary.LittleEndian, v)
		case []float32:
			u32(9)
			u32(6)
			u64(uint64(len(v)))
			_ = binary.Write(&b, binary.LittleEndian, v)
		case []bool:
			u32(9)
			u32(7)
			u64(uint64(len(v)))
			_ = binary.Write(&b, binary.LittleEndian, v)
		default:
			return fmt.Errorf("%s: %T", kv.Key, v)
		}
	}
	off := 0
	for _, t := range ts {
		str(t.name)
		u32(uint32(len(t.shape)))
		for i := range t.shape {
			u64(uint64(t.shape[len(t.shape)-1-i]))
		}
		u32(0)
		u64(uint64(off))
		off += (4*len(t.v) + 31) / 32 * 32
	}
	for b.Len()%32 != 0 {
		b.WriteByte(0)
	}
	for _, t := range ts {
		_ = binary.Write(&b, binary.LittleEndian, t.v)
		for b.Len()%32 != 0 {
			b.WriteByte(0)
		}
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

func toGGUF(_ context.Context, m random, folder, file string) error {
	_, c, err := m.config()
	if err != nil {
		return err
	}
	tok, err := tokenizer.Load(folder)
	if err != nil {
		return err
	}
	return writeRaw(file, c, tok, randomModel(c, tok, m.thin))
}
