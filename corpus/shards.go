package corpus

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"apr/internal/atomicfile"
	"apr/internal/disk"
	"apr/internal/fault"
	"apr/internal/keep"
	"apr/internal/readfile"
)

// EOSPolicy says where EncodeCorpus puts the end-of-text id.
type EOSPolicy string

// The policies.
const (
	EOSBetween EOSPolicy = "between" // between documents, not behind the last
	EOSNone    EOSPolicy = "none"    // nowhere
)

// DefaultShardTokens is the size of a shard unless another is asked for: 40 MB.
const DefaultShardTokens = 10_000_000

// shardName matches the files that EncodeCorpus writes, besides the manifest.
var shardName = regexp.MustCompile(`^shard-[0-9]{5,}\.bin$`)

// shardSchema is what a manifest says of its form, and cacheSchema that of a cache's entry, which is a folder of shards too.
const (
	shardSchema = "apr.token-shards/1"
	cacheSchema = "apr.token-cache/1"
)

// manifestName is written last, so that a folder with it is complete.
const manifestName = "manifest.json"

// ShardOptions say how EncodeCorpus writes.
type ShardOptions struct {
	Encode      EncodeOptions
	ShardTokens int64     // ids a shard, the last holding what remains; 0: DefaultShardTokens
	EOSPolicy   EOSPolicy // "": EOSBetween
	Tokenizer   string    // tokenizer.IDsSHA256 of the encoder's, for the manifest; "": not known
	Force       bool      // replace the shards and manifest already there
	ForRecords  []string  // see Report.Idle
}

// Shard is one file of ids.
type Shard struct {
	Name   string `json:"name"`
	Tokens int64  `json:"tokens"`
	SHA256 string `json:"sha256"`
}

// ShardReport is what EncodeCorpus wrote, and its manifest.json.
type ShardReport struct {
	Schema      string    `json:"schema"`
	Shards      []Shard   `json:"shards"`
	TotalTokens int64     `json:"total_tokens"`
	SHA256      string    `json:"sha256"`                     // of all shards' bytes, one after the other
	Tokenizer   string    `json:"tokenizer_sha256,omitempty"` // see tokenizer.IDsSHA256
	Vocab       int       `json:"vocab_size"`
	EOS         int32     `json:"eos"`
	EOSPolicy   EOSPolicy `json:"eos_policy"`
	Source      *Report   `json:"source"`
}

// EncodeCorpus encodes the documents of paths in parallel, in data order, into dir/shard-00000.bin and so on, each a
// sequence of little-endian u32, and dir/manifest.json. Shards cut the sequence anywhere. Conversations are written
// whole: shards have no mask. The bytes depend on the data, the encoder and the options only.
func EncodeCorpus(ctx context.Context, paths []string, dir string, enc Encoder, opt ShardOptions) (*ShardReport, error) {
	if err := checkShardOptions(&opt); err != nil {
		return nil, err
	}
	if err := keep.Inputs(dir, paths...); err != nil {
		return nil, err
	}
	old, err := prepareFolder(dir, opt.Force)
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(dir, ".shards"+atomicfile.TempMark)
	if err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be written").Because(err).WithID("E-SHARD-009")
	}
	done := false
	defer func() {
		if left, _ := os.ReadDir(filepath.Join(tmp, asideName)); done || len(left) == 0 { // else what could not be put back
			os.RemoveAll(tmp)
		}
	}()
	opt.Encode.Turns = AllTurns
	w := &shardWriter{dir: tmp, create: atomicfile.Create, limit: opt.ShardTokens, all: sha256.New()}
	defer w.abort()
	first := true
	source, err := encodeAll(ctx, paths, enc, opt.Encode, func(e *encoded) error {
		if !first && opt.EOSPolicy == EOSBetween {
			if err := w.write([]int32{opt.Encode.EOS}); err != nil {
				return err
			}
		}
		first = false
		return w.write(e.ids)
	})
	rep := &ShardReport{Schema: shardSchema, Tokenizer: opt.Tokenizer, Vocab: opt.Encode.Vocab, EOS: opt.Encode.EOS, EOSPolicy: opt.EOSPolicy, Source: source}
	if err == nil {
		err = source.Idle(nil, opt.ForRecords)
	}
	if err != nil {
		return rep, err
	}
	if err := w.finish(); err != nil {
		return rep, err
	}
	if w.total == 0 {
		return rep, fault.In(fault.Invalid, strings.Join(paths, ", "), "the documents hold no token").WithID("E-SHARD-006")
	}
	rep.Shards, rep.TotalTokens, rep.SHA256 = w.shards, w.total, hex.EncodeToString(w.all.Sum(nil))
	text, err := json.MarshalIndent(rep, "", "  ")
	if err != nil {
		panic("corpus: manifest: " + err.Error())
	}
	if err := atomicfile.WriteFile(filepath.Join(tmp, manifestName), append(text, '\n'), false); err != nil {
		return rep, err
	}
	err = exchange(dir, tmp, old, w.shards)
	done = err == nil
	return rep, err
}

// asideName is the folder for the old shards while the new ones take their place.
const asideName = "old"

// exchange puts the shards and the manifest in tmp in the place of the old files of dir, the manifest last. What cannot be exchanged
// stays as it was.
func exchange(dir, tmp string, old []string, shards []Shard) (err error) {
	aside := filepath.Join(tmp, asideName)
	if err := os.Mkdir(aside, 0o700); err != nil {
		return fault.In(fault.IO, dir, "cannot be written").Because(err).WithID("E-SHARD-009")
	}
	var moved [][2]string
	move := func(from, to string) error {
		if err := os.Rename(from, to); err != nil {
			return fault.In(fault.IO, from, "cannot be replaced").Because(err).WithID("E-SHARD-011")
		}
		moved = append(moved, [2]string{from, to})
		return nil
	}
	defer func() {
		for _, m := range slices.Backward(moved) {
			if err != nil {
				err = errors.Join(err, os.Rename(m[1], m[0]))
			}
		}
	}()
	for _, name := range old {
		if err := move(filepath.Join(dir, name), filepath.Join(aside, name)); err != nil {
			return err
		}
	}
	for _, s := range shards {
		if err := move(filepath.Join(tmp, s.Name), filepath.Join(dir, s.Name)); err != nil {
			return err
		}
	}
	if err := move(filepath.Join(tmp, manifestName), filepath.Join(dir, manifestName)); err != nil {
		return err
	}
	return disk.OS{}.SyncDir(dir)
}

func checkShardOptions(opt *ShardOptions) error {
	if opt.ShardTokens == 0 {
		opt.ShardTokens = DefaultShardTokens
	}
	if opt.ShardTokens < 0 {
		return fault.In(fault.Usage, "--shard-tokens", "%d tokens a shard", opt.ShardTokens).WithID("E-SHARD-007")
	}
	switch opt.EOSPolicy {
	case "":
		opt.EOSPolicy = EOSBetween
	case EOSBetween, EOSNone:
	default:
		return fault.In(fault.Usage, "--eos-policy", "%q is not between or none", opt.EOSPolicy).WithID("E-SHARD-008")
	}
	return nil
}

// prepareFolder makes dir and returns the shards that it holds, behind their manifest. Without force it refuses any content, with force
// anything else.
func prepareFolder(dir string, force bool) ([]string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fault.In(fault.IO, dir, "cannot be made").Because(err).WithID("E-SHARD-009")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, readfile.Fault(dir, err)
	}
	var old []string // manifest.json is before shard-*
	for _, e := range entries {
		ours := shardName.MatchString(e.Name()) || e.Name() == manifestName
		if !ours || !force {
			return nil, fault.In(fault.Invalid, dir, "holds %q already", e.Name()).
				WithHint("name an empty folder; --force replaces shards and their manifest, nothing else").WithID("E-SHARD-010")
		}
		old = append(old, e.Name())
	}
	return old, nil
}

// shardWriter cuts a sequence of ids into files.
type shardWriter struct {
	dir    string
	limit  int64
	create func(path string, force bool) (*atomicfile.File, error)
	shards []Shard
	total  int64
	all    hash.Hash

	file  *atomicfile.File // nil between shards
	buf   *bufio.Writer
	one   hash.Hash
	count int64
}

func (w *shardWriter) write(ids []int32) error {
	for len(ids) > 0 {
		if w.file == nil {
			if err := w.begin(); err != nil {
				return err
			}
		}
		n := min(int64(len(ids)), w.limit-w.count)
		var b [4]byte
		for _, id := range ids[:n] {
			binary.LittleEndian.PutUint32(b[:], uint32(id))
			if _, err := w.buf.Write(b[:]); err != nil {
				return err
			}
		}
		ids = ids[n:]
		w.count += n
		w.total += n
		if w.count == w.limit {
			if err := w.finish(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *shardWriter) name() string { return fmt.Sprintf("shard-%05d.bin", len(w.shards)) }

func (w *shardWriter) begin() error {
	f, err := w.create(filepath.Join(w.dir, w.name()), false)
	if err != nil {
		return err
	}
	w.file, w.one, w.count = f, sha256.New(), 0
	w.buf = bufio.NewWriterSize(io.MultiWriter(f, w.one, w.all), 64<<10)
	return nil
}

// finish commits the shard begun, if any.
func (w *shardWriter) finish() error {
	if w.file == nil {
		return nil
	}
	if err := w.buf.Flush(); err != nil {
		return err
	}
	if err := w.file.Commit(); err != nil {
		return err
	}
	w.shards = append(w.shards, Shard{Name: w.name(), Tokens: w.count, SHA256: hex.EncodeToString(w.one.Sum(nil))})
	w.file = nil
	return nil
}

// abort removes the shard begun, if any.
func (w *shardWriter) abort() {
	if w.file != nil {
		w.file.Close()
	}
}
