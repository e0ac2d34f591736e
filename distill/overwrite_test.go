package distill

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// No run replaces or moves what it reads, under any name and with force.
func TestOutputIsNoInput(t *testing.T) {
	for name, tt := range map[string]struct {
		set  func(c *Config, at func(string) string)
		want string // empty: it may
	}{
		"another folder":                 {func(*Config, func(string) string) {}, ""},
		"a folder within the teacher":    {func(c *Config, at func(string) string) { c.Output = at("teacher/run") }, ""},
		"the teacher":                    {func(c *Config, at func(string) string) { c.Output = at("teacher") }, "E-DISTILL-041"},
		"a link to the teacher":          {func(c *Config, at func(string) string) { c.Output = at("link") }, "E-DISTILL-041"},
		"the folder of the teacher":      {func(c *Config, at func(string) string) { c.Output = at(".") }, "E-DISTILL-042"},
		"where the teacher's link leads": {func(c *Config, at func(string) string) { c.Teacher, c.Output = at("link"), at(".") }, "E-DISTILL-042"},
		"the student":                    {func(c *Config, at func(string) string) { c.Student, c.Output = at("student"), at("student") }, "E-DISTILL-041"},
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
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) string { return filepath.Join(dir, name) }
			for _, name := range []string{"teacher/model.safetensors", "student/model.safetensors", "small/config.json", "small/run.yaml", "text/a.jsonl", "one.gguf"} {
				if err := errors.Join(os.MkdirAll(filepath.Dir(at(name)), 0o700), os.WriteFile(at(name), []byte(name), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(os.Symlink("teacher", at("link")), os.Link(at("one.gguf"), at("hard.gguf")), os.Link(at("teacher/model.safetensors"), at("hard.safetensors"))); err != nil {
				t.Fatal(err)
			}
			c := tinyConfig(t)
			c.Teacher, c.Output, c.Force = at("teacher"), filepath.Join(t.TempDir(), "run"), true
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
			if err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() && !strings.HasPrefix(name, "hard") {
					var b []byte
					if b, err = os.ReadFile(at(name)); err == nil && string(b) != name {
						t.Errorf("%s was changed", name)
					}
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			contracttest.Cases(t, 1)
		})
	}
}
