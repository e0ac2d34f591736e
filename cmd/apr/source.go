package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/convert"
	"apr/hub"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/modelfile"
	runlog "apr/run/log"
	"apr/tokenizer"
)

// source returns the file or folder that a model argument means: a path as it is; the student of a run, by the run's
// directory or name; hf://org/name[@rev][/file], and org/name if there is no such path, from the cache of the hub,
// downloaded if it is not there.
func source(ctx context.Context, e *cli.Env, arg string) (string, error) {
	return find(ctx, e, arg, hub.Model)
}

// openModel opens a model of any form to look into it or to convert it.
func openModel(ctx context.Context, e *cli.Env, arg string) (*convert.Container, error) {
	path, err := source(ctx, e, arg)
	if err != nil {
		return nil, err
	}
	return convert.Open(path, e.AllowConfigKeys...)
}

// openFiles opens a model to compute with it, and says what was tolerated in its file.
func openFiles(ctx context.Context, e *cli.Env, arg string) (*modelfile.Files, error) {
	path, err := source(ctx, e, arg)
	if err != nil {
		return nil, err
	}
	f, err := modelfile.Open(path, e.AllowConfigKeys...)
	if err != nil {
		return nil, err
	}
	for _, w := range f.Warnings {
		e.Log.Warn(arg + ": " + w)
	}
	f.Warn = func(line string) { e.Log.Warn(line) }
	return f, nil
}

// findTokenizer reads the tokenizer that a model argument means, without the model's weights if it is in a hub.
func findTokenizer(ctx context.Context, e *cli.Env, arg string) (*tokenizer.Tokenizer, error) {
	path, err := find(ctx, e, arg, hub.Tokenizer)
	if err != nil {
		return nil, err
	}
	return openTokenizer(e, path)
}

func find(ctx context.Context, e *cli.Env, arg string, part hub.Part) (string, error) {
	explicit := strings.HasPrefix(arg, hub.Scheme)
	if !explicit {
		path, err := modelHere(arg, runsFolderOf(e))
		switch {
		case err != nil:
			return "", err
		case path != "":
			return path, runlog.CheckOutput(path)
		case isPath(arg, runsFolderOf(e)):
			return "", noModel(arg, runsFolderOf(e))
		}
	}
	if hub.IsDataset(arg) {
		return "", fault.In(fault.Usage, arg, "is a data set, where a model is expected").WithHint("--data takes data sets")
	}
	s, err := findSnapshot(ctx, e, arg, hub.Options{Part: part})
	if err != nil {
		return "", alsoNoPath(err, arg, explicit)
	}
	return s.Path, nil
}

// dataFiles returns the paths of data: those that are given, and for hf://datasets/org/name[@rev][/file] the files of the hub's cache,
// downloaded if they are not there.
func dataFiles(ctx context.Context, e *cli.Env, paths []string) ([]string, error) {
	var all []string
	for _, p := range paths {
		switch {
		case !strings.HasPrefix(p, hub.Scheme):
			all = append(all, p)
			continue
		case !hub.IsDataset(p):
			return nil, fault.In(fault.Usage, p, "is a model").WithHint("a data set is %s, as in hf://datasets/org/name", hub.Scheme+"datasets/…")
		}
		s, err := findSnapshot(ctx, e, p, hub.Options{Verify: true}) // reading text takes longer than its hash
		if err != nil {
			return nil, err
		}
		for _, f := range s.Files {
			all = append(all, filepath.Join(s.Dir, filepath.FromSlash(f.Name)))
		}
	}
	return all, nil
}

// findSnapshot finds what a reference means in the cache of the hub, or downloads it.
func findSnapshot(ctx context.Context, e *cli.Env, arg string, opt hub.Options) (*hub.Snapshot, error) {
	ref, err := hub.ParseRef(arg)
	if err != nil {
		return nil, err
	}
	client, err := hubClient(e)
	if err != nil {
		return nil, err
	}
	bars := e.Group()
	defer bars.Close()
	opt.Bar = hubBar(bars)
	return client.Find(ctx, ref, opt, e.Offline)
}

// isPath reports whether an argument without hf:// is a path: because it is there, or because it cannot be a
// repository. A name that ends like a file, or that is in the folder of the runs, is a path that is missing.
func isPath(arg, runsFolder string) bool {
	if _, err := os.Lstat(arg); err == nil {
		return true
	}
	files := []string{".apr", ".gguf", ".safetensors", ".json", ".jsonl", ".yaml", ".yml", ".bin", ".pt", ".txt"}
	_, err := hub.ParseRef(arg)
	return err != nil || strings.Count(arg, "/") != 1 || slices.Contains(files, filepath.Ext(arg)) || inFolder(arg, runsFolder)
}

// alsoNoPath reminds of the other meaning that org/name could have had.
func alsoNoPath(err error, arg string, explicit bool) error {
	var f *fault.Error
	if !explicit && errors.As(err, &f) && (f.Kind == fault.NotFound || f.Kind == fault.HTTP404 || f.Kind == fault.Network) {
		f.Msg += "; there is no file or folder " + cli.Clean(arg) + " either"
	}
	return err
}

// hubClient makes the client that the environment describes.
func hubClient(e *cli.Env) (*hub.Client, error) {
	cfg, err := hub.FromEnv(e.Getenv)
	cfg.Agent = "apr/" + version
	if err != nil {
		return nil, err
	}
	return hub.New(cfg, e.Log), nil
}

// hubBar shows the progress of each file.
func hubBar(bars *cli.Group) func(name string, size int64) hub.Bar {
	return func(name string, size int64) hub.Bar { return bars.Progress(cli.Clean(name), size, cli.Bytes) }
}
