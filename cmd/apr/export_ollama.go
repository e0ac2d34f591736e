package main

import (
	"cmp"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"apr/convert"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
	"apr/internal/keep"
	"apr/modelfile"
)

// modelfileOf returns the Modelfile's path: student.Modelfile beside student.gguf, so that a folder can hold several.
func (w *rewriting) modelfileOf() string {
	return strings.TrimSuffix(w.output, filepath.Ext(w.output)) + ".Modelfile"
}

// checkModelfile refuses to write over an existing Modelfile before anything is written.
func (w *rewriting) checkModelfile(c *convert.Container) error {
	path := w.modelfileOf()
	if err := keep.Inputs(path, append(keep.ModelFiles(c.Path), c.Files...)...); err != nil {
		return err
	}
	if _, err := os.Lstat(w.output); err == nil && !w.force {
		return nil // what is said of the output then
	}
	if _, err := os.Lstat(path); err == nil && !w.force {
		return fault.In(fault.Invalid, path, "already exists").WithHint("give --force to replace it").WithID("E-CONVERT-032")
	}
	return nil
}

// addModelfile writes the Modelfile beside a GGUF file.
func (w *rewriting) addModelfile(c *convert.Container, r *exportResult) error {
	f, err := modelfile.Open(c.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	tok, err := f.Tokenizer()
	if err != nil {
		return err
	}
	ends, err := f.Stops()
	if err != nil {
		return err
	}
	r.chats = tok.ChatTemplate() != "" && f.Learned() != modelfile.LearnedText
	text, templated := convert.OllamaModelfile(tok, filepath.Base(w.output), ends, r.chats)
	path := w.modelfileOf()
	if err := atomicfile.WriteFile(path, []byte(text), w.force); err != nil {
		return err
	}
	r.Ollama, r.templated = &path, templated
	r.Files = append(r.Files, filepath.Base(path))
	return nil
}

// printUse says how to go on.
func (r exportResult) printUse(p *cli.Page) {
	if r.Ollama == nil || r.refused {
		return
	}
	name := ollamaName(strings.TrimSuffix(filepath.Base(r.Output), filepath.Ext(r.Output)))
	program := "llama-completion -no-cnv -p TEXT"
	if r.chats {
		program = "llama-cli"
	}
	p.Printf("\nin llama.cpp: %s -m %s\n", program, operand(r.Output))
	p.Printf("in ollama:    ollama create %s -f %s && ollama run %s\n", name, operand(*r.Ollama), name)
	if !r.templated {
		p.Printf("the Modelfile has no TEMPLATE: see the remark in it\n")
	}
}

// notInOllama is what a name of ollama's must not have: a colon begins a tag, a slash ends a namespace.
var notInOllama = regexp.MustCompile(`[^a-z0-9_.-]+`)

// ollamaName makes a file's name one that ollama takes: small letters, digits, and . _ - within, at most 80.
func ollamaName(file string) string {
	name := strings.Trim(notInOllama.ReplaceAllString(strings.ToLower(file), "-"), ".-_")
	return cmp.Or(strings.TrimRight(name[:min(len(name), 80)], ".-_"), "student")
}

// operand is a path as a shell reads it, and no program takes for a flag.
func operand(path string) string {
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	return quoted(path)
}
