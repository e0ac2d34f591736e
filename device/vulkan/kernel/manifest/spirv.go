package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/andybalholm/brotli"
)

// Instructions of SPIR-V that Exact looks at.
const (
	opTypeFirst, opTypeLast         = 19, 39
	opDecorate                      = 71
	opVariable                      = 59
	opConstantNull, opStore         = 46, 62
	opFAdd, opFSub, opFMul          = 129, 131, 133
	opFNegate                       = 127
	noContraction, aliased          = 42, 20
	workgroupClass                  = 4
	storageBufferClass, headerWords = 12, 5
)

// Exact returns SPIR-V in which additions, subtractions and products of floats are rounded one by one
// (NoContraction), so that a driver that would fuse them gives the same bits as one that would not, and in which
// storage buffers may be the same memory (Aliased). A fused multiply-add that the source asks for stays one. What
// compilers add to zero the shared memory of a group before it is used goes: the kernels write before they read, and
// some drivers make a store of each element of it.
func Exact(code []byte) ([]byte, error) {
	if len(code)%4 != 0 || len(code) < 4*headerWords {
		return nil, fmt.Errorf("%d bytes are no SPIR-V", len(code))
	}
	words := make([]uint32, len(code)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(code[4*i:])
	}
	var more, kept []uint32
	shared, null := map[uint32]bool{}, map[uint32]bool{}
	types := -1 // where the first type stands: decorations come before
	kept = append(kept, words[:headerWords]...)
	for at := headerWords; at < len(words); {
		n, op := int(words[at]>>16), words[at]&0xffff
		if n == 0 || at+n > len(words) {
			return nil, errors.New("an instruction ends outside the module")
		}
		if types < 0 && op >= opTypeFirst && op <= opTypeLast {
			types = len(kept)
		}
		switch op {
		case opFAdd, opFSub, opFMul, opFNegate:
			more = append(more, 3<<16|opDecorate, words[at+2], noContraction)
		case opVariable:
			if words[at+3] == storageBufferClass {
				more = append(more, 3<<16|opDecorate, words[at+2], aliased)
			}
			shared[words[at+2]] = words[at+3] == workgroupClass
		case opConstantNull:
			null[words[at+2]] = true
		}
		if op != opStore || !shared[words[at+1]] || !null[words[at+2]] {
			kept = append(kept, words[at:at+n]...)
		}
		at += n
	}
	if types < 0 {
		return nil, errors.New("a module has no types")
	}
	words = slices.Insert(kept, types, more...)
	out := make([]byte, 0, 4*len(words))
	for _, w := range words {
		out = binary.LittleEndian.AppendUint32(out, w)
	}
	return out, nil
}

// Pack returns modules, one after the other, as they are stored.
func Pack(modules [][]byte) ([]byte, error) {
	var packed bytes.Buffer
	z := brotli.NewWriterLevel(&packed, brotli.BestCompression)
	_, err := z.Write(planes(bytes.Join(modules, nil)))
	err = errors.Join(err, z.Close())
	return packed.Bytes(), err
}

// Unpack returns the modules that the manifest lists, by name.
func (m *Manifest) Unpack(packed []byte) (map[string][]byte, error) {
	all, err := io.ReadAll(brotli.NewReader(bytes.NewReader(packed)))
	if err != nil {
		return nil, err
	}
	all = words(all)
	modules := map[string][]byte{}
	for _, k := range m.Kernels {
		if len(all) < k.Bytes {
			return nil, fmt.Errorf("the file with the kernels ends inside %s", k.Name)
		}
		modules[k.Name], all = all[:k.Bytes:k.Bytes], all[k.Bytes:]
	}
	if len(all) > 0 {
		return nil, fmt.Errorf("the file with the kernels has %d bytes more than the manifest lists", len(all))
	}
	return modules, nil
}

// planes puts the lowest bytes of all words first, then the second ones, and so on, which compresses better.
func planes(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for plane := range 4 {
		for at := plane; at < len(b); at += 4 {
			out = append(out, b[at])
		}
	}
	return out
}

// words is the inverse of planes.
func words(b []byte) []byte {
	out, n := make([]byte, len(b)), len(b)/4
	for i, v := range b {
		if n > 0 && i < 4*n {
			out[i%n*4+i/n] = v
		}
	}
	return out
}
