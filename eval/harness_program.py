"""The side of the program."""


class Output(io.RawIOBase):
    """What a program prints: the tests' side writes it to its own standard output, which tests may look at."""

    def __init__(self):
        self.text = b''

    def writable(self):
        return True

    def write(self, b):
        self.text = (self.text + bytes(b))[-1 << 20:]
        return len(b)


class Input(io.TextIOBase):
    """The standard input of a program: that of its tests, which may put something there."""

    def __init__(self, ask):
        self.ask = ask

    def readable(self):
        return True

    def readline(self, size=-1):
        return self.ask('readline')

    def read(self, size=-1):
        return ''.join(iter(self.readline, ''))

    def __next__(self):
        line = self.readline()
        if not line:
            raise StopIteration
        return line


class ProgramFiles(Files):
    """Paths of the tests' directory are those of the program's. No name of a file comes from the tests but in calls."""

    def __init__(self):
        super().__init__()
        self.theirs = None  # the directory of the tests

    def crosses(self, file):
        return True

    def too_much(self):
        return False  # the tests' side refuses it, if it wants it

    def swap(self, text, before, after):
        return after + text[len(before):] if text == before or text.startswith(before + os.sep) else text

    def here(self, text):
        return self.swap(text, self.theirs, self.home) if self.theirs else text

    def named(self, text):
        return self.swap(text, self.home, self.theirs) if self.theirs else text


class Program(Wire):
    """The side of the program."""

    def __init__(self, fd_in, fd_out, main):
        super().__init__(fd_in, fd_out, lambda op, operands: getattr(self, 'do_' + op)(*operands))
        self.main, self.locals = main, {}
        self.files = ProgramFiles()
        self.raw = Output()
        self.out = io.TextIOWrapper(io.BufferedWriter(self.raw), encoding='utf-8', errors='surrogatepass', write_through=True)
        sys.stdout = sys.__stdout__ = self.out
        sys.stdin = sys.__stdin__ = Input(self.far_call)
        self.lock = __import__('threading').RLock()
        builtins.input = lambda prompt='': self.far_call('input', str(prompt))

    def far_call(self, op, *operands):
        """Asks the tests' side."""
        with self.lock:
            m, objects = self.ask(op, *operands)
            if 'raised' in m:
                raised = self.decode(m['raised'], objects)
                kind = getattr(builtins, raised[0], RuntimeError)
                raise (kind if isinstance(kind, type) and issubclass(kind, BaseException) else RuntimeError)(*raised[1])
            return self.decode(m['nodes'], objects)

    def aside(self):
        try:
            self.out.flush()
        except Exception:
            pass  # the program closed it
        text, self.raw.text = self.raw.text, b''
        return {'out': text.decode('utf-8', 'surrogatepass')} if text else {}

    def write(self, m):
        super().write({**m, **self.aside()} if 'op' in m else m)

    def object(self, v, item):
        kind = type(v)
        if '__apr_far__' in type.__dict__['__dict__'].__get__(kind):
            return ['own', object.__getattribute__(v, '__apr_far__')]
        if issubclass(kind, type):
            return ['class', self.export(v), str(v.__module__), str(v.__qualname__)]
        if kind in FUNCTIONS or kind in (types.MethodDescriptorType, types.ClassMethodDescriptorType):
            return ['function', self.export(v)]
        if kind in ITERATORS:
            return ['iterator', self.export(v)]
        if kind.__module__ == 'numpy' and hasattr(v, 'item') and getattr(v, 'shape', None) == ():
            return ['value', item(v.item())]
        for module, name, parts in LIBRARY:
            if module in sys.modules and kind is getattr(sys.modules[module], name):
                return ['library', module, name, item(parts(v))]
        like = base(v)
        if like in CONTAINERS and getattr(v, '__dict__', None) and any(c is kind for c in self.classes.values()):
            raise TypeError(f'attributes of a {kind.__name__} do not cross: the problem made it of a {like.__name__}')
        if like is None or like is bool:
            return ['object', item(kind), self.export(v)]
        if like in CONTAINERS:
            return ['sub', item(kind), self.export(v), self.content(CONTAINERS[like], v, item)]
        exact = str.__add__(v, '') if like is str else bytes(memoryview(v)) if like is bytes else like.__pos__(v)
        return ['sub', item(kind), self.export(v), ['exact', item(exact)]]

    def far(self, node, item):
        name = node[0]
        if name == 'sub':
            return self.exported[node[2]]
        if name == 'library':
            return getattr(__import__(node[1]), node[2])(item(node[3]))
        if name == 'pickle':
            return pickle.loads(base64.b64decode(node[1]))
        if name == 'module':
            return __import__(node[1], fromlist=['*'])
        if node[1] not in self.locals:
            self.locals[node[1]] = self.stand_in(node[1], node[0], node[2])
        return self.locals[node[1]]

    def stand_in(self, n, kind, names):
        """An object of the tests: its methods are calls of the other side."""
        call = self.far_call
        methods = {'__apr_far__': n, '__getattr__': lambda s, name: call('getattr', n, name),
                   '__setattr__': lambda s, name, v: call('setattr', n, name, v)}

        def method(name):
            return lambda s, *a, **k: call('method', n, name, a, k)
        for name in names:
            methods[name] = method(name)
        if kind == 'function':
            methods = {'__apr_far__': n, '__call__': lambda s, *a, **k: call('call', n, a, k)}

        def following(s):
            more, v = call('next', n)
            if not more:
                raise StopIteration(v)
            return v
        if kind == 'iterator':
            methods = {'__apr_far__': n, '__iter__': lambda s: s, '__next__': following}
        return type(kind, (), methods)()

    def fault(self, e):
        """An exception as data: its classes, what it was made of, its text and its attributes."""
        kind = type(e)
        mro = [c for c in kind.__mro__ if c is not object]
        try:
            text = str(e)
        except BaseException:
            text = ''
        args, fields = list(e.args), {k: v for k, v in getattr(e, '__dict__', {}).items() if type(k) is str}
        if isinstance(e, OSError) and e.filename is not None:
            args.append(e.filename)
        return [mro, args, text, fields]

    def run(self):
        while True:
            m = self.read()
            self.write(self.answer(m))

    def do_load(self, source, given, folder):
        self.files.theirs = folder
        exec(compile(source, '<stdin>', 'exec', dont_inherit=True), self.main)
        for n in given:
            c = self.main.get(n)
            if isinstance(c, type):
                self.classes[n] = c
        return [n for n in self.main if type(n) is str]

    def do_copied(self, names):
        self.given = {n: self.classes[n] for n in names if n in self.classes}

    def do_name(self, name):
        return self.main[name]

    def do_call(self, n, args, named):
        return self.exported[n](*args, **named)

    def do_getattr(self, n, name):
        return getattr(self.exported[n], name)

    def do_attribute(self, v, name):
        return getattr(v, name)

    def do_send(self, v, name, args, named):
        return getattr(v, name)(*args, **named)

    def do_setattr(self, n, name, v):
        setattr(self.exported[n], name, v)

    def do_delattr(self, n, name):
        delattr(self.exported[n], name)

    def do_method(self, n, name, args, named):
        v = self.exported[n]
        f = getattr(type(v), name, None)
        if f is None and name in ('__str__', '__repr__'):
            f = getattr(object, name)
        return f(v, *args, **named)

    def do_next(self, n, sent):
        try:
            return [True, next(self.exported[n]) if sent is None else self.exported[n].send(sent)]
        except StopIteration as e:
            return [False, e.value]

    def do_close(self, n):
        self.exported[n].close()

    def do_describe(self, n):
        return describe(self.exported[n])


def describe(c):
    """What a class says of itself, for the class that stands for it."""
    attributes = type.__dict__['__dict__'].__get__
    names, fields = set(), None
    for k in c.__mro__:
        if k is object or k in BASES:
            continue
        own = attributes(k)
        names |= {n for n in DECIDING + CALLS + ['__hash__'] if own.get(n) is not None}
    kept = attributes(c).get('__dataclass_fields__')
    eq = getattr(c, '__eq__', None)
    if type(kept) is dict and type(eq) is types.FunctionType:
        compared = tuple(n for n, x in kept.items() if x._field_type is dataclasses._FIELD)
        like = dataclasses.make_dataclass('P', compared, order=True)
        own = [n for n in compared if hasattr(type(of_class(c, n)), '__set__') and not isinstance(of_class(c, n), types.MemberDescriptorType)]
        own += [n for n in ('__getattribute__', '__getattr__') if of_class(c, n) is not of_class(object, n)]
        if eq.__code__ == like.__eq__.__code__ and not own:
            fields = list(compared)
            names -= {n for n in ('__eq__', '__lt__', '__le__', '__gt__', '__ge__') if n in names and getattr(c, n).__code__ == getattr(like, n).__code__}
    return {'name': c.__name__, 'bases': [k for k in c.__bases__], 'names': sorted(names), 'fields': fields, 'ordered': fields is not None and hasattr(c, '__lt__') and c.__lt__ is not object.__lt__,
            'hashed': c.__hash__ is not None, 'iterable': issubclass(c, enum.Enum)}
