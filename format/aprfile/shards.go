package aprfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"apr/format/internal/shards"
	"apr/internal/fault"
	"apr/internal/readfile"
)

// shardName is the name of one file of several, numbered from 1: model-00001-of-00003.apr.
var shardName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.apr$`)

func looksLikeIndex(path string) (bool, error) {
	head, err := readfile.Head(path, 8)
	return err == nil && shards.LooksLikeIndex(head), err
}

// openIndex opens the shards that an index lists.
func (f *File) openIndex(path string) error {
	ix, err := shards.Read(path)
	if err != nil {
		return err
	}
	return f.openShards(filepath.Dir(path), ix.Shards(), ix)
}

// openSiblings opens the other shards of one, by its name or the pattern in its metadata, and checks the index beside
// them if there is one.
func (f *File) openSiblings(first *part) error {
	s, err := first.meta.sharding()
	if err != nil {
		return err
	}
	if s.count > shards.Max {
		return bad(first.path, 42, "%d shards are over the limit of %d", s.count, shards.Max).At(`metadata key "sharding"`)
	}
	dir, own := filepath.Split(first.path)
	if dir == "" {
		dir = "."
	}
	if s.count == 1 {
		return f.merge()
	}
	pattern, err := siblingPattern(first.path, own, s)
	if err != nil {
		return err
	}
	names := make([]string, s.count)
	for i := range names {
		names[i] = expandPattern(pattern, i+1, len(names))
	}
	if names[s.index] != own {
		return load(first.path, 43, "is shard %d of %d, so its name should be %q", s.index+1, s.count, names[s.index])
	}
	var ix *shards.Index
	indexPath := filepath.Join(dir, stem(pattern)+".apr.index.json")
	if _, err := os.Lstat(indexPath); !errors.Is(err, os.ErrNotExist) {
		if indexPath, err = readfile.Inside(dir, filepath.Base(indexPath)); err != nil {
			return err
		}
		if ix, err = shards.Read(indexPath); err != nil {
			return err
		}
	}
	first.disk.Close()
	f.parts = nil
	return f.openShards(dir, names, ix)
}

// siblingPattern returns the pattern of the shards' names: from the file's own name, else from the metadata.
func siblingPattern(path, own string, s sharding) (string, error) {
	if m := shardName.FindStringSubmatch(own); m != nil {
		if n, err := strconv.ParseUint(m[3], 10, 64); err == nil && n == s.count {
			return m[1] + "-{:05d}-of-{:05d}.apr", nil
		}
	}
	if strings.Count(s.pattern, "{:05d}") == 2 {
		return s.pattern, nil
	}
	return "", load(path, 43, "one of %d shards, whose names neither its name nor its metadata tell", s.count).
		WithHint("name it like model-00001-of-%05d.apr", s.count)
}

// expandPattern puts the number of a shard and their count into a pattern.
func expandPattern(pattern string, number, count int) string {
	s := strings.Replace(pattern, "{:05d}", fmt.Sprintf("%05d", number), 1)
	return strings.Replace(s, "{:05d}", fmt.Sprintf("%05d", count), 1)
}

// stem returns the text before the numbers.
func stem(pattern string) string {
	s, _, _ := strings.Cut(pattern, "{:05d}")
	return strings.TrimSuffix(s, "-")
}

// openShards opens the files of a model, in their order, and checks that they belong together.
func (f *File) openShards(dir string, names []string, ix *shards.Index) error {
	check := shards.Checker{Index: ix}
	for i, name := range names {
		path, err := readfile.Inside(dir, name)
		if err != nil {
			return err
		}
		p, err := f.add(path)
		if err != nil {
			return err
		}
		if p.header.flags&Sharded == 0 {
			return load(path, 44, "is listed as a shard, but its flag SHARDED is not set")
		}
		s, err := p.meta.sharding()
		if err != nil {
			return err
		}
		if s.count != uint64(len(names)) || s.index != uint64(i) {
			return load(path, 44, "says it is shard %d of %d, but it is file %d of %d", s.index+1, s.count, i+1, len(names))
		}
		stored := make([]string, len(p.entries))
		for j, e := range p.entries {
			stored[j] = e.StoredName
		}
		if err := check.Add(path, stored); err != nil {
			return err
		}
	}
	if err := check.Done(); err != nil {
		return err
	}
	return f.merge()
}

// load returns a fault of kind Load: sound files that contradict each other.
func load(path string, id int, format string, args ...any) *fault.Error {
	return fault.In(fault.Load, path, format, args...).WithID(fmt.Sprintf("E-APR-%03d", id))
}
