package apr_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "apr"

// floors are all packages of the module from the ground up, a floor a line or more. A package may import any package
// that stands before it, never one after it.
var floors = []struct {
	name     string
	packages string
}{
	{"ground", "internal/contracttest internal/fault internal/atomicfile internal/disk internal/crashdisk internal/torture internal/readfile internal/strictjson internal/near internal/hostile internal/cgroup internal/launcher internal/junit"},
	{"bytes", "tensor quant/quanttest quant"},
	{"bytes", "format/internal/checked format/internal/stored format/internal/shards"},
	{"bytes", "format/aprfile format/safetensors format/gguf format internal/keep"},
	{"text", "internal/jinja tokenizer tokenizer/train corpus tokenizer/align"},
	{"models as data", "arch"},
	{"records", "run/log run/list run/watch run/supervise run/diagnose collective"},
	{"machine", "device device/arena internal/ref device/devicetest device/dry"},
	{"machine", "device/cpu/par device/cpu/vec device/cpu/gemm device/cpu/q8 device/cpu"},
	{"machine", "device/cuda/driver device/cuda/kernel/manifest device/cuda/emulator device/cuda/kernel device/cuda/blas device/cuda"},
	{"machine", "device/vulkan/driver device/vulkan/kernel/manifest device/vulkan/kernel device/vulkan"},
	{"learning", "modelfile adapter model model/modeltest plan plan/cluster generate optim teacher/cache teacher/remote " +
		"teacher eval/sandbox eval distill convert prune"},
	{"trust", "run/report falsify hub/hubtest hub s3/s3test s3 bench/randmodel bench/trial bench proofs selfcheck run/verify run/dispatch openai"},
	{"door", "internal/cli cmd/apr bench/gputable bench/synth bench/interop bench/families bench/quantaware " +
		"bench/students bench/ownrows bench/countdown bench/onpolicy bench/align bench/gosource"},
}

// reserved are imports that only the packages named may have, in code that is not a test.
var reserved = []struct {
	what   string // an import path, with everything below it
	only   string // packages; empty: none but tests
	reason string
}{
	{"github.com/ebitengine/purego", "device/cuda/driver device/cuda/emulator device/vulkan/driver",
		"shared libraries are opened in one place of a device"},
	{"github.com/aws", "s3 s3/s3test", "one package speaks to buckets"},
	{"C", "", "everything builds with CGO_ENABLED=0"},
	{"apr/device/cpu", "device/cpu cmd/apr bench/interop bench/families bench/align bench/onpolicy model/modeltest",
		"models and training know device.Device, not devices"},
	{"apr/device/cuda", "device/cuda cmd/apr bench/align bench/onpolicy",
		"models and training know device.Device, not devices"},
	{"apr/device/vulkan", "cmd/apr", "models and training know device.Device, not devices"},
	{"apr/device/vulkan/driver", "device/vulkan", "one package speaks to the driver"},
	{"apr/device/vulkan/kernel", "device/vulkan", "parts of one device"},
	{"apr/device/vulkan/kernel/manifest", "device/vulkan device/vulkan/kernel", "parts of one device"},
	{"apr/device/cuda/driver", "device/cuda device/cuda/blas", "one package speaks to the driver"},
	{"apr/device/cuda/kernel", "device/cuda", "parts of one device"},
	{"apr/device/cuda/kernel/manifest", "device/cuda device/cuda/kernel device/cuda/emulator", "parts of one device"},
	{"apr/device/cuda/blas", "device/cuda", "parts of one device"},
	{"apr/device/cpu/par", "device/cpu device/cpu/gemm device/cpu/vec device/cpu/q8", "parts of one device"},
	{"apr/device/cpu/vec", "device/cpu device/cpu/gemm", "parts of one device"},
	{"apr/device/cpu/gemm", "device/cpu", "parts of one device"},
	{"apr/device/cpu/q8", "device/cpu", "parts of one device"},
	{"apr/device/devicetest", "", "test support"},
	{"apr/internal/ref", "device/devicetest selfcheck run/verify bench/interop bench/families", "test support, and the judge of what a user asks to be judged"},
	{"apr/hub/hubtest", "", "test support"},
	{"apr/s3/s3test", "", "test support"},
	{"apr/quant/quanttest", "", "test support"},
	{"apr/internal/near", "device/devicetest internal/ref internal/hostile", "test support"},
	{"apr/internal/contracttest", "device/devicetest", "test support"},
	{"apr/internal/hostile", "", "test support"},
	{"apr/internal/crashdisk", "", "test support"},
	{"apr/internal/torture", "", "test support"},
	{"testing", "internal/torture internal/near internal/contracttest internal/hostile device/devicetest model/modeltest", "test support"},
	{"net/http", "hub hub/hubtest s3 s3/s3test openai cmd/apr bench/interop", "parsers and training never gain the network"},
	{"os/exec", "corpus falsify run/supervise run/dispatch cmd/apr device/cuda/emulator eval eval/sandbox bench/interop bench/trial", "nothing starts programs but claims, foreign readers in a table, the supervisor, the programs of schedulers and the run they start, Parquet's bounded child, the compiler of an emulator for tests, and code tasks"},
	{"apr/device/cuda/emulator", "", "test support"},
}

// exits are functions that end the process, and the packages that may call them: the door, for a program that is done
// or told twice to stop, and corpus, whose Parquet parser is a child process of its own, as is what eval/sandbox confines.
var exits = map[string]string{
	"os.Exit": "internal/cli cmd/apr bench/gputable bench/synth bench/interop bench/families " +
		"bench/quantaware bench/students bench/ownrows bench/countdown bench/onpolicy bench/align bench/gosource " +
		"corpus eval/sandbox",
	"log.Fatal": "", "log.Fatalf": "", "log.Fatalln": "", "syscall.Exit": "",
}

// source is one Go file, whatever its build constraints.
type source struct {
	path string // slash-separated, from the root of the module
	text []byte
}

func (s source) pkg() string  { return path.Dir(s.path) }
func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// rank is the place of a package from the ground, -1 if unknown.
func rank(pkg string) int {
	n := 0
	for _, f := range floors {
		for _, p := range strings.Fields(f.packages) {
			if p == pkg {
				return n
			}
			n++
		}
	}
	return -1
}

// problems returns what a file does that the layering forbids.
func problems(s source) (out []string) {
	complain := func(format string, args ...any) { out = append(out, s.path+": "+fmt.Sprintf(format, args...)) }
	if s.pkg() == "." && s.isTest() {
		return nil // tests about the whole tree
	}
	mine := rank(s.pkg())
	if mine < 0 {
		complain("package %s stands on no floor: add it to layers_test.go", s.pkg())
		return out
	}
	file, err := parser.ParseFile(token.NewFileSet(), s.path, s.text, parser.SkipObjectResolution)
	if err != nil {
		complain("%v", err)
		return out
	}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			complain("import %s: %v", spec.Path.Value, err)
			continue
		}
		if own, ok := strings.CutPrefix(imported, module+"/"); ok {
			switch theirs := rank(own); {
			case own == s.pkg() && s.isTest(): // external test of the package
			case theirs < 0:
				complain("imports %s, which stands on no floor", own)
			case theirs >= mine:
				complain("imports %s, which stands above %s", own, s.pkg())
			}
		}
		if !s.isTest() {
			for _, why := range forbidden(s.pkg(), imported) {
				complain("imports %s: %s", imported, why)
			}
		}
	}
	if !s.isTest() {
		for _, call := range exitCalls(file, s.pkg()) {
			complain("calls %s: only the door ends the process", call)
		}
	}
	return out
}

// forbidden returns the reasons why pkg may not have an import, by the most specific rule.
func forbidden(pkg, imported string) (reasons []string) {
	best := -1
	for _, r := range reserved {
		if (imported == r.what || strings.HasPrefix(imported, r.what+"/")) && len(r.what) > best {
			best, reasons = len(r.what), nil
			if !slices.Contains(strings.Fields(r.only), pkg) {
				reasons = []string{r.reason}
			}
		}
	}
	return reasons
}

// exitCalls returns the uses of functions that end the process, under whatever name their package is imported.
func exitCalls(file *ast.File, pkg string) (calls []string) {
	names := map[string]string{} // local name to import path
	for _, spec := range file.Imports {
		imported, _ := strconv.Unquote(spec.Path.Value)
		local := path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		names[local] = imported
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && names[x.Name] != "" {
				call := names[x.Name] + "." + sel.Sel.Name
				if may, ends := exits[call]; ends && !slices.Contains(strings.Fields(may), pkg) {
					calls = append(calls, call)
				}
			}
		}
		return true
	})
	return calls
}

// sources returns all Go files of the module: not those of nested modules, of testdata, or of hidden folders.
func sources(t *testing.T) (all []source) {
	t.Helper()
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." {
			_, notOwn := os.Stat(filepath.Join(p, "go.mod"))
			if notOwn == nil || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || !strings.HasSuffix(p, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		all = append(all, source{filepath.ToSlash(p), text})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLayers: no package imports upward, and what is reserved stays where it belongs.
func TestLayers(t *testing.T) {
	all := sources(t)
	if len(all) < 20 {
		t.Fatalf("found %d Go files only: looking in the wrong place", len(all))
	}
	for _, s := range all {
		for _, p := range problems(s) {
			t.Error(p)
		}
	}
}

// TestLayersCatch: what the rules are for is caught, and what they allow is not.
func TestLayersCatch(t *testing.T) {
	tests := []struct{ name, path, text, want string }{
		{"downward import", "model/a.go", `import "apr/device"`, ""},
		{"upward import", "device/a.go", `import "apr/model"`, "stands above"},
		{"upward import in a test", "device/a_test.go", `import "apr/model"`, "stands above"},
		{"upward import behind a build tag", "device/a_plan9.go", `import m "apr/model"`, "stands above"},
		{"unknown package", "misc/a.go", ``, "stands on no floor"},
		{"import of an unknown package", "model/a.go", `import "apr/misc"`, "stands on no floor"},
		{"external test", "model/a_test.go", `import "apr/model"`, ""},
		{"package imports itself", "model/a.go", `import "apr/model"`, "stands above"},
		{"purego in its room", "device/cuda/driver/a.go", `import "github.com/ebitengine/purego"`, ""},
		{"purego elsewhere", "device/cpu/a.go", `import _ "github.com/ebitengine/purego/internal/x"`,
			"opened in one place of a device"},
		{"cgo", "device/cuda/a.go", `import "C"`, "CGO_ENABLED=0"},
		{"training knows a device", "distill/a.go", `import "apr/device/cpu"`, "not devices"},
		{"its test may", "distill/a_test.go", `import "apr/device/cpu"`, ""},
		{"kernels within their device", "device/cpu/a.go", `import "apr/device/cpu/gemm"`, ""},
		{"kernels elsewhere", "model/a.go", `import "apr/device/cpu/gemm"`, "parts of one device"},
		{"the judge in the product", "model/a.go", `import "apr/internal/ref"`, "test support"},
		{"network in a parser", "format/gguf/a.go", `import "net/http"`, "network"},
		{"network in the hub", "hub/a.go", `import "net/http"`, ""},
		{"exit in a library", "model/a.go", "import \"os\"\nfunc f() { os.Exit(1) }", "ends the process"},
		{"exit under another name", "model/a.go", "import sys \"os\"\nfunc f() { g := sys.Exit; g(1) }", "ends the process"},
		{"fatal log", "cmd/apr/a.go", "import \"log\"\nfunc f() { log.Fatalf(\"\") }", "ends the process"},
		{"exit at the door", "cmd/apr/a.go", "import \"os\"\nfunc f() { os.Exit(1) }", ""},
		{"no Go", "model/a.go", `import`, "missing import path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := problems(source{tt.path, []byte("package x\n" + tt.text)})
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("got %q, want none", got)
			case tt.want != "" && (len(got) == 0 || !strings.Contains(got[0], tt.want)):
				t.Errorf("got %q, want one with %q", got, tt.want)
			}
		})
	}
}

// TestFloorsNameNothingTwice: the order is one.
func TestFloorsNameNothingTwice(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range floors {
		for _, p := range strings.Fields(f.packages) {
			if seen[p] {
				t.Errorf("%s stands on two floors", p)
			}
			seen[p] = true
		}
	}
}
