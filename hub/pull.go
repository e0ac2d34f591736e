package hub

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"apr/internal/atomicfile"
	"apr/internal/fault"
	"apr/internal/readfile"
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
	s := &Snapshot{Ref: ref, Commit: commit, Dir: dir, Path: dir}
	if !ref.pattern() {
		s.Path = filepath.Join(dir, filepath.FromSlash(ref.File))
	}
	return s
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
	what := s.Ref.of(f.Name).String()
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
	d := &download{c: c, r: r, f: *f, from: s.Ref.place(), rev: s.Commit, what: what, bar: noBar{}}
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

// maxCompared bounds the size of a content that is compared with its name, a SHA-256, whenever it is used.
// Weights beyond it are compared when they are hashed.
const maxCompared = 64 << 20

// intact fills in the SHA-256 of a content of the cache. A large one that is named by it is believed unless verify
// wants it read; it returns false if the content does not have its hash.
func (r *repository) intact(ctx context.Context, f *File, verify bool) (bool, error) {
	if readfile.IsSHA256(f.etag) && f.Size > maxCompared && !verify {
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
	if s.Ref.Dataset {
		if err := r.writeListing(s.Commit, names); err != nil {
			return err
		}
	}
	for _, name := range small {
		if !s.Ref.Dataset && !slices.Contains(names, name) {
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
