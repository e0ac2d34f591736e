package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// TestCalled: texts say what the user types, whatever the program's path; only commands are renamed.
func TestCalled(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"apr", "other", "a b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for argv0, want := range map[string]string{
		"apr": "apr", filepath.Join(dir, "apr"): "apr", filepath.Join(dir, "other"): filepath.Join(dir, "other"),
		"bin/apr": "bin/apr", "./apr-2": "./apr-2", filepath.Join(dir, "a b"): "'" + filepath.Join(dir, "a b") + "'",
		"/tmp/go-build12/b001/exe/apr": "go run ./cmd/apr",
	} {
		if got := callOf(argv0); got != want {
			t.Errorf("%s is called by %q, want %q", argv0, got, want)
		}
	}
	defer CalledAs("apr", nil)
	CalledAs("bin/apr", []string{"runs", "run", "validate"})
	for text, want := range map[string]string{
		"apr run m": "bin/apr run m", "(apr runs list)": "(bin/apr runs list)", "/home/apr runs/x": "/home/apr runs/x",
		"go on with `apr runs resume a`; apr validate": "go on with `bin/apr runs resume a`; bin/apr validate",
		"apr always uses AdamW: leave it out":          "apr always uses AdamW: leave it out",
	} {
		if got := AsCalled(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
