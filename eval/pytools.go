package eval

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"time"

	"apr/eval/sandbox"
	"apr/internal/fault"
)

// pythonTools is the user's python3.
type pythonTools struct {
	path string
	read []string // the files that it is made of, and the directories of its library
}

// pythonItself prints the path of the interpreter, in a virtual environment that of its link there, by which it finds
// the packages of the environment.
//
// pythonFiles prints what the interpreter reads: its own library and site packages, as it was built or its virtual
// environment says, and all files that are mapped once every module of its library that is machine code has been
// loaded, the dynamic linker and shared libraries among them. What sys.path names beyond these, such as a package that
// is being developed and lies beside other files, is left out, wherever it is: the prefix may be a home directory.
const (
	pythonItself = "import os, sys; print(os.path.abspath(sys.executable), end='')"
	pythonFiles  = `import importlib, json, os, site, sys, sysconfig
real = os.path.realpath
own = [sysconfig.get_path(k) for k in ('stdlib', 'platstdlib', 'purelib', 'platlib')] + site.getsitepackages()
own = {real(d) for d in own + [sysconfig.get_path('platstdlib', vars={'platbase': sys.base_exec_prefix})]}
loads = {d for d in sys.path if os.path.basename(d) == 'lib-dynload' and real(os.path.dirname(d)) in own}
for d in loads:
    for f in os.listdir(d):
        try:
            importlib.import_module(f.split('.')[0])
        except BaseException:
            pass
maps = {l.split(None, 5)[5].strip() for l in open('/proc/self/maps') if '/' in l}
library = {d for d in sys.path if real(d) in own}
rest = {sys.executable, os.path.join(sys.prefix, 'pyvenv.cfg')}
print(json.dumps(sorted(p for p in maps | loads | library | rest if os.path.isabs(p) and os.path.exists(p))))`
)

// findPython returns the interpreter itself: python3 may be a script that starts one, which a confined process cannot.
func findPython(ctx context.Context) (*pythonTools, error) {
	path, err := find("python3")
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ask := func(python, question string) ([]byte, error) {
		cmd := exec.CommandContext(limited, python, "-I", "-c", question)
		cmd.Dir = os.TempDir()
		out, err := cmd.Output()
		if err != nil {
			return nil, fault.New(fault.Unavailable, "%s does not run", python).Because(err).WithID("E-EVAL-031")
		}
		return out, nil
	}
	itself, err := ask(path, pythonItself)
	if err != nil {
		return nil, err
	}
	p := &pythonTools{path: string(itself)}
	text, err := ask(p.path, pythonFiles)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &p.read); err != nil {
		return nil, fault.New(fault.Unavailable, "%s does not name its files", p.path).Because(err).WithID("E-EVAL-031")
	}
	return p, nil
}

// program is one that the interpreter runs, isolated from the user's settings and packages.
func (p *pythonTools) program(input string, args ...string) sandbox.Program {
	return sandbox.Program{Argv: append([]string{p.path, "-I"}, args...), Input: input, Read: p.read}
}
