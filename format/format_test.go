//go:build !windows

package format

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"apr/format/aprfile"
	"apr/format/safetensors"
	"apr/internal/fault"
	"apr/tensor"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var tensors = []tensor.Source{
	tensor.BytesSource(tensor.Info{Name: "v", DType: tensor.F32, Shape: []int{1}}, make([]byte, 4)),
	tensor.BytesSource(tensor.Info{Name: "w", DType: tensor.F32, Shape: []int{2}}, make([]byte, 8)),
}

// TestOpenFinds opens files under misleading names and directories with several models.
func TestOpenFinds(t *testing.T) {
	st := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			must(t, safetensors.Write(filepath.Join(dir, name), tensors, safetensors.Options{}))
		}
	}
	apr := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			must(t, aprfile.Write(filepath.Join(dir, name), tensors, aprfile.Options{}))
		}
	}
	stShards := func(t *testing.T, dir string) {
		_, err := safetensors.WriteDir(dir, tensors, 1, safetensors.Options{})
		must(t, err)
	}
	aprShards := func(t *testing.T, dir string) { // of another program: this one writes single files
		must(t, os.CopyFS(dir, os.DirFS("testdata/shards")))
	}
	raw := func(name, content string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
	}
	header := func(n uint64, rest string) string {
		return string(binary.LittleEndian.AppendUint64(nil, n)) + rest
	}
	for _, c := range []struct {
		name string
		make []func(*testing.T, string)
		open string
		want Kind
		err  string // DIR stands for the directory
	}{
		{"safetensors named .apr", []func(*testing.T, string){st("m.apr")}, "m.apr", Safetensors, ""},
		{"apr named .gguf", []func(*testing.T, string){apr("m.gguf")}, "m.gguf", Apr, ""},
		{"directory of safetensors", []func(*testing.T, string){st("model.safetensors"), apr("m.apr")}, "", Safetensors, ""},
		{"directory of shards", []func(*testing.T, string){stShards, apr("m.apr")}, "", Safetensors, ""},
		{"safetensors index", []func(*testing.T, string){stShards}, "model.safetensors.index.json", Safetensors, ""},
		{"directory of apr", []func(*testing.T, string){apr("m.apr"), raw("config.json", "{}")}, "", Apr, ""},
		{"directory of apr shards", []func(*testing.T, string){aprShards}, "", Apr, ""},
		{"apr index", []func(*testing.T, string){aprShards}, "m.apr.index.json", Apr, ""},
		{"apr shard", []func(*testing.T, string){aprShards}, "m-00002-of-00002.apr", Apr, ""},
		{"temporary files are passed over", []func(*testing.T, string){apr("m.apr"), raw(".m.apr", "")}, "", Apr, ""},
		{"empty safetensors", []func(*testing.T, string){raw("m", header(2, "{}"))}, "m", Safetensors, ""},
		{"header length like a zip archive", []func(*testing.T, string){raw("m", header(0x4b50, "{}"+strings.Repeat(" ", 0x4b50-2)))}, "m", Safetensors, ""},
		{"header length like a pickle", []func(*testing.T, string){raw("m", header(0x480, "{}"+strings.Repeat(" ", 0x480-2)))}, "m", Safetensors, ""},
		{"header length like a gzip archive", []func(*testing.T, string){raw("m", header(0x8b1f, "{}"+strings.Repeat(" ", 0x8b1f-2)))}, "m", Safetensors, ""},
		{"blanks before the object", []func(*testing.T, string){raw("m", header(12, "          {}"))}, "m", Safetensors, ""},

		{"GGUF cut", []func(*testing.T, string){raw("m.gguf", "GGUF\x03\x00\x00\x00")}, "", GGUF, "DIR/m.gguf: offset 8: number of tensors of 8 bytes passes the end of the file at 8 [E-GGUF-005]"},
		{"empty directory", nil, "", "", "DIR: directory holds no model: none of model.safetensors.index.json, *.apr.index.json, model.safetensors, *.gguf, *.apr [E-FORMAT-001]"},
		{"several", []func(*testing.T, string){apr("a.apr"), apr("b.apr")}, "", "", `DIR: directory holds several *.apr files: "a.apr" and "b.apr" [E-FORMAT-002]`},
		{"missing", nil, "x", "", "DIR/x: file not found [E-FILE-001]"},
		{"fifo", []func(*testing.T, string){func(t *testing.T, dir string) { must(t, syscall.Mkfifo(dir+"/f", 0o600)) }}, "f", "",
			"DIR/f: not a file: only regular files are read, no FIFO, device or socket [E-FILE-003]"},
		{"link out of the directory", []func(*testing.T, string){func(t *testing.T, dir string) { must(t, os.Symlink("/etc/passwd", dir+"/m.apr")) }}, "", "",
			`DIR/m.apr: link leads out of "DIR" [E-FILE-007]`},
		{"zip", []func(*testing.T, string){raw("model.safetensors", "PK\x03\x04")}, "", "", "DIR/model.safetensors: this is a zip archive (PyTorch writes them), which is never read [E-FORMAT-004]"},
		{"pickle", []func(*testing.T, string){raw("m.apr", "\x80\x02}q\x00.")}, "", "", "DIR/m.apr: this is a pickle, which is never read [E-FORMAT-004]"},
		{"gzip", []func(*testing.T, string){raw("m.apr", "\x1f\x8b\x08")}, "", "", "DIR/m.apr: this is a gzip archive, which is never read [E-FORMAT-004]"},
		{"empty", []func(*testing.T, string){raw("m.apr", "")}, "", "", `DIR/m.apr: neither safetensors, .apr nor GGUF: it begins with "" [E-FORMAT-005]`},
		{"text", []func(*testing.T, string){raw("m.apr", "\x1b[2J")}, "", "", `DIR/m.apr: neither safetensors, .apr nor GGUF: it begins with "\x1b[2J" [E-FORMAT-005]`},
		{"large length", []func(*testing.T, string){raw("m", header(1<<40, "{}"))}, "m", "",
			`DIR/m: neither safetensors, .apr nor GGUF: it begins with "\x00\x00\x00\x00\x00\x01\x00\x00{}" [E-FORMAT-005]`},
		{"old apr", []func(*testing.T, string){raw("m", "APR1xxxx")}, "m", Apr, "DIR/m: offset 0: this is the older APR1 container, which is not supported [E-APR-002]"},
		{"index of an index", []func(*testing.T, string){raw("i.json", `{"weight_map":{"a":"i.json"}}`)}, "i.json", "",
			`DIR/i.json: neither safetensors, .apr nor GGUF: it begins with "{\"weight_map\":{\"" [E-FORMAT-005]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			for _, m := range c.make {
				m(t, dir)
			}
			f, kind, err := Open(filepath.Join(dir, c.open))
			if err == nil {
				f.Close()
			}
			want := strings.ReplaceAll(c.err, "DIR", dir)
			if kind != c.want || (err == nil) != (want == "") || err != nil && err.Error() != want {
				t.Errorf("got  %s, %v\nwant %s, %s", kind, err, c.want, want)
			}
			if fault.KindOf(err) == fault.Other {
				t.Error("not a fault")
			}
		})
	}
}

// TestFixtures opens the real models of the repository.
func TestFixtures(t *testing.T) {
	var found []string
	must(t, filepath.WalkDir("../testdata", func(path string, d os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".safetensors") {
			found = append(found, path)
		}
		return err
	}))
	if len(found) == 0 {
		t.Fatal("no safetensors file below testdata")
	}
	for _, path := range found {
		f, kind, err := Open(path)
		if err != nil || kind != Safetensors || len(f.Tensors()) == 0 {
			t.Errorf("%s: %s, %v", path, kind, err)
			continue
		}
		f.Close()
	}
}

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, safetensors.Options{}); err != nil {
		fmt.Println(err)
		return
	}
	f, kind, err := Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	fmt.Println(kind, len(f.Tensors()))
	// Output: safetensors 2
}
