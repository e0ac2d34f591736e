package modelfile

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"apr/arch"
	"apr/device"
	"apr/format"
	"apr/format/aprfile"
	"apr/format/gguf"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/quant"
	"apr/tensor"
	"apr/tokenizer"
)

// Container is an opened model file or folder of any format. Its tensors are always there; configuration and tokenizer
// are read when asked for and may be missing or wrong.
type Container struct {
	Path string
	Kind format.Kind
	// File holds the slots of the model, by name, if there is a configuration, and the tensors that belong to none; without a
	// configuration, what is stored.
	File     tensor.File
	Stored   tensor.File // the file's own tensors: of type *aprfile.File, *safetensors.File or *gguf.File
	Left     []string    // tensors of the file that are not read: those of other parts of a multimodal model
	Warnings []string
	Assumed  []arch.Assumed // what the configuration leaves out though every published model of its family states it
	Folder   string         // with the small files of a Hugging Face model; "" for other formats

	// ReadConfig reads the configuration; its error says why there is none.
	ReadConfig func() (arch.Config, error)
	// ReadTokenizer reads the tokenizer; its error says why there is none.
	ReadTokenizer func() (*tokenizer.Tokenizer, error)
	// ReadOutline describes the tokenizer without making it; nil: only ReadTokenizer can.
	ReadOutline func() (tokenizer.Outline, error)
}

// Outline describes the tokenizer.
func (c *Container) Outline() (tokenizer.Outline, error) {
	if c.ReadOutline != nil {
		return c.ReadOutline()
	}
	t, err := c.ReadTokenizer()
	if err != nil {
		return tokenizer.Outline{}, err
	}
	return t.Outline(), nil
}

// OpenContainer opens a Hugging Face folder, a safetensors file with config.json beside it, an .apr file, a GGUF
// file, or a folder with one. What a file is, is found by its content. Keys of config.json in allow are accepted unread.
func OpenContainer(path string, allow ...string) (*Container, error) {
	f, kind, err := format.Open(path)
	if err != nil {
		return nil, err
	}
	c := &Container{Path: path, Kind: kind, File: f, Stored: f}
	switch f := f.(type) {
	case *aprfile.File:
		c.Warnings = f.Warnings()
		c.ReadConfig = func() (arch.Config, error) { return OpenAPRConfig(f) }
		c.ReadTokenizer = func() (*tokenizer.Tokenizer, error) { return OpenAPRTokenizer(f) }
		c.ReadOutline = func() (tokenizer.Outline, error) { return aprOutline(f.Metadata(), f.Path()) }
	case *safetensors.File:
		c.Warnings = f.Warnings()
		dir := filepath.Dir(f.Files()[0])
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			dir = path // not where a link of a hub cache leads
		}
		c.Folder = dir
		c.ReadConfig = func() (arch.Config, error) { return ReadConfig(filepath.Join(dir, "config.json"), allow...) }
		c.ReadTokenizer = func() (*tokenizer.Tokenizer, error) { return hfTokenizer(dir, c.ReadConfig) }
		c.ReadOutline = func() (tokenizer.Outline, error) { return hfOutline(dir, c.ReadConfig) }
		if text, ok := f.Metadata()[SafetensorsKey]; ok {
			c.ReadConfig = func() (arch.Config, error) { return embeddedConfig(f, text) }
			c.ReadTokenizer = func() (*tokenizer.Tokenizer, error) { return embeddedTokenizer(f, text) }
			c.ReadOutline = nil
		} else if err := c.dequantise(f, dir); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	case *gguf.File:
		c.Warnings = f.Warnings()
		c.ReadConfig = func() (arch.Config, error) { return OpenGGUFConfig(f) }
		c.ReadTokenizer = func() (*tokenizer.Tokenizer, error) { return tokenizer.FromGGUF(f.Path(), f.Metadata()) }
		c.ReadOutline = func() (tokenizer.Outline, error) { return tokenizer.OutlineGGUF(f.Path(), f.Metadata()) }
	default:
		return nil, errors.Join(fault.In(fault.Unavailable, path, "models of format %s are not read yet", kind), f.Close())
	}
	c.see()
	c.warnOfAdapter()
	c.warnOfConfig()
	return c, nil
}

// warnOfAdapter says that an adapter in the model's folder is not applied.
func (c *Container) warnOfAdapter() {
	if c.Folder == "" {
		return
	}
	if name := format.Adapter(c.Folder); name != "" {
		c.Warnings = append(c.Warnings, name+": a LoRA adapter lies beside the model and is not applied: "+format.MergeAdapter)
	}
}

// see makes File show slots, if there is a configuration.
func (c *Container) see() {
	config, err := c.ReadConfig()
	c.ReadConfig = func() (arch.Config, error) { return config, err }
	if err == nil {
		v := newView(c.Stored, c.Kind, config)
		c.File, c.Left = v, v.left
	}
}

// Verify refuses a model whose files are damaged, as far as their format can tell; see tensor.File.
func (c *Container) Verify() error { return c.File.Verify() }

// Close releases the files.
func (c *Container) Close() error { return c.File.Close() }

// Files is an opened model that can be used: a container with its configuration.
type Files struct {
	*Container
	Config   arch.Config
	Warn     func(line string) // takes what Verify, Tokenizer and WeightsSHA256 find doubtful; may be nil
	AllowOdd bool              // warn of weights that no trained model has, and go on
	Fresh    bool              // it is to be trained: biases may be zero, and layers copies

	tok    *tokenizer.Tokenizer
	head   func() error // CheckHead of what was opened, once; nil: made otherwise
	warned *atomic.Bool // that Verify called Warn; copies share it
	judged *atomic.Bool // that WeightsSHA256 did
}

// Open opens a model to use it; see OpenContainer for what can be opened.
func Open(path string, allow ...string) (*Files, error) {
	c, err := OpenContainer(path, allow...)
	if err != nil {
		return nil, err
	}
	f := &Files{Container: c, head: sync.OnceValue(c.CheckHead), warned: new(atomic.Bool), judged: new(atomic.Bool)}
	if f.Config, err = c.ReadConfig(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return f, nil
}

// Bytes returns the payload bytes of all tensors, as the files hold them.
func (f *Files) Bytes() int64 {
	var n int64
	for _, t := range f.File.Tensors() {
		n += t.Held().Size
	}
	return n
}

// CheckTensors refuses a model whose tensors are not those of its configuration, by name and shape, and see CheckStrays. A tied head may
// be absent, empty, or a copy.
func (f *Files) CheckTensors() error {
	if err := f.CheckStrays(); err != nil {
		return err
	}
	want := arch.Shapes(f.Config)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := f.Missing(name); err != nil {
			return err
		}
		switch t, _ := f.File.Tensor(name); {
		case !slices.Equal(t.Shape, want[name]):
			return misshapen(f.Path, t, want[name])
		case !t.DType.IsFloat() && !t.DType.IsQuantized():
			return fault.In(fault.Load, f.Path, "has type %s, which no weight can have", t.DType).At("tensor %q", name).WithID("E-MODEL-003")
		}
	}
	for _, t := range f.File.Tensors() {
		if _, ok := want[t.Name]; ok || f.ignored(t.Name) {
			continue
		}
		return fault.In(fault.Load, f.Path, "is not part of a %s model of this configuration", f.Config.Family).At("tensor %q", t.Name).WithID("E-MODEL-004")
	}
	return nil
}

// Missing says why a slot cannot be read; nil: it can.
func (c *Container) Missing(name string) error {
	if v, ok := c.File.(*view); ok && v.wrong[name] != nil {
		return v.wrong[name]
	}
	if _, ok := c.File.Tensor(name); ok {
		return nil
	}
	f := fault.In(fault.Load, c.Path, "is missing").At("tensor %q", name).WithID("E-MODEL-001")
	if config, err := c.ReadConfig(); err == nil {
		if shape, ok := arch.Shapes(config)[name]; ok {
			f.Msg = fmt.Sprintf("is missing; the configuration needs it with shape %v", shape)
		}
	}
	return f
}

// ignored reports whether a tensor that the configuration does not ask for is harmless: the copy of a tied head,
// rotary tables of old checkpoints, and old optimiser state.
func (f *Files) ignored(name string) bool {
	const training, inverse = "__training__.", ".rotary_emb.inv_freq"
	return f.Config.Tied && name == "lm_head.weight" ||
		len(name) > len(training) && name[:len(training)] == training ||
		len(name) > len(inverse) && name[len(name)-len(inverse):] == inverse
}

// Arch returns the description.
func (f *Files) Arch() arch.Config { return f.Config }

// stored returns the tensor of that name.
func (f *Files) stored(name string) (tensor.Stored, error) {
	t, ok := f.File.Tensor(name)
	if !ok {
		return t, f.Missing(name)
	}
	return t, nil
}

// Source returns access to the rows of a matrix.
func (f *Files) Source(name string) (device.Source, error) {
	t, err := f.stored(name)
	if err != nil {
		return nil, err
	}
	rows, rowBytes := int64(t.Rows()), t.DType.RowBytes(t.Cols())
	if rows*rowBytes != t.Size {
		return nil, fault.In(fault.Load, f.Path, "stores rows of %d values in one stream of %s blocks, which cannot be read by row", t.Cols(), t.DType).
			At("tensor %q", name).WithHint("convert the model first").WithID("E-MODEL-005")
	}
	return source{t, rowBytes, f.Path}, nil
}

// source reads rows of a stored matrix.
type source struct {
	t        tensor.Stored
	rowBytes int64
	path     string
}

func (s source) Info() tensor.Info { return s.t.Info }

func (s source) ReadRows(dst []byte, lo, hi int) error {
	n, err := s.t.ReadAt(dst, int64(lo)*s.rowBytes)
	if n == len(dst) {
		return CheckFinite(s.path, s.t, dst, int64(lo)*s.rowBytes)
	}
	return fault.In(fault.IO, s.path, "rows %d to %d cannot be read", lo, hi).At("tensor %q", s.t.Name).Because(err)
}

// ReadFloat32 returns all values of a tensor, widened to float32.
func (f *Files) ReadFloat32(name string) ([]float32, error) {
	t, err := f.stored(name)
	if err != nil {
		return nil, err
	}
	return ReadFloat32(f.Path, t)
}

// ReadFloat32 returns all values of a stored tensor of the file path, widened to float32. Row-padded blocks lose
// their padding. A value that is not finite is a fault; see [CheckFinite].
func ReadFloat32(path string, t tensor.Stored) ([]float32, error) {
	if !t.DType.IsFloat() && !t.DType.IsQuantized() {
		return nil, fault.In(fault.Load, path, "has type %s, which is no weight's", t.DType).At("tensor %q", t.Name)
	}
	out := make([]float32, t.Elements())
	if !t.DType.IsQuantized() {
		return out, readFloats(out, path, t)
	}
	raw := make([]byte, t.Size)
	if n, err := t.ReadAt(raw, 0); n < len(raw) {
		return nil, unreadable(path, t, err)
	}
	if err := CheckFinite(path, t, raw, 0); err != nil {
		return nil, err
	}
	decodeBlocks(out, raw, t)
	return out, nil
}

func unreadable(path string, t tensor.Stored, err error) error {
	return fault.In(fault.IO, path, "cannot be read").At("tensor %q", t.Name).Because(err)
}

// piece is how many elements are read and widened at a time.
const piece = 1 << 20

// readFloats reads and widens t, in pieces that all processors share. The fault is the first of the tensor: pieces are handed out in
// order, and one that was begun is ended.
func readFloats(out []float32, path string, t tensor.Stored) error {
	var (
		workers sync.WaitGroup
		next    atomic.Int64
		over    atomic.Bool
		mu      sync.Mutex
		failed  error
		failure = len(out) // the piece
	)
	size := t.DType.BlockBytes()
	for range min(runtime.GOMAXPROCS(0), (len(out)+piece-1)/piece) {
		workers.Go(func() {
			raw := make([]byte, min(piece, len(out))*size)
			for !over.Load() {
				lo := int(next.Add(piece)) - piece
				if lo >= len(out) {
					return
				}
				dst := out[lo:min(lo+piece, len(out))]
				if err := readPiece(dst, raw[:len(dst)*size], path, t, int64(lo)*int64(size)); err != nil {
					over.Store(true)
					mu.Lock()
					if lo < failure {
						failure, failed = lo, err
					}
					mu.Unlock()
				}
			}
		})
	}
	workers.Wait()
	return failed
}

// readPiece reads and widens the values of t from byte at on, through raw.
func readPiece(dst []float32, raw []byte, path string, t tensor.Stored, at int64) error {
	if n, err := t.ReadAt(raw, at); n < len(raw) {
		return unreadable(path, t, err)
	}
	if err := CheckFinite(path, t, raw, at); err != nil {
		return err
	}
	tensor.Widen(dst, raw, t.DType)
	return nil
}

// decodeBlocks decodes row-padded or flat blocks.
func decodeBlocks(out []float32, raw []byte, t tensor.Stored) {
	cols, rowBytes := t.Cols(), t.DType.RowBytes(t.Cols())
	if int64(t.Rows())*rowBytes != t.Size { // one stream of blocks
		quant.Dequantize(out, raw, t.DType)
		return
	}
	for r := range t.Rows() {
		quant.Dequantize(out[r*cols:(r+1)*cols], raw[int64(r)*rowBytes:int64(r+1)*rowBytes], t.DType)
	}
}

// checkNamed compares files of weights that lie in a hub's cache with the hashes that are their names there.
func (c *Container) checkNamed() error {
	f, ok := c.Stored.(interface{ Files() []string })
	if !ok {
		return nil // in memory
	}
	for _, path := range f.Files() {
		if err := readfile.CheckNamed(path); err != nil {
			return err
		}
	}
	return nil
}

// WeightsSHA256 identifies the weights by content, whatever file they stand in: SHA-256 over, for each tensor of the
// architecture in order of name, its name, type, shape and payload. Equal hashes with equal configurations compute the
// same. Damaged content has no identity: a file that Verify refuses is an error, found by the same reading, and one of
// a hub's cache that has not the SHA-256 of its name; so are, after that, a value that is not finite and weights that
// no trained model has. What is doubtful goes to Warn, once; see [Content].
func (f *Files) WeightsSHA256() (string, error) {
	named := make(chan error, 1)
	go func() { named <- f.checkNamed() }()
	h, content := sha256.New(), NewContent(f.Container)
	var bad error
	for _, name := range slices.Sorted(maps.Keys(arch.Shapes(f.Config))) {
		t, err := f.stored(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s\x00%s%v\x00", t.Name, t.DType, t.Shape)
		found, err := content.copy(h, t)
		if err != nil {
			return "", err
		}
		bad = cmp.Or(bad, found)
	}
	if err := cmp.Or(f.Verify(), <-named, bad); err != nil {
		return "", err
	}
	lines, err := content.Judge(Tolerance{Odd: f.AllowOdd, Copies: f.Fresh, Zeros: f.Fresh})
	if err != nil {
		return "", err
	}
	if f.Warn != nil && f.judged != nil && f.judged.CompareAndSwap(false, true) {
		for _, line := range lines {
			f.Warn(line)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
