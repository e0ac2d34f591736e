// Command interop makes the tables of docs/interop.md: what is converted between formats, who read it back, and the
// largest difference.
//
//	go run ./bench/interop [-llama COMMAND] FOLDER TEXTS    the tables, for a Hugging Face folder and held-out texts
//	go run ./bench/interop -logits OUT.json MODEL PROMPT    logits of a prompt, for bench/peer/check_hf.py
//
// COMMAND starts a program of llama.cpp by its name after "llama-", as in COMMAND completion -m FILE. Without it the rows
// of llama.cpp are left out, and a line says so.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"apr/internal/fault"
)

func main() {
	llama := flag.String("llama", "", "command that starts programs of llama.cpp")
	logits := flag.String("logits", "", "file for the logits of a prompt")
	chunks := flag.Int("chunks", 40, "windows of 512 tokens that perplexity is measured on")
	dir := flag.String("families", "", "folder for random models of every family")
	flag.Parse()
	if *dir != "" {
		if err := (peer{*llama, *chunks}).families(context.Background(), *dir, flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, "interop:", err)
			os.Exit(1)
		}
		return
	}
	if flag.NArg() != 2 {
		flag.Usage()
		os.Exit(2)
	}
	ctx := context.Background()
	var err error
	if *logits != "" {
		err = writeLogits(ctx, *logits, flag.Arg(0), flag.Arg(1))
	} else {
		err = tables(ctx, flag.Arg(0), flag.Arg(1), peer{*llama, *chunks})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(fault.ExitCode(err))
	}
}

// tables prints all tables.
func tables(ctx context.Context, folder, texts string, p peer) error {
	dir, err := os.MkdirTemp("", "interop")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
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
