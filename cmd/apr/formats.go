package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"apr/internal/fault"
)

// formats are those that a command writes, each with the endings that its output may have.
type formats []outputFormat

type outputFormat struct {
	name    string
	endings []string // empty: a folder
}

// ending is what names a format: a dot, a letter, and what follows. A folder called qwen2.5-0.5b has none.
var ending = regexp.MustCompile(`^\.[A-Za-z][A-Za-z0-9]*$`)

// choose returns an output and its format: the one that was asked for, or the one that the output's ending names, or else
// otherwise. An ending that belongs to another format than was asked for, or to none, is a usage error; where a format was
// asked for, an ending that belongs to none is a name like any other.
func (all formats) choose(output, format, otherwise string) (string, string, error) {
	ext := strings.ToLower(filepath.Ext(output))
	if st, err := os.Stat(output); !ending.MatchString(ext) || strings.HasSuffix(output, string(filepath.Separator)) || err == nil && st.IsDir() {
		ext = ""
	}
	named := ""
	for _, f := range all {
		if slices.Contains(f.endings, ext) {
			named = f.name
		}
	}
	switch {
	case ext == "" && format == "":
		return output, otherwise, nil
	case named == "" && format == "":
		return "", "", fault.In(fault.Usage, "--output", "%q: %q is no ending of a format that is written here", output, ext).
			WithHint("known: %s", all.known())
	case format == "":
		return output, named, nil
	case named != "" && named != format:
		return "", "", fault.In(fault.Usage, "--output", "%q is the name of a %s file; --format %s is %s", output, named, format, all.called(format))
	}
	return output, format, nil
}

// called says what outputs of a format are called.
func (all formats) called(format string) string {
	for _, f := range all {
		if f.name == format && len(f.endings) > 0 {
			return strings.Join(f.endings, " or ")
		}
	}
	return "a folder"
}

// known lists the endings.
func (all formats) known() string {
	var texts []string
	for _, f := range all {
		if len(f.endings) == 0 {
			texts = append(texts, "none, or a / at the end ("+f.name+", a folder)")
			continue
		}
		texts = append(texts, strings.Join(f.endings, ", ")+" ("+f.name+")")
	}
	return strings.Join(texts, ", ")
}
