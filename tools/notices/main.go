// Notices writes the licences of everything in go.mod, and of the Go distribution, to standard output as
// THIRD_PARTY_NOTICES.md. Run it in the root of the module:
//
//	go run ./tools/notices/main.go > THIRD_PARTY_NOTICES.md
//
// It reads licence files from the module cache. A module without one, or with one it does not know, is an error.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// component is a module, or the Go distribution.
type component struct {
	name, version, licence string
	texts                  []string
}

func main() {
	if err := write(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func write(w io.Writer) error {
	parts, err := modules()
	if err != nil {
		return err
	}
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return err
	}
	distribution, err := licensed("Go standard library and runtime", "", strings.TrimSpace(string(goroot)))
	if err != nil {
		return err
	}
	parts = append([]component{distribution}, parts...)
	for _, f := range files {
		c, err := licensed(f.name, f.version, f.dir)
		if err != nil {
			return err
		}
		parts = append(parts, c)
	}

	var b strings.Builder
	b.WriteString(intro)
	b.WriteString("| component | version | licence | text |\n|---|---|---|---|\n")
	var texts []string
	for _, p := range parts {
		var refs []string
		for _, text := range p.texts {
			i := slices.Index(texts, text)
			if i < 0 {
				i = len(texts)
				texts = append(texts, text)
			}
			refs = append(refs, fmt.Sprintf("[%d](#text-%d)", i+1, i+1))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.name, p.version, p.licence, strings.Join(refs, ", "))
	}
	for i, text := range texts {
		fmt.Fprintf(&b, "\n## Text %d\n\n````text\n%s\n````\n", i+1, text)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// files are what is not a module: vendored, with its licence beside it.
var files = []struct{ name, version, dir string }{
	{"uPlot (in the HTML reports)", "1.6.32", "run/report/assets/uplot"},
}

const intro = `# Third-party notices

apr itself is under the Apache License 2.0 (LICENSE). The program is built with the components below; each remains under
its own licence. The texts of Go source code in examples/gosrc, and the small model in testdata/models/gosrc that was
trained on such text, come from the Go distribution: Copyright The Go Authors, under the licence of its row.

Written by ` + "`make notices`" + ` from go.mod and the licence files of the modules and of what is vendored; not edited by hand.

`

// modules returns the components of go.mod in its order.
func modules() ([]component, error) {
	raw, err := output("go", "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, err
	}
	args := []string{"mod", "download", "-json"}
	for _, r := range file.Require {
		args = append(args, r.Path+"@"+r.Version)
	}
	if raw, err = output("go", args...); err != nil {
		return nil, err
	}
	var parts []component
	for dec := json.NewDecoder(bytes.NewReader(raw)); ; {
		var m struct{ Path, Version, Dir string }
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return parts, nil
		} else if err != nil {
			return nil, err
		}
		p, err := licensed(m.Path, m.Version, m.Dir)
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
}

var licenceFile = regexp.MustCompile(`(?i)^((un)?licen[cs]e|copying|notice)([.-].*)?$`)

// licensed reads the licence and notice files of dir.
func licensed(name, version, dir string) (component, error) {
	c := component{name: name, version: version}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return c, err
	}
	var kinds []string
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return c, err
		}
		c.texts = append(c.texts, strings.TrimRight(strings.ReplaceAll(string(text), "\r\n", "\n"), " \n"))
		for _, k := range kindsOf(string(text)) {
			if !slices.Contains(kinds, k) {
				kinds = append(kinds, k)
			}
		}
	}
	if len(kinds) == 0 {
		return c, fmt.Errorf("%s %s: no licence known in %s", name, version, dir)
	}
	c.licence = strings.Join(kinds, " and ")
	return c, nil
}

// kindsOf names the licences whose words stand in text.
func kindsOf(text string) (kinds []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, k := range []struct{ id, words string }{
		{"Apache-2.0", "Apache License, Version 2.0"}, {"Apache-2.0", "Apache License Version 2.0, January 2004"},
		{"MIT", "Permission is hereby granted, free of charge"}, {"ISC", "Permission to use, copy, modify, and/or distribute"},
		{"MPL-2.0", "Mozilla Public License"}, {"Unlicense", "free and unencumbered software"},
	} {
		if strings.Contains(text, k.words) && !slices.Contains(kinds, k.id) {
			kinds = append(kinds, k.id)
		}
	}
	if strings.Contains(text, "Redistribution and use in source and binary forms") {
		if regexp.MustCompile(`(?i)neither the name|may not be used to endorse`).MatchString(text) {
			return append(kinds, "BSD-3-Clause")
		}
		return append(kinds, "BSD-2-Clause")
	}
	return kinds
}

func output(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}
