package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/cli"
	"apr/internal/fault"
	"apr/s3"
	"apr/teacher/cache"
)

// checkPlace refuses a place where no cache can lie.
func checkPlace(option, name string) error {
	if strings.Contains(name, "://") && !s3.Is(name) {
		return fault.New(fault.Unavailable, "--%s %s: a cache is a folder or s3://bucket/prefix", option, name)
	}
	return nil
}

// cacheStore opens the place where a cache lies.
func cacheStore(ctx context.Context, e *cli.Env, name string) (cache.Store, error) {
	if err := checkPlace("cache", name); err != nil {
		return nil, err
	}
	if !s3.Is(name) {
		return cache.Folder(name), nil
	}
	if e.Offline {
		return nil, fault.In(fault.Network, name, "is not asked with --offline").WithHint("apr cache verify copies a cache into your cache folder; name the folder there")
	}
	w, err := s3.Parse(name, e.Getenv)
	if err != nil {
		return nil, err
	}
	return s3.Open(ctx, w, e.Log), nil
}

// pinnedStore opens the place of a cache, whose manifest is the pinned one if there is a pin.
func pinnedStore(ctx context.Context, e *cli.Env, name string) (cache.Store, error) {
	place, sum := cache.Pin(name)
	store, err := cacheStore(ctx, e, place)
	if err != nil {
		return nil, err
	}
	return store, cache.CheckPin(store, sum)
}

// localCache returns the folder of a sealed cache. One that lies in a bucket is copied to apr/teachers in the user's cache folder
// first, where its manifest's hash names it: training reads rows at random.
func localCache(ctx context.Context, e *cli.Env, name string) (string, error) {
	store, err := pinnedStore(ctx, e, name)
	if err != nil {
		return "", err
	}
	if folder, ok := store.(cache.Folder); ok {
		return string(folder), nil
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fault.New(fault.IO, "there is no folder to copy %s to", store.Path("")).Because(err).WithHint("set XDG_CACHE_HOME or HOME")
	}
	var bar *cli.Progress
	_, sum := cache.Pin(name)
	dir, err := cache.Mirror(ctx, store, filepath.Join(user, "apr", "teachers"), sum, func(total int64) func(int64) {
		bar = e.Progress("copying "+store.Path(""), total, cli.Bytes)
		return bar.Add
	})
	bar.Close()
	return dir, err
}
