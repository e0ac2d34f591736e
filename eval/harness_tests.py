"""The side of the tests: what stands for a program's objects, and the run of the tests.

After the tests it prints a word, which only this side knows: without it the tests did not run to their end.
"""
import functools

# Modules of classes whose objects the program may look into, where the tests gave it one: from functions, frames or classes
# there is a way to everything else, and what functools makes of functions keeps their arguments.
OPEN = ('__main__', '_io', 'unittest.mock')
# Exceptions that control a loop, a generator or a test: a program raises them as errors.
CONTROL = (StopIteration, StopAsyncIteration, GeneratorExit)
# Methods of the language's types that decide: a test that calls one expects such a value.
PREDICATES = {n for t in (str, bytes, int, float, set, frozenset) for n in dir(t) if n.startswith('is') or n in ('startswith', 'endswith')} | {
    'all', 'any', 'equals', 'allclose', 'array_equal'}


class Remote:
    """An object of the program. The classes below it are made from what the program's classes say of themselves."""
    __slots__ = ('_remote', '__weakref__')

    def __getattr__(self, name):
        if name.startswith('__') and name not in ('__name__', '__qualname__', '__doc__', '__annotations__', '__defaults__', '__module__'):
            raise AttributeError(name)
        believe(self, name)
        return within(type(self), SIDE.call('getattr', object.__getattribute__(self, '_remote'), name))

    def __setattr__(self, name, value):
        SIDE.call('setattr', self._remote, name, value)

    def __delattr__(self, name):
        SIDE.call('delattr', self._remote, name)

    def __reduce_ex__(self, protocol):
        raise TypeError('an object of the program cannot be copied')


class Function(Remote):
    __slots__ = ()
    __doc__ = property(lambda self: SIDE.call('getattr', self._remote, '__doc__'))

    def __call__(self, *args, **named):
        return SIDE.call('call', self._remote, args, named)


class Class(type):
    """A class of the program: a call makes an object there, its attributes are asked for."""

    def __call__(cls, *args, **named):
        return SIDE.call('call', SIDE.handles[cls], args, named)

    def __getattr__(cls, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return within(cls, SIDE.call('getattr', SIDE.handles[cls], name))

    def __setattr__(cls, name, value):
        if cls in SIDE.handles and not name.startswith('_abc_'):
            SIDE.call('setattr', SIDE.handles[cls], name, value)

    def __iter__(cls):
        return iter(SIDE.call('method', SIDE.handles[cls], '__iter__', (), {}))

    def __len__(cls):
        return SIDE.call('method', SIDE.handles[cls], '__len__', (), {})

    def __bool__(cls):
        return True

    def __getitem__(cls, key):
        return SIDE.call('method', SIDE.handles[cls], '__getitem__', (key,), {})


def asked_for(kind):
    """Whether the tests name this class or one that it derives from: a name of theirs has to stand for this very class."""
    for c in kind.__mro__:
        if isinstance(c, Class) and c not in SIDE.trusted and c.__name__ in SIDE.named & SIDE.visible:
            SIDE.trust(c.__name__, SIDE.call('name', c.__name__))
    return any(c in SIDE.trusted for c in kind.__mro__ if isinstance(c, Class))


def within(kind, v):
    """What an attribute gave: a class within one that the tests name is named by them, too."""
    if isinstance(v, Class) and asked_for(kind):
        SIDE.trusted.add(v)
    return v


def believe(v, name):
    """Refuses to ask an object of the program what decides a test, where the tests know nothing of its class."""
    kind = type(v)
    if asked_for(kind):
        return
    if name in PREDICATES:
        SIDE.fault_of(f'an object of the program answers {name} itself')
    if SIDE.classes and isinstance(kind, Class):
        SIDE.fault_of(f'a {kind.__name__} of the program stands for an object of the problem')


def filled(self):
    """Whether an object has a length, where the tests know its class."""
    if not asked_for(type(self)):
        SIDE.fault_of(f'a {type(self).__name__} of the program says itself whether it is true (__len__)')
    return SIDE.call('method', handle(self), '__len__', (), {}) != 0


def asked(name):
    """An operator that is a call like others."""
    def ask(self, *args, **named):
        believe(self, name)
        return SIDE.call('method', handle(self), name, args, named)
    return ask


def leaving(self, *args):
    """The end of a context, which may pass over what its body raises, but not over a check of the tests."""
    passed = SIDE.call('method', handle(self), '__exit__', args[:2] + (None,) * len(args[2:]), {})
    if passed and args and isinstance(args[1], BaseException):
        why = SIDE.text.lost(args[1], args[2], sys._getframe(1))
        if why:
            SIDE.fault_of(f'a context of the program passes over {type(args[1]).__name__}: {why}')
    return passed


def attribute(self, name):
    """An attribute of a value whose class the program derived: its content crosses with every call of a method."""
    if name.startswith('__'):
        raise AttributeError(name)
    believe(self, name)
    v = SIDE.call('attribute', self, name)
    return (lambda *args, **named: SIDE.call('send', self, name, args, named)) if isinstance(v, Function) else v


def following(self):
    """The next item of an iterator whose class is the program's."""
    more, v = SIDE.call('next', handle(self), None)
    if not more:
        raise StopIteration(v)
    return v


def refused(name):
    """An operator that decides what a test sees: the program's own is not asked."""
    def fault(self, *args):
        SIDE.faults.append(f'a {type(self).__name__} of the program says itself what it is equal to ({name})')
        raise AssertionError(SIDE.faults[0])
    return fault


def compared(name, fields):
    """What the library makes for a dataclass: objects of one class are compared field by field."""
    def compare(self, other):
        if type(self) is not type(other):
            return NotImplemented
        mine, others = (tuple(SIDE.call('getattr', x._remote, n) for n in fields) for x in (self, other))
        return getattr(tuple, name)(mine, others)
    return compare


def handle(v):
    return object.__getattribute__(v, '_remote')


class Closed:
    """Where modules would be looked for in a directory that the program's files come to: there are none."""
    find_spec = staticmethod(lambda name, target=None: None)


def closed(path):
    """The first of sys.path_hooks: no module comes from the tests' own directory, whatever else has put it on the path."""
    home = os.path.realpath(SIDE.files.home) + os.sep
    if not (os.path.realpath(path) + os.sep).startswith(home):
        raise ImportError
    return Closed


class TestsFiles(Files):
    """The tests name files to the program. What they wrote themselves the program cannot change.

    mentioned are names in the tests' text: such a file may come from the program, and does not go to it. words are those of the
    problem's text: each may be a file, and a folder only where the tests have such a folder.
    """

    def __init__(self):
        super().__init__()
        self.made = {}  # by the program, as it came
        self.mentioned, self.words, self.waiting = set(), set(), {}  # waiting: files of the program that nobody named so far

    def named(self, text):
        self.note(text, self.names)
        return text

    def crosses(self, file):
        return self.within(file, self.names, self.words)

    def wanted(self, name):
        file = os.path.normpath(os.path.join(self.home, name))
        folders = {w for w in self.words if os.path.isdir(w)}
        return file in self.words or self.within(file, self.names, self.mentioned, folders)

    def take(self, files):
        files = {**self.waiting, **files}
        wanted = {n for n in files if self.wanted(n)}
        self.waiting = {n: t for n, t in files.items() if n not in wanted and t is not None}
        super().take({n: files[n] for n in wanted})

    def put(self, name, path, text):
        if text is False:
            SIDE.faults.append(f'{name} does not cross: files of more than 8 MiB, or more than 256')
            return
        if os.path.lexists(path):
            with open(path, 'rb') as f:
                now = base64.b64encode(f.read()).decode()
            if now != text and self.made.get(name) != now:
                SIDE.faults.append(f'the program changed {name}, a file of its tests')
                return
        self.made[name] = text
        super().put(name, path, text)


class Tests(Wire):
    """The side of the tests."""

    def __init__(self, fd_in, fd_out):
        super().__init__(fd_in, fd_out, lambda op, operands: getattr(self, 'do_' + op)(*operands))
        self.faults, self.handles, self.kinds = [], {}, {}
        self.text, self.kept = None, []  # the tests'; exceptions of callbacks in calls that have not ended
        self.trusted = set()  # classes of the program that the tests name
        self.files = TestsFiles()
        self.objects, self.streams = weakref.WeakValueDictionary(), weakref.WeakKeyDictionary()

    def trust(self, name, v):
        """The tests found v by this name. What the problem declares as a function is none of its classes."""
        if isinstance(v, Class) and name in self.named and name not in self.functions:
            self.trusted.add(v)

    def fault_of(self, why):
        self.faults.append(why)
        raise AssertionError(why)

    def put(self, v, name, value):
        """A field is content: it does not stand before a method of its class, and what is computed is computed here."""
        a = of_class(type(v), name)
        if isinstance(a, functools.cached_property):
            return
        if a is None or isinstance(a, types.MemberDescriptorType) or name in getattr(type(v), '__dataclass_fields__', ()):
            object.__setattr__(v, name, value)
        elif hasattr(type(a), '__set__'):
            v.__dict__[name] = value
        elif hasattr(type(a), '__get__') or isinstance(a, type):
            self.fault_of(f'the program put something before {type(v).__name__}.{name}')
        else:
            object.__setattr__(v, name, value)

    def read(self):
        try:
            m = super().read()
        except (EOFError, OSError):
            self.faults.append('the program ended before its tests did')
            raise SystemExit(self.faults[-1])
        if m.get('out'):
            sys.stdout.write(m['out'])
        return m

    def write(self, message):
        try:
            super().write(message)
        except OSError:
            pass  # it has ended: there is no answer

    def call(self, op, *operands):
        before = len(self.kept)
        m, objects = self.ask(op, *operands)
        failed, self.kept[before:] = self.kept[before:], []
        if 'raised' in m:
            raise self.exception(*self.decode(m['raised'], objects))
        if failed and self.text.unseen(sys._getframe(1)):
            self.fault_of(f'the program passes over {type(failed[0]).__name__} of a function of its tests: {failed[0]}')
        v = self.decode(m['nodes'], objects)
        if v is NotImplemented:
            self.fault_of('the program returns NotImplemented, which is true')
        return v

    def exception(self, mro, args, text, fields):
        """The exception that stands for one of the program: of the same class, or of the nearest that both sides know."""
        kind = next((c for c in mro if isinstance(c, type) and issubclass(c, BaseException)), RuntimeError)
        if issubclass(kind, CONTROL):
            return RuntimeError(f'the program raised {kind.__name__}')
        try:
            e = kind(*args)
        except Exception:  # it is made of other things than it keeps
            e = kind.__new__(kind, *args)
            e.args = tuple(args)
        for n, v in fields.items():
            if n.startswith('__'):
                continue
            if type(of_class(kind, n)) in FUNCTIONS + (property, classmethod, staticmethod):
                self.fault_of(f'the program put something before {kind.__name__}.{n}')
            try:
                object.__setattr__(e, n, v)
            except Exception:
                pass  # of a class whose attributes are its own
        e.__dict__.setdefault('_text', text)
        return e

    # What stands for objects of the program.

    def far(self, node, item):
        name = node[0]
        if name == 'value':
            return item(node[1])
        if name == 'module':
            return self.module(node[1])
        if name == 'library':
            return self.library(node, item)
        if name == 'class':
            return self.kind(node)
        n = node[1] if name in ('function', 'iterator') else node[2]
        if type(n) is not int:
            raise ValueError('no handle')
        if n in self.objects:
            return self.objects[n]
        if name == 'iterator':
            v = self.stream(n)
            self.streams[v] = n
        elif name == 'sub':
            return self.sub(node, n, item)
        elif name in ('function', 'object'):
            kind = Function if name == 'function' else item(node[1])
            if not issubclass(kind, Remote):
                if any(c is kind for c in self.classes.values()):
                    self.fault_of(f'objects of {kind.__name__} do not cross: the problem made it of more than fields')
                kind = Remote
            v = object.__new__(kind)
            object.__setattr__(v, '_remote', n)
        else:
            raise ValueError(f'no value: {name}')
        self.objects[n] = v
        return v

    def sub(self, node, n, item):
        """A value of the language whose class the program derived: its content, and methods by calls."""
        kind, content = item(node[1]), node[3]
        new = [item(x) for x in content[1]] if content[0] in ('tuple', 'frozenset') else item(content[1]) if content[0] == 'exact' else None
        if not isinstance(kind, type) or issubclass(kind, (Remote, BaseException)):
            kind = KINDS[content[0]] if content[0] in KINDS else type(new)
        like = base_of(kind)
        v = like.__new__(kind, new) if new is not None else like.__new__(kind)
        if not isinstance(kind, Class):
            return v
        v.__dict__['_remote'] = n
        try:
            self.objects[n] = v
        except TypeError:
            pass  # no weak references to numbers and tuples
        return v

    def kind(self, node):
        n, module, name = node[1:4]
        if n in self.kinds:
            return self.kinds[n]
        known = self.known(module, name)
        if known is None:
            known = self.make_kind(n, self.call('describe', n))
        self.kinds[n] = known
        return known

    def known(self, module, name):
        """A class of the library that is the same here: an exception, or one of plain values."""
        top = str(module).partition('.')[0]
        if top in UNSEEN or top in ('unittest', 'bdb', 'pdb', 'doctest', 'pytest', '_pytest') or module not in sys.modules:
            return None
        c = vars(sys.modules[module]).get(name)
        if isinstance(c, type) and (issubclass(c, Exception) or c in CONTAINERS or c in PLAIN.values()):
            return c
        return None

    def make_kind(self, n, d):
        name = d['name']
        bases = [b for b in d['bases'] if isinstance(b, type)]
        failing = tuple(b for b in bases if issubclass(b, BaseException))
        if failing:
            kept = tuple(b for b in failing if not issubclass(b, CONTROL)) or (RuntimeError,)
            return type(name, kept, {'__str__': lambda e: e.__dict__.get('_text', '') or BaseException.__str__(e)})
        names, methods = set(d['names']), {}
        like = next((b for b in bases if base_of(b)), None)
        if like:
            methods = {'__getattr__': attribute, '__reduce_ex__': Remote.__reduce_ex__}
            bases = [b for b in bases if base_of(b)]
            made = Class(name, tuple(bases), methods)
        else:
            for m in CALLS:
                if m in names:
                    methods[m] = following if m == '__next__' else leaving if m == '__exit__' else asked(m)
            for m in DECIDING:
                if m in names:
                    methods[m] = refused(m)
            if '__len__' in methods and '__bool__' not in methods:
                methods['__bool__'] = filled
            if d['fields'] is not None:
                for m in ['__eq__'] + (['__lt__', '__le__', '__gt__', '__ge__'] if d['ordered'] else []):
                    if m not in names:
                        methods[m] = compared(m, d['fields'])
            if '__eq__' in methods:
                fields = d['fields']
                whole = lambda s: hash(tuple(SIDE.call('getattr', s._remote, f) for f in fields))
                methods['__hash__'] = None if not d['hashed'] else whole if fields is not None else object.__hash__
            bases = [b for b in bases if issubclass(b, Remote)] or [Remote]
            made = Class(name, tuple(bases), methods)
        self.handles[made] = n
        return made

    def stream(self, n):
        """An iterator of the program, as a generator."""
        def following():
            sent = None
            while True:
                more, v = SIDE.call('next', n, sent)
                if not more:
                    return v
                sent = yield v
        return following()

    def module(self, name):
        """A module of functions, or one that the texts of the tests or of the problem use. Nothing is imported for an answer."""
        m = sys.modules.get(name) if type(name) is str and name in self.usable else None
        if type(m) is not types.ModuleType or m is sys.modules['__main__']:
            raise ImportError(f'module {name} of the program')
        return m

    def library(self, node, item):
        module, name, parts = node[1], node[2], item(node[3])
        if not any(module == m and name == n for m, n, _ in LIBRARY):
            raise ValueError('no value')
        kind = getattr(__import__(module), name)
        return kind(*parts) if name == 'array' else kind(parts)

    # What the tests give to the program.

    def object(self, v, item):
        kind = type(v)
        if kind in self.streams_kinds and v in self.streams:
            return ['own', self.streams[v]]
        if isinstance(v, Remote):
            return ['own', handle(v)]
        if issubclass(kind, type) and v in self.handles:
            return ['own', self.handles[v]]
        if kind.__module__.partition('.')[0] == 'pathlib' and kind.__name__ in ('PosixPath', 'PurePosixPath'):
            return ['library', 'pathlib', kind.__name__, item(str(v))]
        if isinstance(kind, Class):
            n, like = v.__dict__['_remote'], base_of(kind)
            return ['sub', None, n, self.content(CONTAINERS[like], v, item) if like in CONTAINERS else ['exact', None]]
        if kind in FUNCTIONS or issubclass(kind, type):
            known = isinstance(getattr(v, '__self__', sys), types.ModuleType) and v.__module__ != '__main__'
        else:
            known = kind.__module__ not in ('__main__', '_io') and kind not in ITERATORS
        if known:
            try:
                return ['pickle', base64.b64encode(pickle.dumps(v)).decode()]
            except Exception:
                pass  # it is called instead
        if kind in FUNCTIONS or issubclass(kind, type) or kind.__module__ == 'functools':
            return ['function', self.export(v), []]
        if kind in ITERATORS:
            return ['iterator', self.export(v), []]
        like = base_of(kind)
        if like in CONTAINERS:
            return self.content(CONTAINERS[like], v, item)
        names = [n for n in DECIDING + CALLS + ['__hash__'] if getattr(kind, n, None) is not getattr(object, n, None)]
        return ['object', self.export(v), names]

    streams_kinds = {types.GeneratorType}

    # What the program may ask: objects that it was given, by their number, but no way from them to this interpreter.

    def watched(self, f, args=(), named={}):
        """Calls what the tests gave, and keeps the exception that the program must not pass over."""
        try:
            return f(*args, **named)
        except StopIteration:
            raise
        except BaseException as e:
            if self.text.swallowed(e):
                self.kept.append(e)
            raise

    def do_call(self, n, args, named):
        return self.watched(self.exported[n], args, named)

    def reach(self, n, name):
        v = self.exported[n]
        if type(name) is not str or name.startswith('__') or type(v).__module__ not in OPEN or isinstance(v, type):
            raise AttributeError(name)
        return v

    def mocked(self, v, name, kept=()):
        """Refuses what makes a mock of the tests say something else: all that is not a name of their own."""
        mock = sys.modules.get('unittest.mock')
        if mock and isinstance(v, mock.NonCallableMock) and (name.startswith('_') or name in kept or hasattr(type(v), name)):
            self.fault_of(f'the program uses {name} of a mock of its tests')

    def do_getattr(self, n, name):
        v = self.reach(n, name)
        self.mocked(v, name, ('method_calls',))
        return getattr(v, name)

    def do_setattr(self, n, name, value):
        v = self.reach(n, name)
        self.mocked(v, name, vars(v) if hasattr(v, '__dict__') else ())
        a = of_class(type(v), name)
        if hasattr(type(a), '__get__') and not hasattr(type(a), '__set__'):
            self.fault_of(f'the program put something before {type(v).__name__}.{name} of its tests')
        setattr(v, name, value)

    def do_method(self, n, name, args, named):
        v = self.exported[n]
        if name not in DECIDING + CALLS + ['__hash__'] or type(v).__module__ not in OPEN:
            raise AttributeError(name)
        if name == '__call__':
            return self.watched(v, args, named)
        return getattr(type(v), name)(v, *args, **named)

    def do_next(self, n):
        try:
            return [True, self.watched(next, [self.exported[n]])]
        except StopIteration as e:
            return [False, e.value]

    def do_input(self, prompt):
        return builtins.input(prompt)

    def do_readline(self):
        return sys.stdin.readline()

    def fault(self, e):
        if isinstance(e, AssertionError):
            self.faults.append(f'an assertion fails within the program: {e}')
        return [type(e).__name__, [x for x in e.args if type(x) in SCALARS]]


def base_of(kind):
    return next((b for b in BASES if b in kind.__mro__), None)


class Names(dict):
    """What the tests see: their own names, those of the problem, and of the program what it declares besides."""

    def __missing__(self, name):
        if name not in SIDE.visible:
            raise KeyError(name)
        v = SIDE.imported[name] if name in SIDE.imported else SIDE.call('name', name)
        if name in SIDE.modules and v is not sys.modules.get(name) or name in SIDE.outer and not of_library(name, v):
            SIDE.faults.append(f'the program declares {name}, which its tests use as the library has it')
        SIDE.trust(name, v)
        if isinstance(v, (Function, type)):
            self[name] = v
        return v


def copied(c):
    """Whether objects of a class of the problem are their fields, and nothing besides."""
    return type(c).__name__ in ('type', 'ABCMeta') and type(c).__module__ in ('builtins', 'abc') and all(
        b is object or b.__module__ == '__main__' or (b.__module__, b.__name__) in (('abc', 'ABC'), ('typing', 'Generic')) for b in c.__mro__)


def run(order):
    """Loads the program on the other side, runs the tests on this one, and prints the word."""
    def take(size):
        text = b''
        while len(text) < size:
            text += os.read(SIDE.fd_in, size - len(text))
        return text.decode()
    source, tests, word = take(order['program']), take(order['tests']), take(order['word'])
    given, entry = order['given'], order['entry']
    tree, checks = ast.parse(source, '<stdin>'), ast.parse(tests, '<tests>')
    problem = [n for n in tree.body if n.end_lineno <= given and getattr(n, 'name', None) != entry]
    first = set()
    for node in problem:
        declared(node, first)
    SIDE.visible = set()
    SIDE.named = free(tests)
    SIDE.functions = {n.name for n in tree.body if isinstance(n, SCOPES[:2]) and n.lineno <= given}
    SIDE.modules = library(checks)
    SIDE.usable = SIDE.modules | {*IMPORTED_FROM, 'datetime'} | imports(checks, *problem)
    sys.path_hooks.insert(0, closed)
    space = Names(__name__='__main__', __builtins__=vars(builtins))
    classes = [n.name for n in problem if isinstance(n, ast.ClassDef)]
    for text in ''.join(source.splitlines(True)[:given]).split():
        SIDE.files.note(text.strip('.,:;\'"`()'), SIDE.files.words)
    for n in ast.walk(checks):
        if isinstance(n, ast.Constant) and type(n.value) is str:
            SIDE.files.note(n.value, SIDE.files.mentioned)
    noted = set(SIDE.files.names)
    names = SIDE.call('load', source, classes, SIDE.files.home)
    SIDE.files.names = noted  # without what the program's text mentions

    # A program that is asked for a function with a name of the language, such as sum, is tested by that.
    used = {n.id for n in ast.walk(checks) if isinstance(n, ast.Name)}
    own = set(vars(builtins)) | {'__name__', '__builtins__', '__file__', '__doc__', '__spec__', '__loader__', '__package__'}
    mentioned = {n for n in names if n in used and n not in first}
    outer = outermost(checks, mentioned)
    SIDE.outer = {n for n in outer if n != entry and of_library(n)}
    wanted = {entry} if entry in names else set() if mentioned - own else mentioned - outer
    if len(wanted) > 1:
        raise SystemExit(f'the program declares {", ".join(sorted(wanted))}: which of them is asked for is not known')
    SIDE.visible = {n for n in names if n not in first and (n not in own or n in wanted)}
    SIDE.imported = imported(tree, SIDE.visible - {entry})
    SIDE.text = Text(checks, SIDE.visible - set(SIDE.imported) | {entry})
    exec(compile(ast.Module(problem, []), '<problem>', 'exec', dont_inherit=True), space)
    SIDE.classes = {n: space[n] for n in classes if isinstance(space.get(n), type)}
    SIDE.given = {n: c for n, c in SIDE.classes.items() if copied(c)}
    SIDE.call('copied', list(SIDE.given))
    exec(compile(checks, '<tests>', 'exec', dont_inherit=True), space)
    if SIDE.faults:
        raise SystemExit(SIDE.faults[0])
    sys.stdout.flush()
    os.write(2, f'\n{word}\n'.encode())
    os._exit(0)
