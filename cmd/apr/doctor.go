package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"apr/device/cpu"
	"apr/device/cuda"
	"apr/internal/atomicfile"
	"apr/internal/cli"
	"apr/internal/fault"
)

// The results of a check.
const (
	checkOK      = "ok"
	checkMissing = "missing" // something that the program can do without
	checkFailed  = "failed"  // something that is there and does not work
)

// doctorCheck is the result of one look at the machine.
type doctorCheck struct {
	ID     string  `json:"id"`
	Status string  `json:"status"`
	Detail string  `json:"detail"`
	Fix    *string `json:"fix"` // what would make it right, null if nothing is wrong
}

// doctorBackend says whether a backend works.
type doctorBackend struct {
	Name   string  `json:"name"`
	Usable bool    `json:"usable"`
	Device *string `json:"device"`
	Reason *string `json:"reason"` // why not
}

// doctorSearch is the search for one library.
type doctorSearch struct {
	Library string          `json:"library"`
	Path    *string         `json:"path"`
	Version *string         `json:"version"`
	Tried   []doctorAttempt `json:"tried"`
}

// print says where a library was looked for: by each rule the folders without it, and every file that could not be opened.
func (s doctorSearch) print(p *cli.Page) {
	p.Printf("\n%s was looked for\n", s.Library)
	var places []string
	folders := map[string][]string{}
	for _, a := range s.Tried {
		if a.Error != cuda.Absent {
			p.Printf("  %s: %s: %s\n", a.Place, cli.Clean(a.Path), cli.Clean(a.Error))
			continue
		}
		if folders[a.Place] == nil {
			places = append(places, a.Place)
		}
		if dir := filepath.Dir(a.Path); !slices.Contains(folders[a.Place], dir) {
			folders[a.Place] = append(folders[a.Place], dir)
		}
	}
	for _, place := range places {
		p.Printf("  %s: not in %s\n", place, cli.Clean(strings.Join(folders[place], ", ")))
	}
}

// broken returns the files that are there and cannot be opened.
func (s doctorSearch) broken() (files []doctorAttempt) {
	for _, a := range s.Tried {
		if filepath.IsAbs(a.Path) && a.Error != "" && a.Error != cuda.Absent {
			files = append(files, a)
		}
	}
	return files
}

type doctorAttempt struct {
	Path  string `json:"path"`
	Place string `json:"place"`
	Error string `json:"error"` // empty for the file that was opened
}

// doctorResult is the JSON of apr doctor.
type doctorResult struct {
	Verdict   string          `json:"verdict"` // what this machine can do now, in a sentence
	Checks    []doctorCheck   `json:"checks"`
	Devices   []gpuDevice     `json:"devices"`
	Adapters  []vulkanAdapter `json:"adapters"` // of Vulkan
	Libraries []doctorSearch  `json:"libraries"`
	Backends  []doctorBackend `json:"backends"`
	verbose   bool
}

// add appends a check; fix may be empty.
func (r *doctorResult) add(id, status, detail, fix string) {
	r.Checks = append(r.Checks, doctorCheck{id, status, detail, orNull(fix)})
}

// Text prints the verdict, then what is not fine and what to do about it. With --verbose it prints every check, where
// missing libraries were looked for, and the devices.
func (r doctorResult) Text(p *cli.Page) {
	p.Printf("%s\n", cli.Wrap(r.Verdict, p.Columns()))
	if !r.verbose {
		r.printProblems(p)
		return
	}
	p.Printf("\n")
	for _, b := range r.Backends {
		if b.Usable {
			p.Printf("%s: --backend %s, %s\n", p.Good("works"), b.Name, cli.Clean(*b.Device))
		} else {
			p.Printf("%s: --backend %s: %s\n", p.Bad("does not work"), b.Name, cli.Clean(*b.Reason))
		}
	}
	p.Printf("\n")
	var rows [][]string
	for _, c := range r.Checks {
		rows = append(rows, []string{c.ID, c.Status, c.Detail})
	}
	p.Table([]string{"check", "result", "detail"}, rows)
	line := "\n"
	for _, c := range r.Checks {
		if c.Fix != nil {
			p.Printf("%s%s: %s\n", line, c.ID, cli.Clean(*c.Fix))
			line = ""
		}
	}
	for _, s := range r.Libraries {
		if s.Path == nil {
			s.print(p)
		}
	}
	if len(r.Devices) > 0 {
		p.Printf("\n")
		printDevices(p, r.Devices)
	}
	if len(r.Adapters) > 0 {
		p.Printf("\n")
		printAdapters(p, r.Adapters)
	}
}

// printProblems prints what failed or is missing. Without a driver its libraries are of no use, and are left out.
func (r doctorResult) printProblems(p *cli.Page) {
	line := "\n"
	for _, c := range r.Checks {
		library := strings.HasPrefix(c.ID, "lib") && c.ID != "libcuda"
		if c.Status == checkOK || c.Status == checkMissing && (c.Fix == nil || library && !r.found("libcuda")) {
			continue
		}
		text, name, style := c.Status+": "+c.Detail, c.ID+":", p.Bold
		if c.Fix != nil {
			text += ". " + strings.ToUpper((*c.Fix)[:1]) + (*c.Fix)[1:]
		}
		if c.Status == checkFailed {
			style = p.Bad
		}
		p.Printf("%s%s%s\n", line, style(name), strings.TrimPrefix(cli.Wrap(name+" "+text, p.Columns()), name))
		line = ""
	}
	p.Printf("\napr doctor -v shows all %d checks\n", len(r.Checks))
}

// examine looks at everything. It changes nothing but for a file that it makes and removes where runs go.
func examine(isa, managed, runs string, getenv func(string) string) doctorResult {
	r := doctorResult{Devices: []gpuDevice{}, Adapters: []vulkanAdapter{}}
	r.examineCPU(isa)
	r.examineLibraries()
	r.examineCUDA(managed)
	r.examineVulkan()
	r.examineMemory()
	r.examineCache(getenv)
	r.examineDisk(runs)
	r.Verdict = r.verdict()
	return r
}

func (r *doctorResult) examineCPU(isa string) {
	d, err := cpu.New(cpu.Options{ISA: isa})
	if err != nil {
		r.add("cpu", checkFailed, err.Error(), hintOf(err))
		r.unusable("cpu", err)
		return
	}
	defer d.Close()
	info := d.Info()
	what := fmt.Sprintf("%s, %s, %d workers", info.Name, info.ISA, info.Workers)
	r.add("cpu", checkOK, what, "")
	r.Backends = append(r.Backends, doctorBackend{Name: "cpu", Usable: true, Device: &what})
}

// libraryNotes say what a library is for, what happens without it, and how to get it.
var libraryNotes = map[string]struct{ without, fix string }{
	"libcuda":      {"the CUDA device cannot be used", "install NVIDIA's driver (525 or newer)"},
	"libcublasLt":  {"matrix products on a GPU run on the program's own kernels, which are slower", "install cuBLAS 12 or 13 (CUDA toolkit, or the Python wheel nvidia-cublas)"},
	"libnccl":      {"nothing is lost: no command uses it yet, and a run is on one GPU", ""},
	"libnvidia-ml": {"utilisation and power of a GPU are not shown", "it comes with NVIDIA's driver"},
}

func (r *doctorResult) examineLibraries() {
	if !cuda.BuiltIn {
		r.add("libraries", checkMissing, "this binary was built without the CUDA device", "use a build without the tag static, on linux")
		return
	}
	for _, report := range cuda.Libraries() {
		name := string(report.Library)
		search := doctorSearch{Library: name, Path: orNull(report.Path), Version: orNull(report.Version), Tried: []doctorAttempt{}}
		for _, a := range report.Tried {
			search.Tried = append(search.Tried, doctorAttempt(a))
		}
		r.Libraries = append(r.Libraries, search)
		broken := search.broken()
		if report.Found() {
			detail := strings.TrimSpace(report.Version+" "+report.Path) + ", by " + report.Place
			for _, a := range broken {
				detail += "; not " + a.Path + ": " + a.Error
			}
			r.add(name, checkOK, detail, "")
			continue
		}
		status := checkMissing
		if len(broken) > 0 {
			status = checkFailed
		}
		notes := libraryNotes[name]
		fix := notes.fix
		if fix != "" {
			fix += "; or set APR_CUDA_LIB_DIR to the folder that holds it"
		}
		r.add(name, status, fmt.Sprintf("not found in %d places: %s", len(search.Tried), notes.without), fix)
	}
}

func (r *doctorResult) examineCUDA(managed string) {
	g, err := gpus(managed)
	r.Devices = g.Devices
	switch {
	case fault.KindOf(err) == fault.Usage:
		r.add("managed-memory", checkFailed, err.Error(), hintOf(err))
	case err != nil && !cuda.BuiltIn:
		r.unusable("cuda", errors.New("this binary was built without the CUDA device"))
		return
	case err != nil && !r.found("libcuda"):
		r.unusable("cuda", errors.New("no NVIDIA driver was found"))
		return
	case err != nil:
		r.add("driver", checkFailed, err.Error(), hintOf(err))
		r.unusable("cuda", err)
		return
	}
	detail := "CUDA " + *g.CUDA
	if g.Driver != nil {
		detail += ", driver " + *g.Driver
	}
	r.add("driver", checkOK, detail, "")
	var usable *string
	for _, d := range g.Devices {
		id := fmt.Sprintf("device-%d", d.Index)
		if d.Reason != nil {
			r.add(id, checkFailed, *d.Reason, "a GPU of compute capability 8.0 (Ampere) or newer is needed")
			continue
		}
		what := fmt.Sprintf("%s, compute capability %s, %s memory", d.Name, d.Capability, d.Class)
		r.add(id, checkOK, what, "")
		if usable == nil {
			usable = &what
		}
	}
	if usable == nil {
		r.unusable("cuda", errors.New("no device is new enough"))
		return
	}
	r.Backends = append(r.Backends, doctorBackend{Name: "cuda", Usable: true, Device: usable})
}

// found reports whether a library was found.
func (r *doctorResult) found(library string) bool {
	return slices.ContainsFunc(r.Libraries, func(s doctorSearch) bool { return s.Library == library && s.Path != nil })
}

func (r *doctorResult) unusable(backend string, err error) {
	reason := err.Error()
	r.Backends = append(r.Backends, doctorBackend{Name: backend, Reason: &reason})
}

func (r *doctorResult) examineMemory() {
	host, err := cuda.HostMemoryNow()
	if err != nil {
		r.add("memory", checkFailed, err.Error(), hintOf(err))
		return
	}
	detail := cli.Bytes(host.Available) + " available"
	if host.HugeFree > 0 {
		detail += ", and " + cli.Bytes(host.HugeFree) + " of free huge pages"
	}
	r.add("memory", checkOK, detail, "")
}

// examineCache looks at where the driver keeps compiled kernels.
func (r *doctorResult) examineCache(getenv func(string) string) {
	const what = "compiled kernels are kept in "
	dir := getenv("CUDA_CACHE_PATH")
	if home := getenv("HOME"); dir == "" && home != "" {
		dir = filepath.Join(home, ".nv", "ComputeCache")
	}
	switch {
	case getenv("CUDA_CACHE_DISABLE") == "1":
		r.add("cache", checkMissing, "CUDA_CACHE_DISABLE is 1: kernels are compiled at every start", "unset CUDA_CACHE_DISABLE")
	case dir == "":
		r.add("cache", checkMissing, "neither CUDA_CACHE_PATH nor HOME is set: kernels are compiled at every start", "set CUDA_CACHE_PATH to a folder")
	default:
		near, err := writable(dir)
		if err != nil {
			r.add("cache", checkFailed, what+dir+", where nothing can be written: "+err.Error(), "set CUDA_CACHE_PATH to a folder")
			return
		}
		detail := what + dir
		if near != dir {
			detail += " (not made yet)"
		}
		r.add("cache", checkOK, detail, "")
	}
}

func (r *doctorResult) examineDisk(runs string) {
	near, err := writable(runs)
	if err != nil {
		r.add("disk", checkFailed, "runs go to "+runs+", where nothing can be written: "+err.Error(), "set APR_RUNS_DIR, or give -o")
		return
	}
	detail := "runs go to " + runs
	if free, ok := atomicfile.Free(near); ok {
		detail += ", " + cli.Bytes(int64(min(free, 1<<62))) + " free"
	}
	r.add("disk", checkOK, detail, "")
}

// writable returns dir or the nearest folder above it that exists, in which a file can be made.
func writable(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		info, err := os.Stat(dir)
		if err == nil && !info.IsDir() {
			return "", fmt.Errorf("%s is not a folder", dir)
		}
		if err == nil {
			break
		}
		if up := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && up != dir {
			dir = up
			continue
		}
		return "", err
	}
	f, err := os.CreateTemp(dir, ".apr-doctor-*")
	if err != nil {
		return "", err
	}
	f.Close()
	return dir, os.Remove(f.Name())
}

// hintOf returns the hint of a fault.
func hintOf(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Hint
	}
	return ""
}

func doctorCommand() *cli.Command {
	var managed, runs string
	return &cli.Command{
		Name: "doctor", Short: "Say what this machine has, what it lacks, and what works",
		Long: "Says what this machine can do, then what is not fine, with what happens without it and what to do. It looks at the\n" +
			"processor, NVIDIA's libraries, the driver, the CUDA devices, the adapters of Vulkan, memory, the cache of\n" +
			"compiled kernels and the disk.\n" +
			"--verbose prints all of it, and where libraries were looked for. The exit code is 0 whatever was found; apr gpu has\n" +
			"one for a missing device.",
		Example: "apr doctor\napr doctor --verbose\napr doctor --json",
		Options: []cli.Option{
			managedOption(&managed),
			{Name: "runs-dir", EnvOnly: true, Path: true, Env: "APR_RUNS_DIR", Value: cli.String(&runs, "runs"), Help: "where runs without --output go"},
		},
		Run: func(_ context.Context, e *cli.Env) (cli.Result, error) {
			r := examine(e.Getenv("APR_CPU"), managed, runs, e.Getenv)
			r.verbose = e.Verbose
			return r, nil
		},
	}
}
