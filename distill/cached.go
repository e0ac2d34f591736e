package distill

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"apr/arch"
	"apr/corpus"
	"apr/format/aprfile"
	"apr/internal/fault"
	"apr/internal/readfile"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/teacher"
	"apr/teacher/cache"
	"apr/teacher/remote"
	"apr/tensor"
)

// headFile is the part of the teacher that lies in its cache: configuration, tokenizer, final norm and, beside hidden
// states, the head as its file has it, under the name of a tied one.
const headFile = "teacher.apr"

// embedding is the slot of a tied head.
const embedding = "model.embed_tokens.weight"

// validateCached refuses what a cache cannot stand for.
func (c Config) validateCached() error {
	if c.FromCache == "" {
		return nil
	}
	for _, t := range []struct {
		asked bool
		what  string
	}{
		{len(c.Teachers()) > 1 || c.Ensemble.routed(), "--strategy ensemble"},
		{c.Guide.Weight != 0, "--strategy progressive, whose layers no cache holds"},
		{c.Guide.Attention != 0, "--attention-weight, whose maps no cache holds"},
		{c.TeacherFP8, "--teacher-gemm fp8"},
		{c.HostExperts, "--teacher-experts host"},
		{c.Remote != nil && (c.Ranks.World > 1 || c.Ranks.SameBits), "tcp:// and several ranks or --deterministic=world"},
	} {
		if t.asked {
			return fault.New(fault.Unavailable, "not built yet: a teacher that is read, with %s", t.what).WithID("E-DISTILL-112")
		}
	}
	if c.Loss.Alpha == 0 {
		return fault.New(fault.Usage, "%s has no effect with --alpha 0, which needs no teacher", c.FromCache)
	}
	return nil
}

// said is what is known of a teacher's rows: by a cache, or by this run, which makes them when they are asked for.
type said struct {
	cache.Header
	Dir    string // for people
	SHA256 string // of a cache's manifest
	Bytes  int64
	rows   teacher.Rows
	has    func(cache.Key) bool
	made   *maker         // makes the rows; nil: they were made before
	client *remote.Client // brings them; nil: nobody has to
}

// drawn reports whether the teacher is a cache of draws, which has nothing on the device.
func (in *inputs) drawn() bool { return in.cache != nil && in.cache.Kind == cache.Draws }

// openTeacher opens the teacher, or what its cache has of it.
func (in *inputs) openTeacher(c Config) (err error) {
	if c.Remote != nil {
		return in.openRemote(c)
	}
	if c.FromCache == "" {
		if in.teacher, err = modelfile.Open(c.Teacher, c.AllowKeys...); err != nil {
			return err
		}
		return in.teacher.CheckTensors()
	}
	r, err := cache.Open(c.FromCache)
	if err != nil {
		return err
	}
	if c.CachePin != "" {
		if err := r.Pin(c.CachePin); err != nil {
			return err
		}
	}
	if err := r.CheckOthers(); err != nil {
		return err
	}
	in.cache = &said{Header: r.Header, Dir: r.Dir, SHA256: r.SHA256, Bytes: r.Bytes, rows: r, has: r.Has}
	return in.openHeadOf(c, c.FromCache)
}

// openHeadOf opens what there is of the teacher beside its rows, in a folder.
func (in *inputs) openHeadOf(c Config, dir string) (err error) {
	if in.teacher, in.taughtBy, err = openHead(dir); err != nil {
		return err
	}
	if in.cache.Kind == cache.Hidden {
		if n := in.teacher.Config.Hidden; n != in.cache.Width {
			return fault.In(fault.Invalid, in.teacher.Path, "has hidden states of %d values, the cache of %d", n, in.cache.Width).WithID("E-DISTILL-113")
		}
		if err := in.teacher.Missing(embedding); err != nil {
			return err
		}
	}
	if c.Teacher == "" {
		return nil
	}
	return in.compareTeacher(c)
}

// compareTeacher refuses a cache of another teacher than the one that is named.
func (in *inputs) compareTeacher(c Config) (err error) {
	f, err := modelfile.Open(c.Teacher, c.AllowKeys...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	asked := in.cache.Header
	asked.TeacherConfig = f.Config.Hash()
	if asked.Teacher, err = f.WeightsSHA256(); err != nil {
		return err
	}
	return in.cache.Same(in.cache.Dir, asked, "teacher", "teacher_config")
}

// checkCache refuses a cache that was made for another run.
func (in *inputs) checkCache(c Config) error {
	if in.cache == nil {
		return nil
	}
	asked := in.cache.Header
	if err := in.describeRows(c, &asked); err != nil {
		return err
	}
	if err := in.sameRows(asked, "tokenizer", "packing", "seq_len", "vocab"); err != nil {
		return err
	}
	if err := in.checkRemote(c); err != nil {
		return err
	}
	return teacher.CheckLoss(in.cache.Dir, in.cache.Header, c.Loss)
}

// describeRows writes down what decides the rows: tokenizer, packing and V, and, of conversations that were read, the
// template.
func (in *inputs) describeRows(c Config, h *cache.Header) error {
	tok, err := in.teacher.Tokenizer()
	switch {
	case modelfile.HasNoTokenizer(err):
		h.Tokenizer = ""
	case err != nil:
		return err
	default:
		h.Tokenizer = TokenizerRecords(tok)["tokenizer"].SHA256
	}
	h.Template = "none"
	if in.talks > 0 {
		_, text, err := corpus.Chat(in.tokenizer, c.ChatTemplate, in.templateTime(c))
		if err != nil {
			return err
		}
		h.Template = fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	}
	h.Packing = "packed"
	if !c.Packing {
		h.Packing = "a document a row"
	}
	if c.DocumentMask {
		h.Packing += ", documents apart"
	}
	h.SeqLen, h.Vocab = c.SeqLen, in.vocab
	return nil
}

// cacheKeys returns the keys of all rows, each once, and a row of each, in the order of the data or in another one.
func cacheKeys(rows *corpus.Rows, apart bool, order []int) (keys []cache.Key, at []int) {
	seen := map[cache.Key]bool{}
	b := rowBatch(1, rows.SeqLen, apart)
	for i := range rows.Len() {
		if order != nil {
			i = order[i]
		}
		fillBatch(b, 0, rows, i)
		if k := cache.KeyOf(b.Tokens, b.Starts); !seen[k] {
			seen[k] = true
			keys, at = append(keys, k), append(at, i)
		}
	}
	return keys, at
}

// rowBatch makes a batch that counts every position.
func rowBatch(rows, seqLen int, apart bool) corpus.Batch {
	b := dryBatch(rows, seqLen)
	if apart {
		b.Starts = make([]int32, len(b.Tokens))
	}
	return b
}

// fillBatch puts row i of the data in place of row r of a batch, every position of which counts. Targets stay 0.
func fillBatch(b corpus.Batch, r int, rows *corpus.Rows, i int) {
	one := b.Slice(r, r+1)
	rows.Fill(i, one.Tokens, make([]int32, b.SeqLen), make([]uint8, b.SeqLen))
	if b.Starts != nil {
		rows.FillStarts(i, one.Starts)
	}
}

// checkCachedRows refuses conversations that were written otherwise, and data of which the cache lacks a row.
func (in *inputs) checkCachedRows(c Config, obs Observer) error {
	if in.cache == nil {
		return nil
	}
	asked := in.cache.Header
	if err := in.describeRows(c, &asked); err != nil {
		return err
	}
	if err := in.sameRows(asked, "template"); err != nil {
		return err
	}
	keys, _ := cacheKeys(in.rows, c.DocumentMask, nil)
	if in.cache.client != nil {
		asked.Rows, asked.RowsSHA256 = len(keys), cache.HashKeys(keys)
		return in.sameRows(asked, "rows", "rows_sha256")
	}
	missing := 0
	for _, k := range keys {
		if !in.cache.has(k) {
			missing++
		}
	}
	if missing > 0 {
		return fault.In(fault.Invalid, in.cache.Dir, "lacks %d of the %d rows of the data: it was made from other data, or other text was held out", missing, len(keys)).
			WithHint("give --data, --eval-data and --val-fraction as for --stage precompute").WithID("E-DISTILL-114")
	}
	if more := in.cache.Rows - len(keys); more > 0 {
		obs.Message("warning: %s has %d rows that are not in the data, beside the %d that are", in.cache.Dir, more, len(keys))
	}
	return nil
}

// cacheText says what the teacher's cache holds.
func (in *inputs) cacheText() string {
	h := in.cache.Header
	if in.drawn() {
		return fmt.Sprintf("%d draws a position at temperature %g, seed %d", h.Draws, h.Temperature, h.Seed)
	}
	return fmt.Sprintf("hidden states of %d values in %s", h.Width, h.DType)
}

// recordTeacherCache records the cache and the teacher that it was made by.
func (in *inputs) recordTeacherCache() {
	h, detail := in.cache.Header, in.cacheText()
	in.records["teacher"] = runlog.Input{Path: in.cache.Dir, SHA256: h.Teacher, Of: ofWeights, Detail: "not read: the cache names it", Config: h.TeacherConfig}
	of := "manifest.json, which has the hash of every file"
	if in.cache.client != nil {
		of = "the header that the teacher sent"
	}
	in.records["teacher_cache"] = runlog.Input{Path: in.cache.Dir, SHA256: in.cache.SHA256, Of: of, Bytes: in.cache.Bytes,
		Detail: fmt.Sprintf("%s, of %d rows, made on %s", detail, h.Rows, h.Device)}
}

// identifyCached refuses a student that is the teacher that the cache was made by: by all values where the teacher is
// named beside its cache, else by the hash of its weights and by what the cache keeps of its values.
func (in *inputs) identifyCached(ctx context.Context, c Config, obs Observer) error {
	if c.Teacher != "" {
		f, err := modelfile.Open(c.Teacher, c.AllowKeys...)
		if err != nil {
			return err
		}
		beside := &inputs{teacher: f, student: in.student}
		c.FromCache = ""
		err = errors.Join(beside.identify(ctx, c, obs), f.Close())
		in.kin = beside.kin
		return err
	}
	sum, err := in.student.WeightsSHA256()
	if err != nil {
		return err
	}
	sketch, ok, err := modelfile.ReadSketch(in.teacher)
	if err != nil {
		return err
	}
	k := modelfile.Kinship{Relation: modelfile.Different}
	switch {
	case ok:
		if k, err = sketch.Kinship(ctx, in.taughtBy, in.student); err != nil {
			return err
		}
	case sum != in.cache.Teacher:
		obs.Message("%s was made before caches kept values of their teacher: whether the student is that teacher is "+
			"known by "+
			"the hash of its weights and the first step alone; naming TEACHER beside --cache compares all values", in.cache.Dir)
	}
	if sum == in.cache.Teacher {
		k.Relation = modelfile.Same
	}
	in.keepKinship(c, k)
	in.kin.Sketch = true
	if k.Relation == modelfile.Different {
		cosine, angles, err := sketch.Embedding(in.taughtBy, in.student)
		in.kin.Embedding, in.kin.Angles = runlog.Number(cosine), runlog.Number(angles)
		return err
	}
	if c.AllowSameModel || c.Quantize != nil {
		return nil
	}
	how := fmt.Sprintf("their weights have the SHA-256 %.12s…", sum)
	if sum != in.cache.Teacher {
		how = fmt.Sprintf("the relative difference of %d values that the cache keeps of its teacher is at most %.1g",
			k.Values, k.Difference)
	}
	return fault.In(fault.Invalid, c.Student, "the student is the teacher that %s was made by: %s", in.cache.Dir, how).
		WithHint("nothing can be learned from it; --allow-same-model trains anyway and records it").WithID("E-DISTILL-003")
}

// openHead opens headFile: a model of no layers, whose head is its embedding. whole describes the teacher.
func openHead(dir string) (f *modelfile.Files, whole arch.Config, err error) {
	if f, err = modelfile.Open(filepath.Join(dir, headFile)); err != nil {
		return nil, whole, err
	}
	whole = f.Config
	f.Config.Layers, f.Config.PLE, f.Config.Tied = nil, arch.PLE{}, true
	return f, whole, nil
}

// SealCache seals a cache whose shards are all there; missing names those that are not.
func SealCache(s cache.Store) (missing []string, err error) { return cache.SealIn(s, headFile) }

// putHead writes headFile to a store. One that is there has to hold the same tensors, as in a folder: it is fetched for
// that.
func putHead(s cache.Store, f *modelfile.Files, withHead bool, writer string) (err error) {
	if d, ok := s.(cache.Folder); ok {
		return writeHead(string(d), f, withHead, writer)
	}
	there, size, err := s.Open(headFile)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	if err == nil {
		defer there.Close()
	}
	dir, err := os.MkdirTemp("", "apr-head-*")
	if err != nil {
		return fault.In(fault.IO, os.TempDir(), "no temporary folder can be made").Because(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if there != nil {
		_, err := cache.Folder(dir).Put(headFile, there, size)
		if err == nil {
			err = writeHead(dir, f, withHead, writer)
		}
		var e *fault.Error
		if errors.As(err, &e) && e.Path == filepath.Join(dir, headFile) {
			e.Path = s.Path(headFile)
		}
		return err
	}
	if err := writeHead(dir, f, withHead, writer); err != nil {
		return err
	}
	in, size, err := readfile.Open(filepath.Join(dir, headFile))
	if err != nil {
		return err
	}
	defer in.Close()
	_, err = s.Put(headFile, in, size)
	return err
}

// writeHead writes headFile. One that is there has to hold the same tensors: that of another teacher, copied into the
// folder, would turn this one's hidden states into other distributions.
func writeHead(dir string, f *modelfile.Files, withHead bool, writer string) error {
	path := filepath.Join(dir, headFile)
	config, names := f.Config, map[string]string{"model.norm.weight": "model.norm.weight"}
	if withHead {
		from := "lm_head.weight"
		if config.Tied {
			from = embedding
		}
		names[from] = embedding
	}
	config.Tied = true // a file without lm_head.weight is read so, whether there is an embedding or not
	var tensors []tensor.Source
	for from, to := range names {
		t, ok := f.File.Tensor(from)
		if !ok {
			return f.Missing(from)
		}
		s := t.Source()
		s.Name = to
		tensors = append(tensors, s)
	}
	sketch, err := modelfile.NewSketch(f)
	if err != nil {
		return err
	}
	tensors = append(tensors, sketch.Sources()...)
	if _, err := os.Lstat(path); err == nil {
		return sameHead(path, tensors)
	}
	tok, err := f.Tokenizer()
	if err != nil && !modelfile.HasNoTokenizer(err) {
		return err
	}
	head := aprfile.Options{Metadata: modelfile.APRMetadata(config, tok, map[string]any{}), Writer: writer, Tied: withHead}
	if err := aprfile.Write(path, tensors, head); err != nil {
		if _, there := os.Lstat(path); fault.KindOf(err) != fault.Invalid || there != nil { // else another process was faster
			return err
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return fault.In(fault.IO, path, "cannot be made private").Because(err)
	}
	return nil
}

// sameHead refuses a headFile with other tensors.
func sameHead(path string, tensors []tensor.Source) error {
	f, err := aprfile.Open(path)
	if err != nil {
		return err
	}
	var there, own []tensor.Source // a tied head has two names there, and a cache of before has no sketch
	for _, t := range tensors {
		if stored, ok := f.Tensor(t.Name); ok {
			there, own = append(there, stored.Source()), append(own, t)
		} else if t.Name == embedding {
			return errors.Join(f.Close(), fault.In(fault.Invalid, path, "has no %s", embedding).
				WithHint("give an empty folder, or remove the file").WithID("E-DISTILL-118"))
		}
	}
	is, err := sumOfTensors(there)
	want, err2 := sumOfTensors(own)
	if err := errors.Join(err, err2, f.Close()); err != nil {
		return err
	}
	if is != want {
		return fault.In(fault.Invalid, path, "is of another teacher than this one").
			WithHint("give an empty folder, or remove the file").WithID("E-DISTILL-118")
	}
	return nil
}

// sumOfTensors is the SHA-256 of names, shapes, types and bytes, by name.
func sumOfTensors(tensors []tensor.Source) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, t := range slices.SortedFunc(slices.Values(tensors), func(a, b tensor.Source) int { return cmp.Compare(a.Name, b.Name) }) {
		fmt.Fprintf(h, "%s %v %v\n", t.Name, t.DType, t.Shape)
		if err := t.Payload(h); err != nil {
			return sum, err
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// estimates reports whether the teacher only estimates a distribution.
func (l *leg) estimates() bool {
	_, ok := l.teacher.(teacher.Estimator)
	return ok
}
