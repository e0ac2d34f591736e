package eval_test

import (
	"cmp"
	"context"
	"os/exec"
	"strings"
	"testing"

	"apr/eval"
	"apr/internal/contracttest"
)

// The problem of most of the cases, and its tests.
const (
	pythonGiven = "def f(x):\n    'One more.'\n"
	pythonTests = "def check(candidate):\n    assert candidate(1) == 2\n    assert abs(candidate(3) - 4.0) < 1e-6\n"
)

// disarmingPython are Python programs that are wrong, and make the tests say nothing of it; honest ones declare classes, names of the
// language that the tests do not use, and functions that are asked for by such a name. given "-" is none, as in MBPP.
var disarmingPython = []struct {
	name, given, completion, tests string
	passes                         bool
}{
	{"right", "", "    return x+1\n", "", true},
	{"wrong", "", "    return x\n", "", false},
	{"equal to everything", "", "    class A:\n        def __eq__(s, o): return True\n        def __sub__(s, o): return 0\n    return A()\n", "", false},
	{"a number that is equal to everything", "", "    class A(int):\n        def __eq__(s, o): return True\n        def __sub__(s, o): return 0\n    return A(7)\n", "", false},
	{"within a list", "-", "class A:\n    __eq__ = lambda s, o: True\ndef g(x):\n    return [A()]\n", "assert g(1) == [3]\n", false},
	{"by its class", "-", "class M(type):\n    def __eq__(s, o): return True\n    def __hash__(s): return 1\nclass A(metaclass=M): pass\ndef g(x): return A\n", "assert g(1) == 2\n", false},
	{"and a test that goes on", "-", "class A:\n    def __eq__(s, o): return True\ndef g(x): return A()\n", "try:\n    assert g(1) == 2\nexcept AssertionError:\n    pass\n", false},
	{"anything of the library", "", "    from unittest.mock import ANY\n    return ANY\n", "def check(c):\n    assert c(1) == 2\n", false},
	{"anything of the library that the tests import too", "", "    from unittest.mock import ANY\n    return ANY\n", "from unittest.mock import patch\ndef check(c):\n    assert c(1) == 2\n", false},
	{"anything within a list", "-", "from unittest.mock import ANY\ndef g(x): return [ANY, 2]\n", "assert g(1) == [3, 4][:1] + [2]\n", false},
	{"anything within an attribute", "-", "from dataclasses import dataclass\nfrom unittest.mock import ANY\n@dataclass\nclass P:\n    x: int\ndef g(): return P(ANY)\n", "assert g() == P(3)\n", false},
	{"anything within keys", "-", "from unittest.mock import ANY\ndef g(): return {ANY: 1}.items()\n", "assert g() == {3: 1}.items() or 1 in g() or list(g()) == [(3, 1)]\n", false},
	{"anything behind a proxy", "-", "import types\nclass D(dict):\n    def __eq__(s, o): return True\ndef g(): return types.MappingProxyType(D())\n", "assert g() == {3: 1}\n", false},
	{"anything behind a reference", "-", "import weakref\nclass A:\n    def __eq__(s, o): return True\na = A()\ndef g(): return weakref.proxy(a)\n", "assert g() == 3\n", false},
	{"a mock", "", "    from unittest.mock import MagicMock\n    m = MagicMock()\n    m.__eq__.return_value = True\n    return m\n", "def check(c):\n    assert c(1) == 2\n", false},
	{"a class of another module", "", "    class A:\n        __module__ = 'builtins'\n        def __eq__(s, o): return True\n    return A()\n", "def check(c):\n    assert c(1) == 2\n", false},
	{"a class from a text", "", "    d = {}\n    exec('class A:\\n    def __eq__(s, o): return True', d)\n    return d['A']()\n", "def check(c):\n    assert c(1) == 2\n", false},
	{"a class by the hash of a number's", "", "    class M(type):\n        def __hash__(s): return hash(int)\n        def __eq__(s, o): return True\n    class A(metaclass=M):\n        def __eq__(s, o): return True\n    return A()\n", "def check(c):\n    assert c(1) == 2\n", false},
	{"a list of any length", "-", "class L(list):\n    def __len__(s): return 2\ndef g(): return L()\n", "assert len(g()) == 2\n", false},
	{"a list of any item", "-", "class L(list):\n    def __getitem__(s, i): return 2\ndef g(): return L()\n", "assert g()[5] == 2\n", false},
	{"a list with everything", "-", "class L(list):\n    def __contains__(s, i): return True\ndef g(): return L()\n", "assert 2 in g()\n", false},
	{"a patched fraction", "-", "import fractions\nfractions.Fraction.__eq__ = lambda s, o: True\ndef g(): return fractions.Fraction(1, 2)\n", "assert g() == 7\n", false},
	{"a fraction with other code", "-", "import fractions\nfractions.Fraction.__eq__.__code__ = (lambda a, b: True).__code__\ndef g(): return fractions.Fraction(1, 2)\n", "assert g() == 7\n", false},
	{"a fraction of anything", "-", "import fractions\nfrom unittest.mock import ANY\ndef g():\n    f = fractions.Fraction(1, 2)\n    f._numerator = f._denominator = ANY\n    return f\n", "assert g() == 7\n", false},
	{"a counter that was patched", "-", "import collections\ncollections.Counter.__eq__ = lambda s, o: True\ndef g(): return collections.Counter()\n", "assert g() == {'a': 1}\n", false},
	{"a class that says what it is", "-", "class A:\n    __class__ = property(lambda s: int)\ndef g(): return A()\n", "assert isinstance(g(), int)\n", false},
	{"a generator of anything", "-", "class A:\n    def __sub__(s, o): return 0\ndef g():\n    yield A()\n", "for x in g():\n    assert abs(x - 3) < 1\n", false},
	{"a dataclass with another equality", "-", "from dataclasses import dataclass\n@dataclass(eq=False)\nclass P:\n    x: int\nd = {}\nexec('def __eq__(self, other): return True', d)\nP.__eq__ = d['__eq__']\ndef g(): return P(1)\n", "assert g() == P(2)\n", false},
	{"less than everything", "-", "class A:\n    def __lt__(s, o): return True\ndef g(x): return A()\n", "assert g(1) < 2\n", false},
	{"abs", "", "    global abs\n    def abs(x): return 0\n    return 2\n", "", false},
	{"abs of all programs", "", "    import builtins\n    builtins.abs = lambda x: 0\n    return 2\n", "", false},
	{"abs by its dictionary", "", "    globals()['abs'] = lambda x: 0\n    return 2\n", "", false},
	{"all", "-", "def all(x): return True\ndef g(x): return [0]\n", "assert all(v == 1 for v in g(1))\n", false},
	{"str", "-", "def str(x): return 'x'\ndef g(x): return 5\n", "assert str(g(1)) == 'x'\n", false},
	{"a module", "-", "import math\nmath.isclose = lambda *a, **k: True\ndef g(x): return 5\n", "import math\nassert math.isclose(g(1), 6)\n", false},
	{"a class for a module", "-", "class math:\n    isclose = lambda *a, **k: True\ndef g(x): return 5\n", "import math\nassert math.isclose(g(1), 6)\n", false},
	{"a helper of the problem", "def poly(a, x):\n    return a-x\n\ndef f(a):\n", "    return 1\n\ndef poly(a, x):\n    return 0\n", "def check(f):\n    assert poly(3, f(3)) == 0\n", false},
	{"a function of the language, wrong", "-", "def sum(a, b):\n    return 5\n", "assert sum(10, 15) == 6\n", false},

	{"a function of the language", "-", "def sum(a, b):\n    return 6\n", "assert sum(10, 15) == 6\n", true},
	{"a helper that is used", "def poly(a, x):\n    return a-x\n\ndef f(a):\n", "    return a\n", "def check(f):\n    assert poly(3, f(3)) == 0\n", true},
	{"names that it uses itself", "-", "def max(a, b):\n    return a if a > b else b\ndef g(x): return max(x, 3)\n", "assert g(5) == 5 and max([g(1)]) == 3\n", true},
	{"a class", "-", "class Pair:\n    def __init__(s, a, b): s.a, s.b = a, b\ndef g(l): return len(l)\n", "assert g([Pair(1, 2), Pair(3, 4)]) == 2\n", true},
	{"a class that is ordered within", "-", "import heapq\nclass N:\n    def __init__(s, v): s.v = v\n    def __lt__(s, o): return s.v < o.v\ndef g(l):\n" +
		"    h = [N(v) for v in l]\n    heapq.heapify(h)\n    return [heapq.heappop(h).v for _ in l]\n", "assert g([3, 1, 2]) == [1, 2, 3]\n", true},
	{"a dataclass", "-", "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef g(): return P(1)\n", "assert g() == P(1)\n", true},
	{"a class of the problem", "class Node:\n    def __init__(s, v): s.v = v\n    def __eq__(s, o): return s.v == o.v\n\ndef f(x):\n", "    return Node(x+1)\n", "def check(c):\n    assert c(1) == Node(2)\n", true},
	{"values of the library", "-", "import collections, enum, fractions\nT = collections.namedtuple('T', 'a b')\nclass C(enum.IntEnum):\n    A = 1\n" +
		"def g(s): return collections.Counter(s), fractions.Fraction(1, 2), T(1, 2), C.A\n", "assert g('aab') == ({'a': 2, 'b': 1}, 0.5, (1, 2), 1)\n", true},
	{"a dataclass with order", "-", "from dataclasses import dataclass\nfrom typing import ClassVar\n@dataclass(order=True, frozen=True)\nclass P:\n    n: ClassVar[int] = 3\n    x: int\n    y: list\ndef g(): return P(1, [2])\n", "assert g() == P(1, [2]) and g() < P(2, [])\n", true},
	{"more values of the library", "-", "import collections, datetime, decimal, enum\nfrom typing import NamedTuple\nclass T(NamedTuple):\n    a: int\nclass F(enum.Flag):\n    A = 1\n    B = 2\n" +
		"def g(): return [collections.deque([1]), collections.OrderedDict(a=1), collections.defaultdict(int, a=1), decimal.Decimal('0.5'), datetime.date(2020, 1, 2), datetime.timedelta(1), T(1), F.A | F.B, range(3), bytearray(b'x'), {1: {2}}.items()]\n",
		"import datetime\nx = g()\nassert list(x[0]) == [1] and x[1] == {'a': 1} and x[2] == {'a': 1} and x[3] == 0.5 and x[4] + x[5] == datetime.date(2020, 1, 3) and x[6] == (1,) and x[7] == F(3)\nassert x[8] == range(3) and x[9] == b'x' and x[10] == {1: {2}}.items()\n", true},
	{"a class with operators that the tests do not see", "-", "class V:\n    def __init__(s, v): s.v = v\n    def __add__(s, o): return V(s.v + o.v)\ndef g(a, b): return (V(a) + V(b)).v\n", "assert g(1, 2) == 3\n", true},
	{"an iterator", "-", "class I:\n    def __init__(s): s.n = 0\n    def __iter__(s): return s\n    def __next__(s):\n        s.n += 1\n        if s.n > 3: raise StopIteration\n        return s.n\n    def __len__(s): return 3\n" +
		"def g(): return I()\n", "assert list(g()) == [1, 2, 3] and len(g()) == 3\n", true},
	{"what the tests make of the library", "-", "import re\ndef g(s): return re.sub('a', 'b', s)\n", "import re, pathlib\nassert re.match('b+$', g('aaa')) and pathlib.PurePosixPath(g('a/a')) == pathlib.PurePosixPath('b/b')\n", true},
	{"a class of the problem that holds others", "class Node:\n    def __init__(s, v, n=None): s.v, s.n = v, n\n    def __eq__(s, o): return o is not None and s.v == o.v and s.n == o.n\n\ndef f(x):\n", "    return Node(x, Node([x]))\n", "def check(c):\n    assert c(1) == Node(1, Node([1]))\n", true},
	{"functions and generators", "", "    return (lambda y: y+x) if x else (i for i in range(3))\n", "def check(c):\n    assert c(1)(2) == 3 and list(c(0)) == [0, 1, 2]\n", true},
	{"a setting of the language", "-", "from __future__ import annotations\ndef g(x: nothing): return x\n", "assert g(5) == 5\n", true},
}

// A Python program cannot pass because the tests' words mean something else.
func TestDisarmedPythonTests(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		return // TestPythonPrograms says what happens then
	}
	runner := programs(t, []eval.Problem{{Language: "python"}})
	if runner == nil {
		return
	}
	for _, tt := range disarmingPython {
		t.Run(tt.name, func(t *testing.T) {
			contracttest.Cases(t, 1)
			p := eval.Problem{Program: cmp.Or(tt.given, pythonGiven), Test: cmp.Or(tt.tests, pythonTests), Entry: "f", Language: "python", Style: "humaneval"}
			if tt.given == "-" {
				p.Program, p.Entry, p.Style = "", "", "mbpp"
			}
			passed, why, err := runner.Passes(context.Background(), p, tt.completion)
			if err != nil || passed != tt.passes || !passed && why == "" {
				t.Errorf("passed=%v, %q, want %v (%v)", passed, why, tt.passes, err)
			}
		})
	}
}

// The score of such programs is 0.
func TestDisarmedPythonScore(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		return
	}
	problems := read(t, "humaneval", `{"task_id":"t/1","prompt":"def f(x):\n    \"One more.\"\n","test":"def check(c):\n    assert c(1) == 2 and abs(c(2) - 3) < 1\n","entry_point":"f"}`+"\n")
	runner := programs(t, problems)
	if runner == nil {
		return
	}
	for _, text := range []string{
		"    class A:\n        def __eq__(s, o): return True\n        def __sub__(s, o): return 0\n    return A()\n", "    global abs\n    def abs(x): return 0\n    return 2\n",
	} {
		contracttest.Cases(t, 1)
		r, err := eval.RunCode(context.Background(), problems, 1, script{"def f": text}, runner, func() {})
		if err != nil {
			t.Fatal(err)
		}
		if rate, _, err := r.PassAtK(1); err != nil || rate != 0 || r.Problems[0].Generated != 1 || !strings.Contains(r.Problems[0].Failure, "exit 1") {
			t.Errorf("pass@1 %v, %+v, %v", rate, r.Problems[0], err)
		}
	}
}
