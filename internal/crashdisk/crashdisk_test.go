package crashdisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"
	"testing"

	"apr/internal/disk"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// put makes a file with a content, and syncs it if asked.
func put(t *testing.T, d *Disk, path, text string, sync bool) disk.File {
	t.Helper()
	f, err := d.Create(path)
	must(t, err)
	_, err = f.Write([]byte(text))
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	return f
}

func all(d *Disk) []string {
	var s []string
	for state := range d.States() {
		s = append(s, state.String())
	}
	slices.Sort(s)
	return s
}

// What a power cut may leave is what the model says, state by state.
func TestStates(t *testing.T) {
	for _, tt := range []struct {
		name string
		do   func(*testing.T, *Disk)
		want []string
	}{
		{"nothing synced", func(t *testing.T, d *Disk) { put(t, d, "a", "12", false) },
			[]string{"/\n", "/\n/a \"\"\n", "/\n/a \"1\"\n", "/\n/a \"12\"\n", "/\n/a \"\\x00\\x00\"\n", "/\n/a \"\\x002\"\n"}},
		{"bytes synced", func(t *testing.T, d *Disk) { put(t, d, "a", "12", true) }, []string{"/\n", "/\n/a \"12\"\n"}},
		{"all synced", func(t *testing.T, d *Disk) { put(t, d, "a", "12", true); must(t, d.SyncDir("/")) }, []string{"/\n/a \"12\"\n"}},
		{"name synced", func(t *testing.T, d *Disk) { put(t, d, "a", "1", false); must(t, d.SyncDir("/")) },
			[]string{"/\n/a \"\"\n", "/\n/a \"1\"\n", "/\n/a \"\\x00\"\n"}},
		{"renamed, name lost or not", func(t *testing.T, d *Disk) {
			put(t, d, "a", "1", true)
			must(t, d.SyncDir("/"), d.Rename("a", "b"))
		}, []string{"/\n/a \"1\"\n", "/\n/b \"1\"\n"}},
		{"reordered", func(t *testing.T, d *Disk) { // the second name without the first
			put(t, d, "a", "1", true)
			put(t, d, "b", "2", true)
		}, []string{"/\n", "/\n/a \"1\"\n", "/\n/a \"1\"\n/b \"2\"\n", "/\n/b \"2\"\n"}},
		{"removed", func(t *testing.T, d *Disk) {
			put(t, d, "a", "1", true)
			must(t, d.SyncDir("/"), d.Remove("a"))
		}, []string{"/\n", "/\n/a \"1\"\n"}},
		{"a directory within an unsynced one", func(t *testing.T, d *Disk) {
			must(t, d.Mkdir("x"))
			put(t, d, "x/a", "1", true)
			must(t, d.SyncDir("x"))
		}, []string{"/\n", "/\n/x/\n/x/a \"1\"\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := New()
			tt.do(t, d)
			slices.Sort(tt.want)
			if got := all(d); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// What is done to one state does not reach another.
func TestStatesAreSeparate(t *testing.T) {
	d := New()
	must(t, d.Mkdir("x"), d.SyncDir("/"))
	put(t, d, "x/a", "1", true)
	must(t, d.SyncDir("x"))
	put(t, d, "y", "2", true)
	for s := range d.States() {
		if err := s.Remove("x/a"); err != nil {
			t.Error(err)
		}
	}
}

// A failed sync makes nothing durable, and neither does trying it again.
func TestFailedSyncIsFinal(t *testing.T) {
	for _, op := range []string{"sync", "syncdir"} {
		d, failed := New(), false
		d.Fault = func(_ int, o string) error {
			if o == op && !failed {
				failed = true
				return syscall.EIO
			}
			return nil
		}
		f := put(t, d, "a", "1", false)
		for range 2 {
			_ = f.Sync()
			_ = d.SyncDir("/")
		}
		if s := all(d); !failed || len(s) < 2 {
			t.Errorf("%s: %q: the second sync has made it durable", op, s)
		}
		b, err := d.Open("a")
		must(t, err)
		if text, _ := io.ReadAll(b); string(text) != "1" {
			t.Errorf("read %q: the cache still has it", text)
		}
	}
}

func TestFaults(t *testing.T) {
	d := New()
	d.Fault = func(int, string) error {
		return ErrShort
	}
	f, err := d.Create("a")
	must(t, err)
	if n, err := f.Write([]byte("1234")); n != 2 || err != nil {
		t.Errorf("short write: %d, %v", n, err)
	}
	d.Fault = func(int, string) error { return syscall.ENOSPC }
	if n, err := f.Write([]byte("1234")); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("full disk: %d, %v", n, err)
	}
	if err := d.Rename("a", "b"); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	d.Fault = nil
	must(t, f.Close())
	for what, err := range map[string]error{
		"write after close": second(f.Write([]byte("1"))), "file twice": second(d.Create("a")), "missing": second(d.Open("x")),
		"below a file": d.Mkdir("a/b"), "rename of nothing": d.Rename("x", "y"), "removal of nothing": d.Remove("x"),
	} {
		if err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	must(t, d.Mkdir("dir"), d.Mkdir("dir/sub"))
	if err := d.Remove("dir"); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Error(err)
	}
	if err := d.Rename("a", "dir"); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if d.Operations() < 10 {
		t.Errorf("%d operations", d.Operations())
	}
}

func second[T any](_ T, err error) error { return err }

// A file whose name was synced, but not its bytes.
func Example() {
	d := New()
	f, _ := d.Create("/a")
	fmt.Fprint(f, "ab")
	_ = d.SyncDir("/")
	for s := range d.States() {
		fmt.Printf("%q\n", s)
	}
	// Output:
	// "/\n/a \"\"\n"
	// "/\n/a \"a\"\n"
	// "/\n/a \"ab\"\n"
	// "/\n/a \"\\x00\\x00\"\n"
	// "/\n/a \"\\x00b\"\n"
}
