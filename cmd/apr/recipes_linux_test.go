package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fence finds the blocks of code of a page: their language, and what stands in them.
var fence = regexp.MustCompile("(?ms)^```(yaml|sh)\n(.*?)^```$")

// TestRecipes runs docs/guide/recipes.md from top to bottom in a folder that holds of a clone what the page names: it saves each YAML block
// under the name in its first line, and runs each command, which must succeed.
func TestRecipes(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/guide/recipes.md"))
	if err != nil {
		t.Fatal(err)
	}
	clone := t.TempDir()
	for _, name := range []string{"examples", "testdata", "README.md"} {
		if err := os.Symlink(filepath.Join(root, name), filepath.Join(clone, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.CopyFS(filepath.Join(clone, "docs"), os.DirFS(filepath.Join(root, "docs/guide"))); err != nil { // a folder of data may be no link
		t.Fatal(err)
	}
	apr, err := exec.LookPath("apr") // a copy of this test's program, which testscript.Main makes
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(apr), filepath.Join(clone, "bin")); err != nil {
		t.Fatal(err)
	}
	files, commands := 0, 0
	for _, block := range fence.FindAllStringSubmatch(string(page), -1) {
		if block[1] == "yaml" {
			first, _, _ := strings.Cut(block[2], "\n")
			name := strings.TrimPrefix(first, "# ")
			if filepath.Ext(name) != ".yaml" || name == first {
				t.Fatalf("a file without its name in the first line: %q", first)
			}
			if err := os.WriteFile(filepath.Join(clone, name), []byte(block[2]), 0o600); err != nil {
				t.Fatal(err)
			}
			files++
			continue
		}
		for command := range strings.Lines(block[2]) {
			runRecipe(t, clone, strings.TrimSpace(command))
			commands++
		}
	}
	if files < 5 || commands < 15 {
		t.Errorf("%d files and %d commands were found", files, commands)
	}
}

// runRecipe runs a command as a shell does.
func runRecipe(t *testing.T, dir, command string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	c := exec.CommandContext(ctx, "sh", "-c", command)
	c.Dir = dir
	c.Env = append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, ".cache"), "CUDA_VISIBLE_DEVICES=-1", "APR_OFFLINE=1")
	start := time.Now()
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	t.Logf("%6.1f s  %s", time.Since(start).Seconds(), command)
}
