package hub

import (
	"context"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"apr/internal/fault"
	"apr/internal/strictjson"
)

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
	there := names
	if ref.Dataset {
		var err error
		if names, err = r.listing(commit); err != nil {
			return nil, err
		}
	}
	chosen, err := choose(ref, names, opt)
	if err != nil {
		return nil, fault.In(fault.NotFound, ref.String(), "is not in the cache as a whole").Because(err).WithID("E-HUB-034")
	}
	for _, name := range chosen {
		if !slices.Contains(there, name) {
			return nil, fault.In(fault.NotFound, ref.String(), "%q is not in the cache", name).WithID("E-HUB-034")
		}
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
