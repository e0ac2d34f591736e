package hub

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/strictjson"
)

// atOnce is how many files are asked for or downloaded at the same time.
const atOnce = 4

// maxHash bounds the size of a file without a SHA-256 of its own that is read to say one.
const maxHash = 256 << 20

// Options say what of a repository is wanted.
type Options struct {
	Part    Part     // of a model, when neither Include nor a file says more
	Include []string // globs; the choice of files is then theirs alone
	Force   bool     // download again what the cache has
	Verify  bool     // read again what the cache has and compare it with its hash
	DryRun  bool     // only say what would be downloaded

	Bar func(name string, size int64) Bar // progress of a file; nil: none
}

// File is a file of a snapshot.
type File struct {
	Name   string // path in the repository
	Size   int64
	SHA256 string // empty if not known yet
	Cached bool   // it was there before

	etag string // hash that names the content; empty if the cache does not say it
}

// Snapshot is what the cache has of one commit.
type Snapshot struct {
	Ref    Ref
	Commit string
	Path   string // folder, or the file that the reference names
	Dir    string // folder
	Files  []File // the chosen ones, in order of name
}

// Cached reports whether every file was there before.
func (s *Snapshot) Cached() bool {
	return !slices.ContainsFunc(s.Files, func(f File) bool { return !f.Cached })
}

// newSnapshot names the places of a commit.
func (c *Client) newSnapshot(ref Ref, commit string) *Snapshot {
	dir := filepath.Join(c.cfg.Cache, ref.folder(), "snapshots", commit)
	return &Snapshot{Ref: ref, Commit: commit, Dir: dir, Path: filepath.Join(dir, filepath.FromSlash(ref.File))}
}

// Pull brings what is chosen of a repository into the cache and returns its snapshot. Faults are of kind Network,
// HTTP404, UnsafePath, NotFound (nothing to choose), IO, Usage, or the context's error.
func (c *Client) Pull(ctx context.Context, ref Ref, opt Options) (*Snapshot, error) {
	if err := ref.check(); err != nil {
		return nil, err
	}
	if err := checkPatterns(opt.Include); err != nil {
		return nil, err
	}
	commit, names, err := c.list(ctx, ref)
	if err != nil {
		return nil, err
	}
	chosen, err := choose(ref, names, opt)
	if err != nil {
		return nil, err
	}
	if err := checkChosen(ref, chosen); err != nil {
		return nil, err
	}
	s := c.newSnapshot(ref, commit)
	if s.Files, err = c.heads(ctx, ref, commit, chosen); err != nil {
		return nil, err
	}
	r, err := openRepository(c.cfg.Cache, ref, !opt.DryRun)
	if opt.DryRun && fault.KindOf(err) == fault.NotFound {
		return s, nil // no cache yet
	}
	if err != nil {
		return nil, err
	}
	defer r.close()
	for i := range s.Files {
		if s.Files[i].Cached, err = r.has(s.Files[i]); err != nil {
			return nil, err
		}
		s.Files[i].Cached = s.Files[i].Cached && !opt.Force
	}
	if opt.DryRun {
		return s, nil
	}
	if err := c.fetchAll(ctx, r, s, opt); err != nil {
		return nil, err
	}
	return s, r.publish(s, names)
}

// checkChosen refuses unsafe names, and names that a file system without case would take for one.
func checkChosen(ref Ref, chosen []string) error {
	folded := map[string]string{}
	for _, name := range chosen {
		if err := CheckName(name); err != nil {
			return placed(err, ref.String())
		}
		if other, ok := folded[strings.ToLower(name)]; ok {
			return fault.In(fault.UnsafePath, ref.String(), "files %q and %q differ in case only", other, name).WithID("E-HUB-004")
		}
		folded[strings.ToLower(name)] = name
	}
	return nil
}

// heads asks for hash and size of each file.
func (c *Client) heads(ctx context.Context, ref Ref, commit string, names []string) ([]File, error) {
	files := make([]File, len(names))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, name := range names {
		g.Go(func() (err error) {
			files[i], err = c.head(ctx, ref, commit, name)
			return err
		})
	}
	return files, g.Wait()
}

// fetchAll downloads what is missing, several files at a time.
func (c *Client) fetchAll(ctx context.Context, r *repository, s *Snapshot, opt Options) error {
	if err := r.root.MkdirAll("blobs", dirMode); err != nil {
		return r.fault("blobs", "cannot be created", err)
	}
	if err := r.room(s.Files); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range s.Files {
		g.Go(func() error { return c.fetch(ctx, r, s, &s.Files[i], opt) })
	}
	return g.Wait()
}

// room refuses a download that the disk cannot hold.
func (r *repository) room(files []File) error {
	var need int64
	for _, f := range files {
		if !f.Cached {
			need += f.Size - r.begun(f)
			if need < 0 {
				return fault.In(fault.Network, r.path, "the server says sizes that no disk can hold").WithID("E-HUB-032")
			}
		}
	}
	if free, ok := atomicfile.Free(r.path); ok && uint64(need) > free {
		return fault.In(fault.IO, r.path, "no space left: %d bytes needed, %d free", need, free).WithID("E-HUB-027")
	}
	return nil
}

// fetch brings one content into the cache, unless it is there.
func (c *Client) fetch(ctx context.Context, r *repository, s *Snapshot, f *File, opt Options) error {
	what := Ref{Repo: s.Ref.Repo, Revision: s.Ref.Revision, File: f.Name}.String()
	replace := opt.Force
	if f.Cached {
		ok, err := r.intact(ctx, f, opt.Verify)
		if ok || err != nil {
			return err
		}
		c.log.Warn("the cache's content does not have its hash: downloading it again", "file", what)
		f.Cached, replace = false, true
	}
	waiting := func() { c.log.Info("waiting for another process that downloads the same file", "file", what) }
	release, err := r.hold(ctx, f.etag, waiting)
	if err != nil {
		return err
	}
	defer release()
	// Whoever had the lock may have brought it. A content that is to be replaced is not looked at.
	there, err := r.has(*f)
	if err == nil && there && !replace {
		there, err = r.intact(ctx, f, opt.Verify)
		replace = !there
	}
	if err != nil || there && !replace {
		return err
	}
	d := &download{c: c, r: r, f: *f, from: s.Ref.Repo, rev: s.Commit, what: what, bar: noBar{}}
	if opt.Bar != nil {
		d.bar = opt.Bar(f.Name, f.Size)
	}
	defer d.bar.Close()
	if opt.Force {
		_ = r.root.Remove(partName(f.etag)) // one that stays is continued
	}
	f.SHA256, err = d.run(ctx)
	return err
}

// noBar shows nothing.
type noBar struct{}

func (noBar) Add(int64)    {}
func (noBar) Resume(int64) {}
func (noBar) Close()       {}

// intact fills in the SHA-256 of a content of the cache. A content that is named by it is believed unless verify wants
// it read; it returns false if the content does not have its hash.
func (r *repository) intact(ctx context.Context, f *File, verify bool) (bool, error) {
	if sha256Form.MatchString(f.etag) && !verify {
		f.SHA256 = f.etag
		return true, nil
	}
	if !verify && f.Size > maxHash {
		return true, nil
	}
	sum, etag, err := r.sums(ctx, blobName(f.etag), *f)
	if err != nil || etag != f.etag {
		return false, err
	}
	f.SHA256 = sum
	return true, nil
}

// sums reads a file of the folder.
func (d folder) sums(ctx context.Context, name string, f File) (sum, etag string, err error) {
	file, err := d.root.Open(name)
	if err != nil {
		return "", "", d.fault(name, "cannot be read", err)
	}
	defer file.Close()
	h := newDigest(f)
	if _, err := h.copyInto(stopping{ctx, file}); err != nil {
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		return "", "", d.fault(name, "cannot be read", err)
	}
	sum, etag = h.sums()
	return sum, etag, nil
}

// publish makes a snapshot appear: links, then the marks of what the commit lacks, then the ref.
func (r *repository) publish(s *Snapshot, names []string) error {
	for _, f := range s.Files {
		if err := r.link(s.Commit, f); err != nil {
			return err
		}
	}
	for _, name := range small {
		if !slices.Contains(names, name) {
			if err := r.write(path.Join(".no_exist", s.Commit, name), ""); err != nil {
				return err
			}
		}
	}
	if s.Ref.Revision == s.Commit {
		return nil
	}
	return r.write(path.Join("refs", s.Ref.Revision), s.Commit)
}

// Cached returns what the cache has of a reference, without a network. What is not there, or not whole, is a fault of
// kind NotFound; with Verify, a content without its hash one of kind Invalid; a link out of the repository's folder one
// of kind UnsafePath.
func (c *Client) Cached(ctx context.Context, ref Ref, opt Options) (*Snapshot, error) {
	if err := ref.check(); err != nil {
		return nil, err
	}
	if err := checkPatterns(opt.Include); err != nil {
		return nil, err
	}
	r, err := openRepository(c.cfg.Cache, ref, false)
	if err != nil {
		return nil, err
	}
	defer r.close()
	commit, err := r.commitOf(ref.Revision)
	if err != nil {
		return nil, err
	}
	all, err := r.snapshot(commit)
	if err != nil {
		return nil, err
	}
	s := c.newSnapshot(ref, commit)
	if s.Files, err = r.whole(ref, commit, all, opt); err != nil {
		return nil, err
	}
	for i := range s.Files {
		if err := r.verify(ctx, commit, &s.Files[i], opt.Verify); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// verify fills in the SHA-256 of a file of a snapshot.
func (r *repository) verify(ctx context.Context, commit string, f *File, verify bool) error {
	if f.etag == "" { // a plain file: there is no hash to compare with
		if f.Size > maxHash && !verify {
			return nil
		}
		var err error
		f.SHA256, _, err = r.sums(ctx, path.Join("snapshots", commit, f.Name), *f)
		return err
	}
	ok, err := r.intact(ctx, f, verify)
	if err == nil && !ok {
		err = fault.In(fault.Invalid, filepath.Join(r.path, "blobs", f.etag), "the content of %q does not have the hash that is its name", f.Name).
			WithHint("apr pull --verify downloads it again").WithID("E-HUB-033")
	}
	return err
}

// whole chooses among the files of a snapshot and refuses a choice that is not whole.
func (r *repository) whole(ref Ref, commit string, all []File, opt Options) ([]File, error) {
	var names []string
	for _, f := range all {
		names = append(names, f.Name)
	}
	chosen, err := choose(ref, names, opt)
	if err != nil {
		return nil, fault.In(fault.NotFound, ref.String(), "is not in the cache as a whole").Because(err).WithID("E-HUB-034")
	}
	if err := r.lacks(ref, commit, chosen, opt); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(f File) bool { return !slices.Contains(chosen, f.Name) }), nil
}

// lacks says what a snapshot needs beside what it has: configuration and tokenizer of safetensors, unless the commit is
// known to have none, and every shard of an index.
func (r *repository) lacks(ref Ref, commit string, chosen []string, opt Options) error {
	if len(opt.Include) > 0 {
		return nil
	}
	dir := path.Dir(ref.File)
	var need []string
	if slices.ContainsFunc(chosen, func(name string) bool { return matches(weights, name) }) {
		need = []string{path.Join(dir, configName), path.Join(dir, tokenizerName)}
	}
	for _, name := range chosen {
		if matches(weightsIndex, name) {
			shards, err := r.shards(path.Join("snapshots", commit, name))
			if err != nil {
				return err
			}
			for _, shard := range shards {
				need = append(need, path.Join(path.Dir(name), shard))
			}
		}
	}
	for _, name := range need {
		if !slices.Contains(chosen, name) && !r.absent(commit, name) {
			return fault.In(fault.NotFound, ref.String(), "%q is not in the cache", name).WithID("E-HUB-034")
		}
	}
	return nil
}

// maxIndex bounds an index of shards.
const maxIndex = 64 << 20

// shards returns the files that an index names.
func (r *repository) shards(name string) ([]string, error) {
	full := filepath.Join(r.path, filepath.FromSlash(name))
	file, err := r.root.Open(name)
	if err != nil {
		return nil, r.fault(name, "cannot be read", err)
	}
	defer file.Close()
	var text strings.Builder
	if _, err := io.Copy(&text, io.LimitReader(file, maxIndex)); err != nil {
		return nil, r.fault(name, "cannot be read", err)
	}
	v, err := strictjson.Parse(text.String(), strictjson.Options{})
	if err != nil {
		return nil, strictjson.Fault(full, text.String(), err)
	}
	var shards []string
	m, _ := v.Get("weight_map")
	for _, item := range m.Members() {
		shard, err := item.Str()
		if err != nil {
			return nil, strictjson.Fault(full, text.String(), err)
		}
		if err := CheckName(shard); err != nil {
			return nil, placed(err, full)
		}
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	return slices.Compact(shards), nil
}

// Find returns the snapshot of the cache if it is whole, and pulls it if not. Offline, what is missing is a fault of
// kind NotFound that says how to get it.
func (c *Client) Find(ctx context.Context, ref Ref, opt Options, offline bool) (*Snapshot, error) {
	s, err := c.Cached(ctx, ref, opt)
	if fault.KindOf(err) != fault.NotFound {
		return s, err
	}
	if offline {
		return nil, fault.In(fault.NotFound, ref.String(), "is not in the cache %s, and the network is off", c.cfg.Cache).
			WithHint("%s", fmt.Sprintf("without --offline, APR_OFFLINE and HF_HUB_OFFLINE: apr pull %s", ref)).WithID("E-HUB-035")
	}
	return c.Pull(ctx, ref, opt)
}
