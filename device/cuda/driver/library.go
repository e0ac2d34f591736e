package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"apr/internal/fault"
)

// Report says how the search for a library ended.
type Report struct {
	Library Library   `json:"library"`
	Path    string    `json:"path"`    // of the file that was opened, links resolved; empty if none was
	Version string    `json:"version"` // as the library says, or else its file name; empty if neither does
	CUDA    int       `json:"-"`       // of libcuda: what the driver serves, 13000 is 13.0; 0 if it does not say
	Place   string    `json:"place"`   // the rule by which it was found
	Tried   []Attempt `json:"tried"`   // in order, the successful one last
}

// Found reports whether the library was opened.
func (r Report) Found() bool { return r.Path != "" }

// Err returns nil if the library was found, else a fault of kind Unavailable that lists everything that was tried.
func (r Report) Err() error {
	if r.Found() {
		return nil
	}
	if !Dynamic {
		return builtWithout()
	}
	return fault.New(fault.Unavailable, "%s was not found; tried %s", r.Library, r.list()).WithID("E-CUDA-041").
		WithHint("%sset %s to the folder that holds it; apr doctor shows the search", without[r.Library], LibDirVariable)
}

// without says what can be done without a library.
var without = map[Library]string{
	CUDA: "--backend cpu works everywhere; for a GPU install NVIDIA's driver, or ",
	NCCL: "one GPU needs none of it; " + NcclVariable + " names the file, PyTorch brings one in nvidia/nccl/lib, or ",
}

// list renders the attempts: a file that was there but could not be opened with its error, absent ones by path.
func (r Report) list() string {
	if len(r.Tried) == 0 {
		return "nothing: the driver is too old for every version of it"
	}
	var b strings.Builder
	for i, a := range r.Tried {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%s (%s: %s)", a.Path, a.Place, a.Error)
	}
	return b.String()
}

// builtWithout is the error of everything in a binary that cannot open libraries.
func builtWithout() *fault.Error {
	return fault.New(fault.Unavailable, "this binary was built without the CUDA device (build tag static, or not linux on amd64 or arm64)").WithID("E-CUDA-042")
}

// library is an opened shared library. It is never closed.
type library struct {
	handle uintptr
	path   string // absolute, links resolved
}

// opener opens a shared library and says which file it is, links resolved. (A bare name is searched by the dynamic
// linker.)
type opener func(name string) (*library, error)

// find opens the first of the places that serves.
func (s System) find(l Library, driverVersion int, open opener) (*library, Report) {
	r := Report{Library: l}
	for _, a := range s.Search(l, driverVersion) {
		if a.Error != "" {
			r.Tried = append(r.Tried, a)
			continue
		}
		lib, err := open(a.Path)
		if err != nil {
			a.Error = strings.TrimPrefix(err.Error(), a.Path+": ")
			r.Tried = append(r.Tried, a)
			continue
		}
		r.Tried = append(r.Tried, a)
		r.Path, r.Place, r.Version = lib.path, a.Place, versionOfName(lib.path)
		return lib, r
	}
	return nil, r
}

// versionOfName returns the version in the name of a library's file if it has more than a major: "580.82.07" of
// libcuda.so.580.82.07.
func versionOfName(name string) string {
	_, v, ok := strings.Cut(filepath.Base(name), ".so.")
	if !ok || !strings.Contains(v, ".") {
		return ""
	}
	return v
}

// resolve returns the file behind a path, itself if that cannot be told.
func resolve(name string) string {
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	return name
}

// loadedAs returns which mapped file of a /proc/self/maps table has the soname, for a library opened by bare name.
func loadedAs(maps, soname string) (string, error) {
	for line := range strings.Lines(maps) {
		i := strings.IndexByte(line, '/')
		if i < 0 {
			continue
		}
		file := strings.TrimSuffix(line[i:], "\n")
		base := filepath.Base(file)
		stem, _, _ := strings.Cut(soname, ".so.")
		if base == soname || strings.HasPrefix(base, stem+".so.") {
			return file, nil
		}
	}
	return "", errors.New("no mapped file has that name")
}

// openHost opens a library on this machine.
func openHost(name string) (*library, error) {
	handle, err := dlopen(name)
	if err != nil {
		return nil, err
	}
	lib := &library{handle: handle, path: name}
	if filepath.IsAbs(name) {
		lib.path = resolve(name)
	} else if maps, err := os.ReadFile("/proc/self/maps"); err == nil {
		if file, err := loadedAs(string(maps), name); err == nil {
			lib.path = resolve(file)
		}
	}
	return lib, nil
}

// open finds and opens a library on this machine for a driver of that version.
func open(l Library, driverVersion int) (*library, Report) {
	return Host().find(l, driverVersion, openHost)
}

// procedure is a function of a library.
type procedure struct {
	name string
	addr uintptr
}

// bind looks up a function.
func (l *library) bind(name string) (procedure, error) {
	addr, err := dlsym(l.handle, name)
	if err != nil {
		return procedure{}, fault.In(fault.Unavailable, l.path, "has no function %s", name).WithID("E-CUDA-043").Because(err).
			WithHint("a newer library is needed")
	}
	return procedure{name, addr}, nil
}
