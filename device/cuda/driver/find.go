package driver

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Library is a shared library that the CUDA device can use, by its name without version.
type Library string

// The libraries. Without CUDA there is no CUDA device; without CublasLt matrix products are those of the project's own
// kernels; without NCCL one GPU is used; without NVML utilisation is not shown.
const (
	CUDA     Library = "libcuda"
	CublasLt Library = "libcublasLt"
	NCCL     Library = "libnccl"
	NVML     Library = "libnvidia-ml"
)

// Libraries are all of them, the required one first.
var Libraries = []Library{CUDA, CublasLt, NCCL, NVML}

// Sonames returns the file names of the library that a driver of that version (13000 is 13.0) can serve, best first.
// Only cublasLt exists in several majors; a major needs a driver of at least the same. A version of 0, not known, allows
// all.
func (l Library) Sonames(driverVersion int) []string {
	switch l {
	case CublasLt:
		var names []string
		for _, major := range []int{13, 12} {
			if driverVersion == 0 || driverVersion/1000 >= major {
				names = append(names, "libcublasLt.so."+strconv.Itoa(major))
			}
		}
		return names
	case NCCL:
		return []string{"libnccl.so.2"}
	}
	return []string{string(l) + ".so.1"}
}

// LibDirVariable names the folder whose libraries are taken before all others.
const LibDirVariable = "APR_CUDA_LIB_DIR"

// The rules by which a place is searched, in their order.
const (
	PlaceOverride = LibDirVariable
	PlaceNccl     = NcclVariable
	PlaceLinker   = "dynamic linker"
	PlaceToolkit  = "toolkit folder"
	PlaceSystem   = "system folder"
	PlaceConda    = "conda"
	PlaceWheel    = "Python wheel"
	PlaceOllama   = "Ollama"
)

// Attempt is one place where a library was looked for.
type Attempt struct {
	Path  string `json:"path"`  // absolute path, or a bare name for the dynamic linker's own search
	Place string `json:"place"` // the rule that names it
	Error string `json:"error"` // why it did not serve; empty: not tried yet, or it did
}

// Absent is the error of an attempt whose file is not there.
const Absent = "no such file"

// System is the machine as the search sees it.
type System struct {
	Files  fs.FS                    // the file system from its root, without the leading slash
	Getenv func(name string) string // the environment; "" is unset
	Arch   string                   // GOARCH
}

// Host returns the machine that the program runs on.
func Host() System {
	getenv := func(name string) string {
		v := os.Getenv(name)
		if (name == LibDirVariable || name == NcclVariable) && v != "" {
			if abs, err := filepath.Abs(v); err == nil {
				return abs
			}
		}
		return v
	}
	return System{Files: os.DirFS("/"), Getenv: getenv, Arch: runtime.GOARCH}
}

// Search returns where a library may be found, best first, for a driver of that version (0: not known):
//
//	APR_NCCL, the file of libnccl → APR_CUDA_LIB_DIR, then for each soname, newest major first:
//	the dynamic linker's search → /usr/local/cuda*/lib64 → /usr/lib/{x86_64,aarch64}-linux-gnu, /usr/local/nvidia/lib64,
//	/usr/lib → $CONDA_PREFIX/lib → nvidia/… of the site-packages of $VIRTUAL_ENV, $CONDA_PREFIX, ~/.local, /usr/local →
//	Ollama's folders.
//
// It opens nothing: a file that is not there has its Error set already, every other attempt may be tried in turn.
func (s System) Search(l Library, driverVersion int) []Attempt {
	var all []Attempt
	names := l.Sonames(driverVersion)
	if file := s.Getenv(NcclVariable); file != "" && l == NCCL {
		all = append(all, s.attempt(file, PlaceNccl))
	}
	if dir := s.Getenv(LibDirVariable); dir != "" {
		for _, name := range names {
			all = append(all, s.attempt(path.Join(dir, name), PlaceOverride))
		}
	}
	folders := s.folders(l)
	for _, name := range names {
		all = append(all, Attempt{Path: name, Place: PlaceLinker})
		for _, f := range folders {
			all = append(all, s.attempt(path.Join(f.path, name), f.place))
		}
	}
	return all
}

// attempt looks whether a file is there.
func (s System) attempt(name, place string) Attempt {
	a := Attempt{Path: name, Place: place}
	info, err := fs.Stat(s.Files, relative(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		a.Error = Absent
	case err != nil:
		a.Error = err.Error()
	case info.IsDir():
		a.Error = "is a folder"
	}
	return a
}

// usrLocal is where toolkits and a machine's own Python packages are.
const usrLocal = "/usr/local"

// folder is a place to search.
type folder struct{ path, place string }

// folders returns the places after the dynamic linker, in order. A pattern that matches nothing stands for itself, so
// that a report says it was looked for.
func (s System) folders(l Library) (all []folder) {
	add := func(place string, paths ...string) {
		for _, p := range paths {
			all = append(all, folder{p, place})
		}
	}
	add(PlaceToolkit, s.expand(usrLocal, "cuda", "lib64")...)
	if triple := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[s.Arch]; triple != "" {
		add(PlaceSystem, path.Join("/usr/lib", triple))
	}
	add(PlaceSystem, "/usr/local/nvidia/lib64", "/usr/lib")
	conda := s.Getenv("CONDA_PREFIX")
	if conda != "" {
		add(PlaceConda, path.Join(conda, "lib"))
	}
	if l == CUDA || l == NVML {
		return all // parts of the driver: neither wheels nor Ollama carry them
	}
	part := map[Library]string{CublasLt: "cublas", NCCL: "nccl"}[l]
	for _, root := range s.pythonRoots(conda) {
		for _, packages := range s.expand(path.Join(root, "lib"), "python3", "") {
			kinds := []string{"site-packages"}
			if root == usrLocal { // Debian's Python installs there under another name
				kinds = append(kinds, "dist-packages")
			}
			for _, kind := range kinds {
				base := path.Join(packages, kind, "nvidia")
				add(PlaceWheel, path.Join(base, "cu13/lib"), path.Join(base, part, "lib"))
			}
		}
	}
	for _, root := range []string{"/usr/local/lib/ollama", "/usr/lib/ollama"} {
		add(PlaceOllama, path.Join(root, "cuda_v13"), path.Join(root, "cuda_v12"), root)
	}
	return all
}

// pythonRoots returns the prefixes whose lib/python3*/site-packages may hold NVIDIA's wheels.
func (s System) pythonRoots(conda string) (roots []string) {
	home := s.Getenv("HOME")
	if home != "" {
		home = path.Join(home, ".local")
	}
	for _, root := range []string{s.Getenv("VIRTUAL_ENV"), conda, home, usrLocal} {
		if root != "" && !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots
}

// expand returns dir/prefix*/below for the entries of dir that begin with prefix, the highest version first and one
// without version before all, or the pattern itself when there are none.
func (s System) expand(dir, prefix, below string) []string {
	entries, _ := fs.ReadDir(s.Files, relative(dir)) // not there, or not ours to read: no entries
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		names = []string{prefix + "*"}
	}
	slices.SortFunc(names, func(a, b string) int {
		if a == prefix || b == prefix {
			return cmp.Compare(len(a), len(b))
		}
		return slices.Compare(numbers(b), numbers(a))
	})
	for i, n := range names {
		names[i] = path.Join(dir, n, below)
	}
	return names
}

// numbers returns the decimal numbers in s: "cuda-12.10" gives 12, 10.
func numbers(s string) (ns []int) {
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r < '0' || r > '9' }) {
		if n, err := strconv.Atoi(f); err == nil {
			ns = append(ns, n)
		}
	}
	return ns
}

// relative turns an absolute path into one of an fs.FS of the root.
func relative(p string) string {
	p = strings.TrimPrefix(path.Clean("/"+p), "/")
	if p == "" {
		return "."
	}
	return p
}
