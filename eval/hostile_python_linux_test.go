package eval_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// pythonCases are bodies of Python functions that raise nothing if they succeed. CANARY and DIR are quoted paths outside.
var pythonCases = []struct {
	name, body string
	honest     bool
}{
	{"chmod", "os.chmod(CANARY, 0o600)", false},
	{"times", "os.utime(CANARY, (5, 5))", false},
	{"owner", "os.chown(CANARY, 1, 1)", false},
	{"attribute", "os.setxattr(CANARY, 'user.apr', b'x')", false},
	{"read", "open(CANARY).read()", false},
	{"write", "open(CANARY, 'w')", false},
	{"list", "os.listdir(DIR)", false},
	{"root", "os.listdir('/')", false},
	{"settings", "os.listdir('/etc')", false},
	{"users", "open('/etc/passwd').read()", false},
	{"parent", "open('/proc/%d/environ' % os.getppid(), 'rb').read()", false},
	{"itself", "open('/proc/self/mem', 'r+b')", false},
	{"link", "os.link(CANARY, 'link')", false},
	{"symbolic link", "os.symlink(CANARY, 'link')", false},
	{"rename", "os.rename(CANARY, 'mine')", false},
	{"remove", "os.remove(CANARY)", false},
	{"fork", "os.fork()", false},
	{"child", "import subprocess; subprocess.run([sys.executable, '-c', ''])", false},
	{"spawn", "os.posix_spawn(sys.executable, [sys.executable], {})", false},
	{"kill", "os.kill(os.getppid(), 0)", false},
	{"socket", "import socket; socket.socket()", false},
	{"pair", "import socket; socket.socketpair()", false},
	{"memory file", "os.memfd_create('x')", false},
	{"queue", "import mmap; open('/dev/shm/apr-canary', 'w')", false},
	{"by libc", "import ctypes\n    l = ctypes.CDLL(None, use_errno=True)\n    if l.chmod(CANARY.encode(), 0o600):\n        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))", false},
	{"environment", "if 'canary-secret' not in str(os.environ): raise PermissionError('nothing there')", false},
	{"execute its own", "open('x', 'wb').write(open(sys.executable, 'rb').read()[:9000000]); os.execv('./x', ['x'])", false},

	{"word in the code", "import re\n    texts = [c for i in range(9) for c in frames(i) if isinstance(c, str) and re.fullmatch('[A-Z2-7]{26}', c)]\n" +
		"    if not texts: raise PermissionError('no word')\n    print(*texts, flush=True); os._exit(0)", false},
	{"shared memory", "import mmap; mmap.mmap(-1, 4096)", false},
	{"lock", "import fcntl; fcntl.flock(open(sys.executable, 'rb'), fcntl.LOCK_EX)", false},

	{"input", "try:\n        input()\n    except EOFError:\n        return\n    raise ValueError('something to read')", true},
	{"own names", "global print, int, out, word, exec\n    print = int = out = word = exec = None", true},
	{"library", "import json, re, collections, itertools, random, decimal, hashlib, datetime, math, statistics, functools\n" +
		"    assert json.loads('[1]') == [1] and re.match('a+', 'aa') and hashlib.sha256(b'').hexdigest()[:2] == 'e3'\n    datetime.datetime.now(); random.random()", true},
	{"threads", "import threading\n    out = []\n    t = [threading.Thread(target=out.append, args=(i,)) for i in range(50)]\n    [x.start() for x in t]; [x.join() for x in t]\n    assert len(out) == 50", true},
	{"pool", "from concurrent.futures import ThreadPoolExecutor\n    with ThreadPoolExecutor(4) as p: assert sum(p.map(abs, range(-9, 1))) == 45", true},
	{"files", "import tempfile, shutil\n    with tempfile.TemporaryDirectory() as d:\n        open(d + '/x', 'w').write('x'); shutil.copyfile(d + '/x', d + '/y'); os.rename(d + '/y', 'z'); assert open('z').read() == 'x'", true},
	{"time", "import time, asyncio\n    time.sleep(0.01); asyncio.sleep(0)", true},
	{"output", "print('x' * 100000); sys.stderr.write('y')", true},
}

// Python programs, hostile and honest, by the way that apr eval takes.
func TestHostilePythonPrograms(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		return // TestPythonPrograms says what happens then
	}
	t.Setenv("HF_TOKEN", secret)
	inherited(t)
	runner := programs(t, []eval.Problem{{Language: "python"}})
	if runner == nil {
		return
	}
	for _, tt := range pythonCases {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			c := newCanary(t)
			before := c.state(t)
			body := strings.NewReplacer("CANARY", fmt.Sprintf("%q", c.file), "DIR", fmt.Sprintf("%q", c.dir)).Replace(tt.body)
			p := eval.Problem{ID: tt.name, Program: "import os, sys\n\ndef frames(i):\n    try:\n        return sys._getframe(i).f_code.co_consts\n    except ValueError:\n        return ()\n\ndef attack():\n", Test: "def check(f):\n    f()\n", Entry: "attack", Language: "python", Style: "code"}
			passed, why, err := runner.Passes(context.Background(), p, "    "+body+"\n")
			refused := strings.Contains(why, "PermissionError")
			if err != nil || passed != tt.honest || !tt.honest && !refused {
				t.Errorf("passed=%v, %q (%v)", passed, why, err)
			}
			if after := c.state(t); after != before {
				t.Errorf("the canary was\n%s and is\n%s", before, after)
			}
		})
	}
}
