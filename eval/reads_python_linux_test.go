package eval_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// installPython puts an interpreter with its library into a new directory, which is its prefix.
var installPython = map[string]string{
	"home directory": `import glob, os, shutil, sys, sysconfig
home, base = sys.argv[1], os.path.realpath(sys.executable)
lib = sysconfig.get_path('stdlib')
os.makedirs(home + '/bin')
shutil.copy(base, home + '/bin/python3')
left = shutil.ignore_patterns('test', 'site-packages', 'dist-packages', '__pycache__', 'config-*')
shutil.copytree(lib, home + '/lib/' + os.path.basename(lib), ignore=left)
for f in glob.glob(os.path.join(sysconfig.get_config_var('LIBDIR') or lib, 'libpython3*')):
    shutil.copy(f, home + '/lib')`,
	"virtual environment": `import sys, venv
venv.EnvBuilder(symlinks=True).create(sys.argv[1])`,
}

// A project below the prefix of the interpreter that a .pth file names, as of a package that is being developed, stays
// closed to programs; the site packages beside that file are theirs.
func TestPythonReadsNoProject(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		return // TestPythonPrograms says what happens then
	}
	for name, script := range installPython {
		t.Run(name, func(t *testing.T) {
			home, err := os.MkdirTemp("", "apr-home-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(home) })
			project, interpreter := filepath.Join(home, "project"), filepath.Join(home, "bin", "python3")
			run := func(python string, args ...string) string {
				t.Helper()
				out, err := exec.Command(python, append([]string{"-I", "-c"}, args...)...).CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return string(out)
			}
			run(python, script, home)
			site := run(interpreter, "import sysconfig; print(sysconfig.get_path('purelib'), end='')")
			for _, err := range []error{
				os.MkdirAll(site, 0o755), os.Mkdir(project, 0o755), os.Chmod(home, 0o755),
				os.WriteFile(filepath.Join(project, ".env"), []byte(secret), 0o644),
				os.WriteFile(filepath.Join(project, "developed.py"), []byte("x = 1\n"), 0o644),
				os.WriteFile(filepath.Join(site, "installed.py"), []byte("x = 2\n"), 0o644),
				os.WriteFile(filepath.Join(site, "x.pth"), []byte(project+"\n"), 0o644),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			if run(interpreter, "import developed, installed; print(developed.x, installed.x, end='')") != "1 2" {
				t.Fatal("the interpreter does not find both packages")
			}
			t.Setenv("PATH", filepath.Dir(interpreter)+string(os.PathListSeparator)+os.Getenv("PATH"))
			runner := programs(t, []eval.Problem{{Language: "python"}})
			if runner == nil {
				return
			}
			for body, want := range map[string]bool{
				"import installed, json, ssl, ctypes; assert installed.x == 2": true,
				fmt.Sprintf("open(%q).read()", filepath.Join(project, ".env")): false,
				"import developed": false,
				fmt.Sprintf("import os; os.listdir(%q)", project): false,
				fmt.Sprintf("import os; os.listdir(%q)", home):    false,
			} {
				contracttest.Cases(t, 1)
				p := eval.Problem{ID: name, Program: "def f():\n", Test: "def check(f):\n    f()\n", Entry: "f",
					Language: "python", Style: "code"}
				if passed, why, err := runner.Passes(context.Background(), p, "    "+body+"\n"); err != nil || passed != want {
					t.Errorf("%s: passed=%v, %q (%v)", body, passed, why, err)
				}
			}
		})
	}
}
