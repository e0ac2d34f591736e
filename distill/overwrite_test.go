package distill

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// writeInputs writes what runs read, with links between it, and returns the content of each file.
func writeInputs(t *testing.T, at func(string) string) map[string]string {
	t.Helper()
	shard := func(name string) string {
		header := `{"` + name + `":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + "four"
	}
	content := map[string]string{
		"split/model.safetensors.index.json": `{"metadata":{"total_size":8},"weight_map":{"a":"model-1.safetensors",` +
			`"b":"model-2.safetensors"}}`,
		"split/model-1.safetensors": shard("a"), "split/model-2.safetensors": shard("b"),
	}
	for _, name := range []string{"teacher/model.safetensors", "student/model.safetensors", "small/config.json",
		"small/run.yaml", "text/a.jsonl", "text/deep/b.jsonl", "text/.runs/steps.jsonl", "chat/t.jinja",
		"template/tokenizer.json", "one.gguf", "between/else"} {
		content[name] = name
	}
	for name, text := range content {
		err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(text), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	var errs []error
	for _, folder := range []string{"hard", "hard-shards", "text/empty"} {
		errs = append(errs, os.Mkdir(at(folder), 0o700))
	}
	for _, link := range [][2]string{{"one.gguf", "hard.gguf"}, {"teacher/model.safetensors", "hard.safetensors"},
		{"split/model-2.safetensors", "hard-2.safetensors"}, {"split/model-2.safetensors", "hard-shards/mine"},
		{"teacher/model.safetensors", "hard/mine"}} {
		errs = append(errs, os.Link(at(link[0]), at(link[1])))
	}
	for _, link := range [][2]string{{"teacher", "link"}, {"text", "texts"}, {"between/second", "first"},
		{"../teacher", "between/second"}, {"../template/tokenizer.json", "teacher/tokenizer.json"}} {
		errs = append(errs, os.Symlink(link[0], at(link[1])))
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return content
}

// sameInputs demands that all files that writeInputs wrote are what they were.
func sameInputs(t *testing.T, at func(string) string, content map[string]string) {
	t.Helper()
	if err := fs.WalkDir(os.DirFS(at("")), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.HasPrefix(name, "hard") {
			var b []byte
			if b, err = os.ReadFile(at(name)); err == nil && string(b) != content[name] && filepath.Base(name) != "mine" {
				t.Errorf("%s was changed", name)
			}
			delete(content, name)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	for name := range content {
		if !strings.HasPrefix(name, "text/.runs") { // which the run may move
			t.Errorf("%s is gone", name)
		}
	}
}

// No run replaces or moves what it reads, under any name and with force.
func TestOutputIsNoInput(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(c *Config, at func(string) string)
		want string // empty: it may
	}{
		"another folder":                  {func(*Config, func(string) string) {}, ""},
		"an old run where the run begins": {func(c *Config, at func(string) string) { c.Output = at("between") }, ""},
		"a folder within the teacher":     {func(c *Config, at func(string) string) { c.Output = at("teacher/run") }, ""},
		"the teacher":                     {func(c *Config, at func(string) string) { c.Output = at("teacher") }, "E-DISTILL-041"},
		"a link to the teacher":           {func(c *Config, at func(string) string) { c.Output = at("link") }, "E-DISTILL-041"},
		"the folder of the teacher":       {func(c *Config, at func(string) string) { c.Output = at(".") }, "E-DISTILL-042"},
		"where the teacher's link leads":  {func(c *Config, at func(string) string) { c.Teacher, c.Output = at("link"), at(".") }, "E-DISTILL-042"},
		"the student":                     {func(c *Config, at func(string) string) { c.Student, c.Output = at("student"), at("student") }, "E-DISTILL-041"},
		"the folder of the student's configuration": {func(c *Config, at func(string) string) {
			c.StudentConfig, c.Output = at("small/config.json"), at("small")
		}, "E-DISTILL-042"},
		"the folder of the data": {func(c *Config, at func(string) string) { c.Data, c.Output = []string{at("text/a.jsonl")}, at("text") }, "E-DISTILL-042"},
		"the data":               {func(c *Config, at func(string) string) { c.Data, c.Output = []string{at("text")}, at("text") }, "E-DISTILL-041"},
		"the held-out data":      {func(c *Config, at func(string) string) { c.EvalData, c.Output = []string{at("text")}, at("text") }, "E-DISTILL-041"},
		"the shards":             {func(c *Config, at func(string) string) { c.Dataset, c.Output = at("text"), at("text") }, "E-DISTILL-041"},
		"the folder of the settings": {func(c *Config, at func(string) string) {
			c.Settings, c.Output = []string{at("small/run.yaml")}, at("small")
		}, "E-DISTILL-042"},
		"a teacher in one file":               {func(c *Config, at func(string) string) { c.Teacher, c.Export = at("one.gguf"), at("one.gguf") }, "E-DISTILL-041"},
		"a hard link to the teacher":          {func(c *Config, at func(string) string) { c.Teacher, c.Export = at("one.gguf"), at("hard.gguf") }, "E-DISTILL-041"},
		"the weights in the teacher's folder": {func(c *Config, at func(string) string) { c.Export = at("teacher/model.safetensors") }, "E-DISTILL-041"},
		"a hard link to those weights":        {func(c *Config, at func(string) string) { c.Export = at("hard.safetensors") }, "E-DISTILL-041"},
		"a shard of a teacher that is named by its index": {func(c *Config, at func(string) string) {
			c.Teacher, c.Export = at("split/model.safetensors.index.json"), at("split/model-2.safetensors")
		}, "E-DISTILL-041"},
		"a hard link to a shard": {func(c *Config, at func(string) string) {
			c.Teacher, c.Export = at("split/model.safetensors.index.json"), at("hard-2.safetensors")
		}, "E-DISTILL-041"},
		"a folder with a hard link to a shard": {func(c *Config, at func(string) string) {
			c.Teacher, c.Output = at("split/model.safetensors.index.json"), at("hard-shards")
		}, "E-DISTILL-042"},
		"a file deep in the data": {func(c *Config, at func(string) string) {
			c.Data, c.Export = []string{at("text")}, at("text/deep/b.jsonl")
		}, "E-DISTILL-041"},
		"a folder in the data":           {func(c *Config, at func(string) string) { c.Data, c.Output = []string{at("text")}, at("text/deep") }, "E-DISTILL-042"},
		"a folder in data behind a link": {func(c *Config, at func(string) string) { c.Data, c.Output = []string{at("texts")}, at("text/deep") }, "E-DISTILL-042"},
		"a folder in the held-out data":  {func(c *Config, at func(string) string) { c.EvalData, c.Output = []string{at("text")}, at("text/deep") }, "E-DISTILL-042"},
		"an empty folder in the data":    {func(c *Config, at func(string) string) { c.Data, c.Output = []string{at("text")}, at("text/empty") }, ""},
		"a hidden folder in the data":    {func(c *Config, at func(string) string) { c.Data, c.Output = []string{at("text")}, at("text/.runs") }, ""},
		"a folder with a link on the way to the teacher": {func(c *Config, at func(string) string) {
			c.Teacher, c.Output = at("first"), at("between")
		}, "E-DISTILL-042"},
		"the same, by another name of the teacher": {func(c *Config, at func(string) string) {
			c.Teacher, c.Output = at(".")+"/small/../first/../teacher/../first", at("between")
		}, "E-DISTILL-042"},
		"a folder with a hard link to the teacher": {func(c *Config, at func(string) string) { c.Output = at("hard") }, "E-DISTILL-042"},
		"the folder of the chat template":          {func(c *Config, at func(string) string) { c.ChatTemplate, c.Output = at("chat/t.jinja"), at("chat") }, "E-DISTILL-042"},
		"a file of the tokenizer behind a link":    {func(c *Config, at func(string) string) { c.Output = at("template") }, "E-DISTILL-042"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			content := writeInputs(t, at)
			c := tinyConfig(t)
			c.Teacher, c.Output, c.Force = at("teacher"), filepath.Join(t.TempDir(), "run"), true
			t.Chdir(dir)
			tt.set(&c, at)
			if c.Student != "" {
				c.StudentConfig = ""
			}
			if c.Dataset != "" {
				c.Data = nil
			}
			err := opens(t, c, false)
			if refused := fault.KindOf(err) == fault.Invalid && strings.Contains(err.Error(), tt.want); tt.want != "" && !refused || tt.want == "" && strings.Contains(err.Error(), "E-DISTILL-04") {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			sameInputs(t, at, content)
			contracttest.Cases(t, 1)
		})
	}
}

// A resumed run does not export over the checkpoints that it may continue from.
func TestExportIsNoCheckpoint(t *testing.T) {
	run := t.TempDir()
	file := filepath.Join(run, "checkpoints", "step-000002", tensorsFile)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, resume := range []string{ResumeAuto, filepath.Dir(file)} {
		c := tinyConfig(t)
		c.Output, c.Export, c.Resume, c.Force = run, file, resume, true
		if err := c.CheckOutputs(); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "E-DISTILL-041") {
			t.Errorf("--resume %s: %v", resume, err)
		}
		contracttest.Cases(t, 1)
	}
}
