//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"apr/internal/contracttest"
	"apr/internal/fault"
)

// The first arguments of the test program when it is a program that hides what it leaves, and an ordinary user who runs that.
const (
	hideName     = "-hide"
	ordinaryName = "-ordinary"
)

func init() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case hideName:
		if err := hide(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	case ordinaryName:
		if err := ordinary(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("removed")
		os.Exit(0)
	}
}

// hide leaves directories that nobody may read in the present one: one in the other, some deeper than a path may be long, with a name
// that Remove may want, and with files in them.
func hide() error {
	err := errors.Join(os.Mkdir("nothing", 0), os.Mkdir("apr-moved-1", 0o300), os.WriteFile("apr-moved-1/file", nil, 0),
		os.Mkdir("a", 0o300), os.Mkdir("a/b", 0o300), os.Mkdir("a/b/c", 0), os.WriteFile("a/b/file", nil, 0))
	name := strings.Repeat("d", 100)
	for range 60 { // 6000 bytes; a path has at most 4096
		err = errors.Join(err, os.Mkdir(name, 0o300), os.Chdir(name))
	}
	return errors.Join(err, os.WriteFile("file", nil, 0))
}

// ordinary runs such a program in a box, and a whole one that makes its own directory.
func ordinary() error {
	b, err := Open(context.Background(), DefaultLimits, false)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := b.MakeDir()
	if err != nil {
		return err
	}
	p := Program{Argv: []string{self, hideName}, Dir: dir, Read: []string{self}}
	for range 2 {
		r, err := b.Run(context.Background(), p)
		if err != nil || r.Exit != 0 {
			return fmt.Errorf("%+v, %w", r, err)
		}
		p.Dir = ""
	}
	if _, err := os.Lstat(filepath.Join(dir, "a")); err != nil {
		return fmt.Errorf("it left nothing: %w", err)
	}
	if err := Remove(dir); err != nil {
		return err
	}
	left, err := os.ReadDir(os.TempDir())
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%s is left", left[0])
	}
	return err
}

// What a program leaves is removed, also directories that its user may not read, one in the other and deeper than a path may be long.
// An administrator runs this as himself and as somebody else.
func TestRemove(t *testing.T) {
	if !able() {
		return // TestRun says what happens then
	}
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp("", "remove-test-") // everybody may go through it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	self := filepath.Join(base, "self")
	if err := errors.Join(os.Chmod(base, 0o755), os.WriteFile(self, text, 0o755), os.Chmod(self, 0o755)); err != nil {
		t.Fatal(err)
	}
	users := []int{os.Geteuid()}
	if users[0] == 0 && canBecome(t) {
		users = append(users, 65534)
	}
	for _, user := range users {
		tmp := filepath.Join(base, fmt.Sprint(user))
		if err := os.Mkdir(tmp, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, ordinaryName)
		cmd.Env, cmd.Dir = append(os.Environ(), "TMPDIR="+tmp), "/"
		if user != users[0] {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
			if err := os.Chown(tmp, user, user); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "removed\n" {
			t.Errorf("user %d: %v: %s", user, err, out)
		}
		contracttest.Cases(t, 1)
	}
}

// Links are removed, not followed; what cannot be removed is an error that names the directory.
func TestRemoveFollowsNoLink(t *testing.T) {
	outside, dir := t.TempDir(), filepath.Join(t.TempDir(), "program")
	kept := filepath.Join(outside, "kept")
	t.Cleanup(func() { _ = os.Chmod(outside, 0o700) })
	if err := errors.Join(os.WriteFile(kept, nil, 0o400), os.Chmod(outside, 0o500), os.MkdirAll(dir+"/a/b", 0o700), os.Symlink(outside, dir+"/link"),
		os.Symlink(outside, dir+"/a/link"), os.Symlink(kept, dir+"/a/b/file"), os.Link(kept, dir+"/a/hard")); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
	info, err := os.Stat(outside)
	if err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("what a link leads to has mode %v (%v)", info.Mode(), err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	if err := Remove("/proc/self/task"); fault.KindOf(err) != fault.IO || !strings.Contains(err.Error(), "/proc/self/task") {
		t.Errorf("what cannot be removed: %v", err)
	}
	contracttest.Cases(t, 2)
}

// What killed processes left is removed, whatever it was for; somebody's own directory with such a name is not, nor one that another file
// stands beside.
func TestLeftOvers(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	old := time.Now().Add(-2 * youngest)
	var left []string
	for _, prefix := range []string{dirPrefix, "apr-go-"} {
		dir, err := MakeTemp(prefix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "0.a"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		left = append(left, dir)
	}
	kept := []string{dirPrefix + "notes", dirPrefix + "empty", dirPrefix + "other", dirPrefix + "link", "apr-go-notes"}
	for i, name := range kept {
		kept[i] = filepath.Join(tmp, name)
		if err := errors.Join(os.Mkdir(kept[i], 0o700), os.WriteFile(filepath.Join(kept[i], "file"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(left[0] + markSuffix)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(kept[3])
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(tmp, "target")
	if err := errors.Join(os.WriteFile(kept[1]+markSuffix, nil, 0o600), os.WriteFile(kept[2]+markSuffix, text, 0o600),
		os.WriteFile(target, []byte(identity(info)), 0o600), os.Symlink(target, kept[3]+markSuffix)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range append(left, kept...) {
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	check := func(gone bool) {
		t.Helper()
		for i, dir := range append(left, kept...) {
			_, err := os.Lstat(dir)
			if want := gone && i < len(left); errors.Is(err, os.ErrNotExist) != want {
				t.Errorf("%s: %v, want it gone: %v", dir, err, want)
			}
		}
	}
	if err := removeLeftOvers(); err != nil {
		t.Fatal(err)
	}
	check(false) // this process holds them
	for _, dir := range left {
		unlock(dir) // as the end of a process does
	}
	if err := removeLeftOvers(); err != nil {
		t.Fatal(err)
	}
	check(true)
	for _, dir := range left {
		if _, err := os.Lstat(dir + markSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file of %s is left: %v", dir, err)
		}
	}
	contracttest.Cases(t, len(left)+len(kept))
}
