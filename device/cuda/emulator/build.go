package emulator

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sync/errgroup"

	"apr/device/cuda/kernel/manifest"
)

// keep is how long unused files stay in the cache.
const keep = 2 * 24 * time.Hour

// Build compiles the emulator with all kernels, unless that was done before, and returns the folder with libcuda.so.1,
// libcublasLt.so.13 and libnccl.so.2. Errors: no compiler, or a source that does not compile. A process builds once:
// sources that change later are seen by the next.
func Build() (dir string, err error) { return buildOnce() }

var buildOnce = sync.OnceValues(func() (string, error) {
	b, err := newBuilder(nil)
	if err != nil {
		return "", err
	}
	dir, broken, err := b.build()
	if err != nil {
		return "", err
	}
	for _, module := range slices.Sorted(maps.Keys(broken)) {
		return "", broken[module]
	}
	return dir, nil
})

// builder is one build: an object for every source, linked into the three libraries.
type builder struct {
	compiler string
	version  string
	flags    []string
	root     string // the module's folder
	kernels  string // the folder device/cuda/kernel
	home     string // this package's folder
	cache    string
	more     []string // further .cu files
}

// object is one source on its way into a library.
type object struct {
	source string
	module string // of a .cu file
	path   string // of the object file
}

func newBuilder(more []string) (*builder, error) {
	root, err := moduleRoot()
	if err != nil {
		return nil, err
	}
	b := &builder{root: root, more: more}
	b.kernels, b.home = filepath.Join(root, "device/cuda/kernel"), filepath.Join(root, "device/cuda/emulator")
	for _, name := range []string{"c++", "g++", "clang++", "clang++-19"} {
		if b.compiler, err = exec.LookPath(name); err == nil {
			break
		}
	}
	if err != nil {
		return nil, errors.New("emulator: a C++ compiler is needed: none of c++, g++, clang++ was found")
	}
	version, err := exec.Command(b.compiler, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("emulator: %s --version: %w", b.compiler, err)
	}
	b.version = string(version)
	b.flags = []string{"-std=c++17", "-g1", "-fPIC", "-w", "-DAPR_HOST", "-pthread", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti",
		"-fno-math-errno", "-fno-strict-aliasing"}
	if runtime.GOARCH == "amd64" && hasFMA() {
		b.flags = append(b.flags, "-march=x86-64-v3")
	}
	user, err := os.UserCacheDir()
	if err != nil {
		user = os.TempDir()
	}
	b.cache = filepath.Join(user, "apr", "emulator")
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return nil, err
	}
	b.kernels, err = b.overlaid()
	return b, err
}

// moduleRoot returns the folder of go.mod, at or above the working directory.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if text, err := os.ReadFile(filepath.Join(d, "go.mod")); err == nil && bytes.HasPrefix(text, []byte("module apr\n")) {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("emulator: %s is not inside the module apr, whose kernels are wanted", dir)
		}
	}
}

// hasFMA reports whether this processor has what -march=x86-64-v3 makes use of.
func hasFMA() bool {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == "flags" {
			return slices.Contains(f, "avx2") && slices.Contains(f, "fma") && slices.Contains(f, "bmi2") && slices.Contains(f, "movbe")
		}
	}
	return false
}

// build returns the folder of the libraries. Kernels that do not compile are left out and returned by module, so that
// the tests of the others can run.
func (b *builder) build() (dir string, broken map[string]error, err error) {
	lock := flock.New(filepath.Join(b.cache, "lock"))
	if err := lock.Lock(); err != nil {
		return "", nil, err
	}
	defer func() { _ = lock.Unlock() }() // the process could as well end here
	b.prune()
	objects, err := b.objects()
	if err != nil {
		return "", nil, err
	}
	broken = map[string]error{}
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for _, o := range objects {
		g.Go(func() error {
			err := b.compile(o)
			if err != nil && o.module != "" {
				mu.Lock()
				defer mu.Unlock()
				broken[o.module] = err
				return nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return "", nil, err
	}
	dir, err = b.link(slices.DeleteFunc(objects, func(o object) bool { return broken[o.module] != nil }))
	return dir, broken, err
}

// objects finds the sources and names their objects by the hash of all that goes into them: compiler, flags, source and
// headers. Folders do not count, so copies of the module share their objects.
func (b *builder) objects() ([]object, error) {
	glob := func(dir, pattern string) []string {
		found, _ := filepath.Glob(filepath.Join(dir, pattern))
		return found
	}
	build, err := os.ReadFile(filepath.Join(b.home, "build.go")) // more flags are in there
	if err != nil {
		return nil, err
	}
	headers := reader{folders: []string{b.kernels, b.home}, text: map[string]string{}}
	var objects []object
	for _, path := range slices.Concat(glob(b.home, "runtime/*.cc"), glob(b.kernels, "*.cu"), b.more) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if d, err := manifest.Declare(string(text)); err == nil && d.Target != manifest.BaseTarget && !d.Emulated {
			continue // its instructions are not emulated; what declares nothing is the emulator's own, or a test's
		}
		h := sha256.New()
		fmt.Fprintln(h, b.compiler, b.version, b.flags)
		h.Write(build)
		if err := headers.hash(h, path, map[string]bool{}); err != nil {
			return nil, err
		}
		name, isKernel := strings.CutSuffix(filepath.Base(path), ".cu")
		o := object{source: path, path: filepath.Join(b.cache, hex.EncodeToString(h.Sum(nil)[:16])+".o")}
		if isKernel {
			o.module = name
		}
		objects = append(objects, o)
	}
	return objects, nil
}

// reader reads sources and what they include.
type reader struct {
	folders []string          // of -I
	text    map[string]string // by path
}

var include = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// hash writes the source and each header that it includes and seen does not have, by name. A header in no folder is the
// compiler's to complain of.
func (r reader) hash(w io.Writer, path string, seen map[string]bool) error {
	text, ok := r.text[path]
	if !ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text = string(b)
		r.text[path] = text
	}
	seen[path] = true
	fmt.Fprintln(w, filepath.Base(path), len(text))
	_, _ = io.WriteString(w, text) // a hash
	for _, m := range include.FindAllStringSubmatch(text, -1) {
		for _, dir := range append([]string{filepath.Dir(path)}, r.folders...) {
			header := filepath.Join(dir, m[1])
			if _, err := os.Stat(header); err != nil {
				continue
			}
			if !seen[header] {
				if err := r.hash(w, header, seen); err != nil {
					return err
				}
			}
			break
		}
	}
	return nil
}

// compile makes o.path.
func (b *builder) compile(o object) error {
	if fresh(o.path) {
		return nil
	}
	temp := fmt.Sprintf("%s.%d", o.path, os.Getpid())
	defer os.Remove(temp)
	kind := []string{"-O3", "-ffp-contract=fast"}
	if o.module != "" { // kernels round as their source says
		kind = []string{"-O2", "-ffp-contract=off", "-DAPR_MODULE=" + o.module}
	}
	folders := []string{"-I" + b.kernels, "-I" + b.home, "-ffile-prefix-map=" + b.root + "/="}
	args := slices.Concat(b.flags, folders, kind, []string{"-x", "c++", "-c", o.source, "-o", temp})
	if out, err := exec.Command(b.compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("emulator: %s does not compile: %w\n%s", o.source, err, out)
	}
	return os.Rename(temp, o.path)
}

// link makes the folder of the libraries out of the objects.
func (b *builder) link(objects []object) (string, error) {
	h := sha256.New()
	var driver, blas, nccl []string
	for _, o := range objects {
		fmt.Fprintln(h, o.path)
		switch filepath.Base(o.source) {
		case "cublaslt.cc":
			blas = append(blas, o.path)
		case "nccl.cc":
			nccl = append(nccl, o.path)
		default:
			driver = append(driver, o.path)
		}
	}
	dir := filepath.Join(b.cache, hex.EncodeToString(h.Sum(nil)[:16]))
	if fresh(dir) {
		return dir, nil
	}
	temp, err := os.MkdirTemp(b.cache, "link")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp)
	// The name under which libcublasLt and libnccl need libcuda is of this build alone: a process may hold several.
	unique := "libcuda-" + filepath.Base(dir) + ".so.1"
	if err := os.Symlink("libcuda.so.1", filepath.Join(temp, unique)); err != nil {
		return "", err
	}
	for _, objects := range []*[]string{&blas, &nccl} {
		*objects = append(*objects, filepath.Join(temp, unique), "-Wl,-rpath,$ORIGIN")
	}
	for _, l := range []struct {
		name, soname string
		objects      []string
	}{
		{"libcuda.so.1", unique, driver}, {"libcublasLt.so.13", "libcublasLt.so.13", blas},
		{"libnccl.so.2", "libnccl.so.2", nccl},
	} {
		args := slices.Concat([]string{"-shared", "-pthread", "-Wl,-z,defs", "-Wl,-soname," + l.soname, "-o", filepath.Join(temp, l.name)}, l.objects, []string{"-lm"})
		if out, err := exec.Command(b.compiler, args...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("emulator: linking %s: %w\n%s", l.name, err, out)
		}
	}
	return dir, os.Rename(temp, dir)
}

// fresh reports whether a cached file exists, and notes that it is in use.
func fresh(path string) bool {
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// prune removes what has not been used for long; it is a cache, so failures do not matter.
func (b *builder) prune() {
	entries, _ := os.ReadDir(b.cache)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.Name() != "lock" && time.Since(info.ModTime()) > keep {
			os.RemoveAll(filepath.Join(b.cache, e.Name()))
		}
	}
}
