package driver

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"apr/internal/fault"
)

// machine makes a System of files and of NAME=value variables.
func machine(arch string, files []string, env ...string) System {
	m := fstest.MapFS{}
	for _, f := range files {
		m[strings.TrimPrefix(f, "/")] = &fstest.MapFile{}
	}
	return System{Files: m, Arch: arch, Getenv: func(name string) string {
		for _, e := range env {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}}
}

// present returns the attempts that may be tried, in order.
func present(all []Attempt) (paths []string) {
	for _, a := range all {
		if a.Error == "" {
			paths = append(paths, a.Path)
		}
	}
	return paths
}

func TestSearchOrder(t *testing.T) {
	everywhere := []string{
		"/usr/local/lib/ollama/cuda_v12/libcublasLt.so.12", "/usr/lib/ollama/cuda_v13/libcublasLt.so.13",
		"/home/me/.local/lib/python3.9/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
		"/home/me/.local/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
		"/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13",
		"/conda/lib/libcublasLt.so.12", "/conda/lib/libcublasLt.so.13",
		"/usr/lib/x86_64-linux-gnu/libcublasLt.so.12", "/usr/lib/aarch64-linux-gnu/libcublasLt.so.12", "/usr/lib/libcublasLt.so.12",
		"/usr/local/cuda/lib64/libcublasLt.so.12", "/usr/local/cuda-12.9/lib64/libcublasLt.so.12",
		"/usr/local/cuda-12.10/lib64/libcublasLt.so.12", "/usr/local/cuda-13.0/lib64/libcublasLt.so.13",
		"/mine/libcublasLt.so.12", "/mine/libcublasLt.so.13",
	}
	env := []string{"HOME=/home/me", "VIRTUAL_ENV=/venv", "CONDA_PREFIX=/conda"}
	thirteen := []string{
		"libcublasLt.so.13", "/usr/local/cuda-13.0/lib64/libcublasLt.so.13", "/conda/lib/libcublasLt.so.13",
		"/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13", "/usr/lib/ollama/cuda_v13/libcublasLt.so.13",
	}
	twelve := []string{
		"libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so.12", "/usr/local/cuda-12.10/lib64/libcublasLt.so.12",
		"/usr/local/cuda-12.9/lib64/libcublasLt.so.12", "/usr/lib/x86_64-linux-gnu/libcublasLt.so.12", "/usr/lib/libcublasLt.so.12",
		"/conda/lib/libcublasLt.so.12",
		"/home/me/.local/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
		"/home/me/.local/lib/python3.9/site-packages/nvidia/cublas/lib/libcublasLt.so.12",
		"/usr/local/lib/ollama/cuda_v12/libcublasLt.so.12",
	}
	tests := []struct {
		name    string
		s       System
		l       Library
		version int
		want    []string
	}{
		{"newest major first", machine("amd64", everywhere, env...), CublasLt, 13000, append(slices.Clone(thirteen), twelve...)},
		{"driver of 12", machine("amd64", everywhere, env...), CublasLt, 12080, twelve},
		{"driver not known", machine("amd64", everywhere, env...), CublasLt, 0, append(slices.Clone(thirteen), twelve...)},
		{"driver of 14", machine("amd64", everywhere, env...), CublasLt, 14010, append(slices.Clone(thirteen), twelve...)},
		{"driver of 11", machine("amd64", everywhere, env...), CublasLt, 11080, nil},
		{"override first", machine("amd64", everywhere, append(env, "APR_CUDA_LIB_DIR=/mine")...), CublasLt, 12080, append([]string{"/mine/libcublasLt.so.12"}, twelve...)},
		{"override beats majors elsewhere", machine("amd64", everywhere, append(env, "APR_CUDA_LIB_DIR=/mine")...), CublasLt, 13000,
			append([]string{"/mine/libcublasLt.so.13", "/mine/libcublasLt.so.12"}, append(slices.Clone(thirteen), twelve...)...)},
		{"other architecture", machine("arm64", []string{"/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1"}), CUDA, 0,
			[]string{"libcuda.so.1", "/usr/lib/aarch64-linux-gnu/libcuda.so.1"}},
		{"container", machine("amd64", []string{"/usr/local/nvidia/lib64/libcuda.so.1"}), CUDA, 0, []string{"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"}},
		{"wheel of NCCL", machine("amd64", []string{"/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"}, env...), NCCL, 12080,
			[]string{"libnccl.so.2", "/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"}},
		{"nothing at all", machine("amd64", nil), NVML, 0, []string{"libnvidia-ml.so.1"}},
		{"a folder of that name", machine("amd64", []string{"/usr/lib/libcuda.so.1/x"}), CUDA, 0, []string{"libcuda.so.1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := present(tt.s.Search(tt.l, tt.version)); !slices.Equal(got, tt.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tt.want, "\n\t"))
			}
		})
	}
}

// TestSearchReports: what is not there is reported, too, with the rule that named it.
func TestSearchReports(t *testing.T) {
	all := machine("amd64", nil, "HOME=/home/me", "APR_CUDA_LIB_DIR=/mine").Search(CublasLt, 12000)
	want := []Attempt{
		{"/mine/libcublasLt.so.12", PlaceOverride, Absent},
		{"libcublasLt.so.12", PlaceLinker, ""},
		{"/usr/local/cuda*/lib64/libcublasLt.so.12", PlaceToolkit, Absent},
		{"/usr/lib/x86_64-linux-gnu/libcublasLt.so.12", PlaceSystem, Absent},
		{"/usr/local/nvidia/lib64/libcublasLt.so.12", PlaceSystem, Absent},
		{"/usr/lib/libcublasLt.so.12", PlaceSystem, Absent},
		{"/home/me/.local/lib/python3*/site-packages/nvidia/cu13/lib/libcublasLt.so.12", PlaceWheel, Absent},
	}
	if len(all) < len(want) || !slices.Equal(all[:len(want)], want) {
		t.Errorf("got %+v", all)
	}
}

// opensAs makes an opener that knows files by name and where each leads.
func opensAs(files map[string]string) opener {
	return func(name string) (*library, error) {
		if to, ok := files[name]; ok {
			return &library{path: to}, nil
		}
		return nil, errors.New("cannot open " + name)
	}
}

func TestFind(t *testing.T) {
	s := machine("amd64", []string{"/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.12"})
	lib, r := s.find(CublasLt, 13000, opensAs(map[string]string{"/usr/local/cuda/lib64/libcublasLt.so.12": "/usr/local/cuda-12.9/lib64/libcublasLt.so.12.9.1.4"}))
	if lib == nil || !r.Found() || r.Err() != nil {
		t.Fatalf("not found: %+v", r)
	}
	if r.Path != "/usr/local/cuda-12.9/lib64/libcublasLt.so.12.9.1.4" || r.Version != "12.9.1.4" || r.Place != PlaceToolkit {
		t.Errorf("report %+v", r)
	}
	if last := r.Tried[len(r.Tried)-1]; last.Error != "" || last.Path != "/usr/local/cuda/lib64/libcublasLt.so.12" {
		t.Errorf("last attempt %+v", last)
	}
	for _, a := range r.Tried[:len(r.Tried)-1] {
		if a.Error == "" {
			t.Errorf("attempt %+v failed without an error", a)
		}
	}

	_, r = s.find(CublasLt, 13000, opensAs(nil))
	err := r.Err()
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("kind %v of %v", fault.KindOf(err), err)
	}
	if Dynamic {
		for _, want := range []string{"libcublasLt.so.13 (dynamic linker: cannot open", "/usr/local/cuda/lib64/libcublasLt.so.12 (toolkit folder: cannot open", "/usr/lib/libcublasLt.so.12 (system folder: no such file)"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("error lacks %q: %v", want, err)
			}
		}
	}
	if _, r = s.find(CublasLt, 11080, opensAs(nil)); Dynamic && !strings.Contains(r.Err().Error(), "driver is too old") {
		t.Errorf("error %v", r.Err())
	}
}

// TestOpenWithoutDriver: a machine without libcuda is told what was tried; exit code 9.
func TestOpenWithoutDriver(t *testing.T) {
	s := machine("amd64", nil, "APR_CUDA_LIB_DIR=/mine")
	_, err := s.open(opensAs(nil))
	if fault.ExitCode(err) != 9 {
		t.Fatalf("exit code %d of %v", fault.ExitCode(err), err)
	}
	want := []string{"/mine/libcuda.so.1", "libcuda.so.1 (dynamic linker", "/usr/local/cuda*/lib64/libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}
	if !Dynamic {
		want = []string{"built without"}
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error lacks %q: %v", w, err)
		}
	}
	var f *fault.Error
	if Dynamic && (!errors.As(err, &f) || !strings.Contains(f.Hint, "--backend cpu") || !strings.Contains(f.Hint, LibDirVariable)) {
		t.Errorf("hint of %v", err)
	}
	if _, err := s.openManagement(opensAs(nil)); fault.ExitCode(err) != 9 {
		t.Errorf("NVML: %v", err)
	}
	for i, r := range s.survey(opensAs(nil)) {
		if r.Library != Libraries[i] || r.Found() || r.Err() == nil || len(r.Tried) == 0 {
			t.Errorf("report %+v", r)
		}
	}
}

func TestVersionOfName(t *testing.T) {
	for name, want := range map[string]string{
		"/usr/lib/libcuda.so.580.82.07": "580.82.07", "/x/libcublasLt.so.12": "", "/x/libcublasLt.so.13.0.2.14": "13.0.2.14",
		"libcuda.so": "", "": "", "/a.so.1.2/libx.so.1": "",
	} {
		if got := versionOfName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestLoadedAs(t *testing.T) {
	const maps = "7f00-7f01 r--p 00000000 08:01 12 /usr/lib/libcudadebugger.so.1\n" +
		"7f01-7f02 r--p 00000000 08:01 13 /usr/lib/with space/libcuda.so.580.82.07\n7f02-7f03 rw-p 00000000 00:00 0 [heap]\n" +
		"7f01-7f02 r--p 00000000 08:01 14 /x/libnccl.so.2\n"
	for soname, want := range map[string]string{
		"libcuda.so.1": "/usr/lib/with space/libcuda.so.580.82.07", "libnccl.so.2": "/x/libnccl.so.2", "libm.so.6": "",
	} {
		got, err := loadedAs(maps, soname)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v", soname, got, err)
		}
	}
}
