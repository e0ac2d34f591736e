package corpus

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/internal/strictjson"
)

// ReadShards reads all .bin files of dir in lexical order as one sequence of little-endian u32 ids, cut into documents
// behind each eos. Ids must be below vocab. If dir holds EncodeCorpus's manifest.json, the files must be those it
// lists, with the contents it states. A document's hash is that of its ids' bytes, eos included unless it is missing
// at the end, where it is added.
func ReadShards(dir string, vocab int, eos int32) (*Tokens, []File, error) {
	names, err := shardFiles(dir)
	if err != nil {
		return nil, nil, err
	}
	t := &Tokens{EOS: eos}
	var files []File
	all := sha256.New()
	for _, name := range names {
		f, err := t.readShard(filepath.Join(dir, name), vocab, all)
		if err != nil {
			return nil, files, err
		}
		files = append(files, f)
	}
	if err := checkManifest(dir, files, hex.EncodeToString(all.Sum(nil))); err != nil {
		return nil, files, err
	}
	if len(t.IDs) == 0 {
		return nil, files, fault.In(fault.Invalid, dir, "the shards hold no token").WithID("E-SHARD-003")
	}
	if t.IDs[len(t.IDs)-1] != eos {
		t.IDs = append(t.IDs, eos)
	}
	t.findDocuments()
	return t, files, nil
}

// shardFiles lists the .bin files of dir.
func shardFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, readfile.Fault(dir, err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && filepath.Ext(e.Name()) == ".bin" {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return nil, fault.In(fault.NotFound, dir, "no .bin file in it").
			WithHint("apr tokenize encode-corpus makes them; give text to --data").WithID("E-SHARD-004")
	}
	return names, nil
}

// readShard appends the ids of one file, and hands its bytes to all.
func (t *Tokens) readShard(path string, vocab int, all io.Writer) (File, error) {
	f, size, err := readfile.Open(path)
	if err != nil {
		return File{}, err
	}
	defer f.Close()
	if size%4 != 0 {
		return File{}, fault.In(fault.Format, path, "the length %d is not a multiple of 4", size).
			WithHint("a shard is a sequence of little-endian u32").WithID("E-SHARD-001")
	}
	sum := sha256.New()
	buf := make([]byte, 256<<10)
	for at := int64(0); at < size; {
		part := buf[:min(int64(len(buf)), size-at)]
		if _, err := io.ReadFull(f, part); err != nil {
			return File{}, readfile.Fault(path, err)
		}
		sum.Write(part)
		if _, err := all.Write(part); err != nil {
			return File{}, err
		}
		for i := 0; i < len(part); i += 4 {
			id := binary.LittleEndian.Uint32(part[i:])
			if uint64(id) >= uint64(vocab) {
				return File{}, fault.In(fault.Invalid, path, "id %d is not below the vocabulary's %d", id, vocab).At("offset %d", at+int64(i)).
					WithHint("the shards were made with another tokenizer").WithID("E-SHARD-002")
			}
			t.IDs = append(t.IDs, int32(id))
		}
		at += int64(len(part))
	}
	return File{Path: path, Bytes: size, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// checkManifest compares the files read, all of whose bytes have the SHA-256 sum, with manifest.json, if there is one.
func checkManifest(dir string, files []File, sum string) error {
	path := filepath.Join(dir, manifestName)
	if _, err := os.Lstat(path); os.IsNotExist(err) {
		return nil
	}
	v, err := strictjson.ParseFile(path, 16<<20, strictjson.Options{})
	if err != nil {
		return err
	}
	f := strictjson.NewFields(v)
	shards := f.Value("shards")
	claims := shardClaims{f.StrOr("schema", shardSchema), f.IntOr("total_tokens", -1), f.StrOr("sha256", sum)}
	if err := f.Err(); err != nil {
		return strictjson.Fault(path, v.Source(), err)
	}
	i := 0
	for item := range shards.Items() {
		s := strictjson.NewFields(item)
		name, sum, tokens := s.Str("name"), s.Str("sha256"), s.IntOr("tokens", -1)
		if err := s.Err(); err != nil {
			return strictjson.Fault(path, v.Source(), err)
		}
		if i >= len(files) || filepath.Base(files[i].Path) != name || files[i].SHA256 != sum {
			return fault.In(fault.Invalid, path, "shard %d, %q, is missing or has changed since it was written", i+1, name).WithID("E-SHARD-005")
		}
		if n := files[i].Bytes / 4; tokens >= 0 && tokens != n {
			return fault.In(fault.Format, path, "shard %d, %q, has %d tokens, not %d", i+1, name, n, tokens).WithID("E-SHARD-014")
		}
		i++
	}
	if i != len(files) {
		return fault.In(fault.Invalid, path, "lists %d shards, the folder holds %d", i, len(files)).WithID("E-SHARD-005")
	}
	return claims.check(path, files, sum)
}

// shardClaims are what a manifest says of all shards together.
type shardClaims struct {
	schema string
	total  int64 // -1: nothing
	sha256 string
}

// check compares them with what was read.
func (c shardClaims) check(path string, files []File, sum string) error {
	bad := func(key, format string, args ...any) error {
		return fault.In(fault.Format, path, format, args...).At("key %q", key).WithHint("encode the text again: apr tokenize encode-corpus").WithID("E-SHARD-014")
	}
	total := int64(0)
	for _, f := range files {
		total += f.Bytes / 4
	}
	switch {
	case c.schema != shardSchema && c.schema != cacheSchema:
		return bad("schema", "is %q, not %q", c.schema, shardSchema)
	case c.total >= 0 && c.total != total:
		return bad("total_tokens", "is %d, and the shards have %d", c.total, total)
	case c.sha256 != sum:
		return bad("sha256", "is %s, and the shards have %s", c.sha256, sum)
	}
	return nil
}

// findDocuments cuts the ids behind each end-of-text id; the last id is one.
func (t *Tokens) findDocuments() {
	start := 0
	h := sha256.New()
	var b [4]byte
	for i, id := range t.IDs {
		binary.LittleEndian.PutUint32(b[:], uint32(id))
		h.Write(b[:])
		if id == t.EOS {
			d := Doc{End: int64(i + 1)}
			h.Sum(d.Hash[:0])
			t.Docs = append(t.Docs, d)
			h.Reset()
			start = i + 1
		}
	}
	if start != len(t.IDs) {
		panic("corpus: ids do not end in end-of-text")
	}
}
