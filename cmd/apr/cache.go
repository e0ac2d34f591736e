package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"apr/distill"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/teacher/cache"
)

func cacheCommand() *cli.Command {
	return &cli.Command{
		Name: "cache", Short: "Look into a teacher's cache, check it, seal it",
		Example: "apr cache inspect CACHE\napr cache verify CACHE TEACHER -d data.jsonl\napr cache seal CACHE",
		Sub:     []*cli.Command{cacheInspectCommand(), cacheVerifyCommand(), cacheSealCommand()},
	}
}

// cacheExits are the exit codes of every cache command.
var cacheExits = slices.Clip([]fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.IO, fault.Unavailable, fault.Network, fault.HTTP404, fault.UnsafePath, fault.Stopped})

// cachePathOption is the cache that a command is about.
func cachePathOption(p *string) cli.Option {
	return cli.Option{Name: "cache", Arg: true, Required: true, Path: true, Value: cli.String(p, ""), Help: "a teacher's cache: a folder, or s3://bucket/prefix; #sha256=… behind it pins its manifest"}
}

func cacheInspectCommand() *cli.Command {
	var path string
	return &cli.Command{
		Name: "inspect", Short: "Describe a teacher's cache by its header and the sizes of its files",
		Example: "apr cache inspect CACHE\napr cache inspect CACHE --json",
		Exits:   cacheExits,
		Options: []cli.Option{cachePathOption(&path)},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) {
			store, err := pinnedStore(ctx, e, path)
			if err != nil {
				return nil, err
			}
			r, err := describeCache(store)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
	}
}

// cacheResult is the JSON of apr inspect and apr cache inspect of a teacher's cache.
type cacheResult struct {
	File     string         `json:"file"`
	Format   string         `json:"format"`
	Sealed   bool           `json:"sealed"`
	Shards   int            `json:"shards"`
	Of       int            `json:"shards_of"`
	Missing  []string       `json:"shards_missing"`
	Rows     int            `json:"rows"` // of all shards, of which some may be missing
	Tokens   int64          `json:"tokens"`
	Bytes    int64          `json:"size_bytes"`
	PerToken *float64       `json:"bytes_per_token"` // null: shards are missing
	SHA256   *string        `json:"sha256"`          // of the manifest; null: not sealed
	Header   map[string]any `json:"header"`
	Content  string         `json:"content"`
}

// inspectCache describes a teacher's cache; with verify every row and every hash is checked.
func inspectCache(dir string, verify bool) (cli.Result, error) {
	r, err := describeCache(cache.Folder(dir))
	if err != nil {
		return nil, err
	}
	if !verify {
		return r, nil
	}
	reader, err := cache.Open(dir)
	if err != nil {
		return nil, err
	}
	r.Content = "as it was written, by its hashes and checksums"
	return r, reader.Verify()
}

// describeCache describes a teacher's cache by its header and the sizes of its files.
func describeCache(store cache.Store) (r cacheResult, err error) {
	s, err := cache.LookIn(store)
	if err != nil {
		return r, err
	}
	h := s.Header
	r = cacheResult{File: store.Path(""), Format: cache.Format, Sealed: s.Sealed, Shards: s.Shards, Of: h.Shards(), Missing: append([]string{}, s.Missing...), Bytes: s.Bytes, Header: h.Map(),
		Rows: h.Rows, Tokens: int64(h.Rows) * int64(h.SeqLen), Content: "not checked: apr cache verify reads all of it"}
	if s.Shards == r.Of {
		per := float64(s.Bytes) / float64(r.Tokens)
		r.PerToken = &per
	}
	if s.Sealed {
		r.SHA256 = &s.SHA256
	}
	return r, nil
}

// Text prints what a cache is.
func (r cacheResult) Text(p *cli.Page) {
	state := "sealed"
	if !r.Sealed {
		state = fmt.Sprintf("not sealed: %d of %d shards are there", r.Shards, r.Of)
	}
	size := cli.Bytes(r.Bytes)
	if r.PerToken != nil {
		size += fmt.Sprintf(", %.1f bytes a token", *r.PerToken)
	}
	pairs := []string{"file", r.File, "format", "teacher's cache, " + r.Format, "state", state, "shards", fmt.Sprintf("%d of %d", r.Shards, r.Of),
		"rows", fmt.Sprintf("%s of %s tokens in all", cli.Count(int64(r.Rows)), cli.Count(r.Tokens)), "size", size, "content", r.Content}
	if r.SHA256 != nil {
		pairs = append(pairs, "sha256", *r.SHA256)
	}
	if len(r.Missing) > 0 {
		pairs = append(pairs, "missing", some(r.Missing))
	}
	p.Pairs(pairs...)
	printFields(p, "header", r.Header)
}

// some names the first of a list.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func cacheSealCommand() *cli.Command {
	var path string
	return &cli.Command{
		Name: "seal", Short: "Check all shards of a teacher's cache and write its manifest",
		Long: "Reads all shards of a teacher's cache and writes manifest.json, without which no training reads the cache. The last process of\n" +
			"--stage precompute does the same. Missing shards are named (exit 5).",
		Example: "apr cache seal CACHE",
		Exits:   cacheExits,
		Options: []cli.Option{cachePathOption(&path)},
		Run:     func(ctx context.Context, e *cli.Env) (cli.Result, error) { return sealCache(ctx, e, path) },
	}
}

// sealResult is the JSON of apr cache seal.
type sealResult struct {
	Cache   string   `json:"cache"`
	Sealed  bool     `json:"sealed"`
	Missing []string `json:"shards_missing"`
	Shards  int      `json:"shards"`
	SHA256  *string  `json:"sha256"` // of the manifest; null: not sealed
}

func sealCache(ctx context.Context, e *cli.Env, path string) (cli.Result, error) {
	store, err := pinnedStore(ctx, e, path)
	if err != nil {
		return nil, err
	}
	missing, err := distill.SealCache(store)
	if err != nil {
		return nil, err
	}
	s, err := cache.LookIn(store)
	if err != nil {
		return nil, err
	}
	r := sealResult{Cache: path, Sealed: s.Sealed && len(missing) == 0, Missing: append([]string{}, missing...), Shards: s.Header.Shards()}
	if !r.Sealed {
		return r, fault.In(fault.Invalid, path, "%d of %d shards are missing: %s", len(missing), r.Shards, some(missing)).
			WithHint("run the command that makes the cache: it makes what is missing").WithID("E-CACHE-030")
	}
	r.SHA256 = &s.SHA256
	return r, nil
}

// Text prints the seal.
func (r sealResult) Text(p *cli.Page) {
	if r.Sealed {
		p.Pairs("cache", r.Cache, "state", "sealed: "+plural(r.Shards, "shard"), "sha256", *r.SHA256)
	}
}
