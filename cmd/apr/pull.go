package main

import (
	"context"
	"path/filepath"

	"apr/hub"
	"apr/internal/cli"
	"apr/internal/fault"
)

// pullOptions are the options of apr pull.
type pullOptions struct {
	ref, revision, output string
	include               []string
	force, verify, dryRun bool
}

func pullCommand() *cli.Command {
	o := &pullOptions{}
	return &cli.Command{
		Name: "pull", Short: "Download a model or a data set from a Hugging Face hub",
		Long: "Downloads a model into the cache that Hugging Face's own programs use, and prints where it is. By default it takes a\n" +
			"repository's configuration, tokenizer and safetensors. Name a GGUF file, as in hf://org/name/FILE, or choose files by\n" +
			"--include. A download that was cut is continued, every file is checked against its hash, and nothing that the cache has\n" +
			"is downloaded again.\n\n" +
			"REF is org/name or hf://org/name[@REVISION][/FILE], or hf://datasets/org/name[@REVISION][/FILE] for data, where FILE\n" +
			"may be a pattern; a revision is a branch, a tag or a commit. Every command that takes a model or data takes such a\n" +
			"REF. HF_TOKEN, or the file token in HF_HOME, is the token of a private or gated model;\n" +
			"HF_ENDPOINT is another hub; HF_HOME and HF_HUB_CACHE are where the cache is.",
		Example: "apr pull Qwen/Qwen2.5-0.5B\n" +
			"apr pull hf://Qwen/Qwen2.5-0.5B@060db6499f32faf8b98477b0a26969ef7d8b9987 --verify\n" +
			"apr pull Qwen/Qwen2.5-0.5B-Instruct-GGUF --include '*q4_k_m.gguf' -o models",
		Exits: []fault.Kind{fault.NotFound, fault.Format, fault.Invalid, fault.IO, fault.Network, fault.HTTP404, fault.Stopped, fault.UnsafePath},
		Options: []cli.Option{
			{Name: "ref", Arg: true, Required: true, Value: cli.String(&o.ref, ""), Help: "org/name or hf://org/name[@REVISION][/FILE]"},
			{Name: "revision", Value: cli.String(&o.revision, hub.DefaultRevision), Help: "branch, tag or commit"},
			{Name: "include", Value: cli.Strings(&o.include), Default: "configuration, tokenizer, safetensors", Help: "glob of the files to download; repeatable"},
			{Name: "output", Short: "o", Path: true, Value: cli.String(&o.output, ""), Default: "the cache alone", Help: "folder to copy the files to"},
			{Name: "force", Value: cli.Bool(&o.force, false), Help: "download again what the cache has; with --output, replace existing files"},
			{Name: "verify", Value: cli.Bool(&o.verify, false), Help: "also check the hashes of what the cache has"},
			{Name: "dry-run", Value: cli.Bool(&o.dryRun, false), Help: "list what would be downloaded"},
		},
		Run: func(ctx context.Context, e *cli.Env) (cli.Result, error) { return runPull(ctx, e, o) },
	}
}

// pulledFile is a file of the JSON of apr pull.
type pulledFile struct {
	Name   string  `json:"name"`
	Size   int64   `json:"size"`
	SHA256 *string `json:"sha256"` // null: not known before it is downloaded
	Cached bool    `json:"cached"`
}

// pullResult is the JSON of apr pull.
type pullResult struct {
	Ref      string       `json:"ref"`
	Revision string       `json:"revision"`
	Commit   string       `json:"commit"`
	Path     string       `json:"path"`
	Files    []pulledFile `json:"files"`
	Cached   bool         `json:"cached"` // nothing was or would be downloaded
	DryRun   bool         `json:"dry_run"`
}

// Text prints where the model is; of a dry run, what it would take.
func (r pullResult) Text(p *cli.Page) {
	if !r.DryRun {
		p.Printf("Path: %s\n", cli.Clean(r.Path))
		return
	}
	var rows [][]string
	var missing int64
	for _, f := range r.Files {
		state := "in the cache"
		if !f.Cached {
			state, missing = "to download", missing+f.Size
		}
		rows = append(rows, []string{f.Name, cli.Bytes(f.Size), state})
	}
	p.Table([]string{"file", ">size", "state"}, rows)
	p.Printf("%s to download, of commit %s\n", cli.Bytes(missing), r.Commit)
}

// reference reads REF and --revision.
func (o *pullOptions) reference(s cli.Settings) (hub.Ref, error) {
	ref, err := hub.ParseRef(o.ref)
	if err != nil || !s.Given("revision") {
		return ref, err
	}
	if ref.Revision != hub.DefaultRevision && ref.Revision != o.revision {
		return ref, fault.New(fault.Usage, "REF names revision %q, --revision %q", ref.Revision, o.revision)
	}
	ref.Revision = o.revision
	return ref, nil
}

func runPull(ctx context.Context, e *cli.Env, o *pullOptions) (cli.Result, error) {
	ref, err := o.reference(e.Settings)
	if err != nil {
		return nil, err
	}
	opt := hub.Options{Include: o.include, Verify: o.verify, DryRun: o.dryRun, Force: o.force && o.output == ""}
	if opt.Force && e.Offline {
		return nil, fault.New(fault.Usage, "--force downloads again, and the network is off")
	}
	client, err := hubClient(e)
	if err != nil {
		return nil, err
	}
	s, err := pull(ctx, e, client, ref, opt)
	if err != nil {
		return nil, err
	}
	if o.output != "" && !o.dryRun {
		if err := client.Copy(ctx, s, filepath.Clean(o.output), o.force); err != nil {
			return nil, err
		}
	}
	r := pullResult{Ref: ref.String(), Revision: ref.Revision, Commit: s.Commit, Path: s.Path, Cached: s.Cached(), DryRun: o.dryRun}
	for _, f := range s.Files {
		r.Files = append(r.Files, pulledFile{f.Name, f.Size, orNull(f.SHA256), f.Cached})
	}
	return r, nil
}

// pull downloads with a bar for each file, or looks into the cache when the network is off.
func pull(ctx context.Context, e *cli.Env, client *hub.Client, ref hub.Ref, opt hub.Options) (*hub.Snapshot, error) {
	if e.Offline {
		return client.Find(ctx, ref, opt, true)
	}
	bars := e.Group()
	defer bars.Close()
	opt.Bar = hubBar(bars)
	return client.Pull(ctx, ref, opt)
}
