// Command interop makes the tables of docs/interop.md: what is converted between formats, who read it back, and the
// largest difference; and what llama.cpp computes from random models of every family.
//
//	go run ./bench/interop [-llama-cpp COMMAND] FOLDER TEXTS     the tables, for a Hugging Face folder and held-out texts
//	go run ./bench/interop -llama-cpp COMMAND -families [NAME…]  the table of families, or rows of it
//	go run ./bench/interop -llama-cpp COMMAND -fixtures FOLDER   the files of testdata/gguf
//	go run ./bench/interop -logits OUT.json MODEL PROMPT     logits of a prompt, for bench/peer/check_hf.py
//
// It runs in the folder of the repository. COMMAND starts a program of llama.cpp by its name after "llama-", as in COMMAND
// completion -m FILE. Without it the rows of llama.cpp are left out, and a line says so. Its server listens on 127.0.0.1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"apr/internal/fault"
)

// options are the flags.
type options struct {
	peer
	logits, fixtures, keep string
	families               bool
}

func main() {
	var o options
	flag.StringVar(&o.command, "llama-cpp", "", "command that starts programs of llama.cpp")
	flag.StringVar(&o.logits, "logits", "", "file for the logits of a prompt")
	flag.IntVar(&o.chunks, "chunks", 40, "windows of 512 tokens that perplexity is measured on")
	flag.BoolVar(&o.families, "families", false, "make the table of families")
	flag.StringVar(&o.fixtures, "fixtures", "", "folder for files of llama.cpp's quantizer that tests read")
	flag.StringVar(&o.keep, "keep", "", "folder in which models and their GGUF files stay")
	flag.Parse()
	if alone := o.families || o.fixtures != ""; alone && o.command == "" || !alone && flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(max(1, fault.ExitCode(err)))
	}
}

func (o options) run(ctx context.Context) (err error) {
	if o.logits != "" {
		return writeLogits(ctx, o.logits, flag.Arg(0), flag.Arg(1))
	}
	dir := o.keep
	if dir == "" {
		if dir, err = os.MkdirTemp("", "interop"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	switch {
	case o.fixtures != "":
		return o.makeFixtures(ctx, dir, o.fixtures)
	case o.families:
		err := o.table(ctx, os.Stdout, dir, flag.Args())
		if flag.NArg() == 0 {
			err = errors.Join(err, o.texts(ctx, os.Stdout, dir))
		}
		return err
	}
	return tables(ctx, flag.Arg(0), flag.Arg(1), dir, o.peer)
}

// tables prints the tables of one model.
func tables(ctx context.Context, folder, texts, dir string, p peer) error {
	if err := pairs(ctx, folder, dir); err != nil {
		return err
	}
	if p.command == "" {
		fmt.Fprintln(os.Stdout, "\nllama.cpp was not at hand.")
		return nil
	}
	if err := p.greedy(ctx, folder, dir); err != nil {
		return err
	}
	return p.perplexity(ctx, folder, texts, dir)
}
