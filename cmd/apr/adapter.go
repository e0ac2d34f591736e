package main

import (
	"context"
	"os"
	"path/filepath"

	"apr/adapter"
	"apr/convert"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/keep"
	"apr/modelfile"
	"apr/tensor"
)

// adapterOption is --adapter.
func adapterOption(p *string) cli.Option {
	return cli.Option{Name: "adapter", Foreign: []string{"lora", "peft", "adapter-path", "lora-path", "adapter-name-or-path"}, Path: true, Value: cli.String(p, ""),
		Help: "merge this low-rank adapter into the model: a folder of PEFT, a run of --lora, or a .gguf file"}
}

// findAdapter returns the folder or file that an argument means: that of a run, or what was named.
func findAdapter(arg string) string {
	if inside := filepath.Join(arg, "adapter"); isFolder(inside) {
		return inside
	}
	return arg
}

func isFolder(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// merge merges an adapter into an opened model; without one it does nothing.
func merge(e *cli.Env, f *modelfile.Files, path string) error {
	if path == "" {
		return nil
	}
	a, err := adapter.Open(findAdapter(path), f)
	if err != nil {
		return err
	}
	warn(e, a.Warnings)
	tied := f.Config.Tied
	if err := a.CheckApart(path, f); err != nil {
		return err
	}
	if err := a.Merge(f); err != nil {
		return err
	}
	if tied && !f.Config.Tied {
		e.Log.Info("the adapter changes the output matrix: the merged model's head is no longer its embedding")
	}
	return nil
}

// openAdapted is openFiles with an adapter merged.
func openAdapted(ctx context.Context, e *cli.Env, arg, path string) (*modelfile.Files, error) {
	f, err := openFiles(ctx, e, arg)
	if err != nil {
		return nil, err
	}
	if err := merge(e, f, path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// mergeContainer merges the adapter into a container that is about to be written. Merged matrices are float32; dtype is what they are
// written in where their blocks are not asked for: that of the model's other matrices, if they have one type.
func (w *rewriting) mergeContainer(e *cli.Env, c *convert.Container) error {
	if w.adapter == "" {
		return nil
	}
	config, err := c.ReadConfig()
	if err != nil {
		return err
	}
	types := map[tensor.DType]bool{}
	for _, t := range c.File.Tensors() {
		if len(t.Shape) > 1 && t.DType.IsFloat() {
			types[t.DType] = true
		}
	}
	if len(types) == 1 {
		for d := range types {
			w.dtype = d
		}
	}
	return merge(e, &modelfile.Files{Container: c.Container, Config: config, AllowOdd: w.odd}, w.adapter)
}

// adapterFiles are the files of --adapter, which no output may replace.
func (w *rewriting) adapterFiles() []string {
	if w.adapter == "" {
		return nil
	}
	path := findAdapter(w.adapter)
	return append(keep.ModelFiles(path), filepath.Join(path, "adapter_config.json"), filepath.Join(path, "adapter_model.safetensors"))
}

// ownAdapter takes the adapter of the run that is exported, where no other is named.
func (w *rewriting) ownAdapter(e *cli.Env) error {
	if w.adapter != "" {
		return nil
	}
	run, err := runHere(w.file, runsFolderOf(e))
	switch {
	case err != nil:
		return err
	case run == "":
		return fault.New(fault.Usage, "--adapter-only has no effect without --adapter, or a run of --lora for the model").
			WithHint("--adapter takes a folder of PEFT, a run of --lora, or a .gguf file")
	case !isFolder(filepath.Join(run, "adapter")):
		return fault.In(fault.Usage, run, "has no adapter: --adapter-only is for a run of --lora").
			WithHint("without --adapter-only the student is exported")
	}
	w.adapter = run
	return nil
}

// writeAdapter writes the adapter alone in the other form: a folder of PEFT, or a GGUF file.
func (w *rewriting) writeAdapter(ctx context.Context, e *cli.Env) (cli.Result, error) {
	if err := w.ownAdapter(e); err != nil {
		return nil, err
	}
	switch {
	case w.scheme != "" || w.plan:
		return nil, fault.New(fault.Usage, "--adapter-only writes float32: --quantize and --plan have no effect")
	}
	path, err := source(ctx, e, w.file)
	if err != nil {
		return nil, err
	}
	f, err := openFiles(ctx, e, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	f.AllowOdd = w.odd
	a, err := adapter.Open(findAdapter(w.adapter), f)
	if err != nil {
		return nil, err
	}
	warn(e, a.Warnings)
	if err := keep.Inputs(w.output, append(w.adapterFiles(), keep.ModelFiles(path)...)...); err != nil {
		return nil, err
	}
	r := exportResult{Format: w.format, Output: w.output, DTypes: map[string]string{}, Warnings: append([]string{},
		a.Warnings...), Widened: []string{}, Size: 4 * a.Parameters()}
	for _, m := range a.Modules {
		nameA, nameB := m.Names()
		r.DTypes[nameA], r.DTypes[nameB] = tensor.F32.String(), tensor.F32.String()
	}
	if w.format == "gguf" {
		r.Files = []string{filepath.Base(w.output)}
		return r, a.SaveGGUF(w.output, f.Config, w.force)
	}
	r.Files, err = a.SavePEFT(w.output, w.force)
	return r, err
}
