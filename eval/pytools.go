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

// pythonFiles prints the interpreter itself, and then, by it, what it reads: the path of its library and all files that are
// mapped once every module of it that is machine code has been loaded, the dynamic linker and shared libraries among them. What
// somebody added to the path that is not of the installation, such as a package that is being developed, is left out.
const (
	pythonItself = "import os, sys; print(os.path.realpath(sys.executable), end='')"
	pythonFiles  = `import importlib, json, os, sys
for d in sys.path:
    for f in os.listdir(d) if os.path.basename(d) == 'lib-dynload' else []:
        try:
            importlib.import_module(f.split('.')[0])
        except BaseException:
            pass
maps = {l.split(None, 5)[5].strip() for l in open('/proc/self/maps') if '/' in l}
prefixes = tuple(p.rstrip('/') + '/' for p in (sys.prefix, sys.exec_prefix) if p.rstrip('/'))
library = {p for p in sys.path if p.startswith(prefixes)}
print(json.dumps(sorted(p for p in maps | library | {sys.executable} if os.path.isabs(p) and os.path.exists(p))))`
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
