"""Runs a program in one interpreter and its tests in another. What crosses between them is data and calls, as JSON.

The text runs on both sides, in a namespace of its own; side says which one this is. The tests' side reads everything from its
standard input, sends the program to the other one, and never runs a line of it. Its objects stand for those of the
program: a value of a type that the language defines arrives as such a value; of another object, the tests hold a Remote,
whose methods are calls. Whatever the program does to its own interpreter, it can only answer.
"""
import base64, builtins, collections, dataclasses, datetime, decimal, enum, fractions, io, json, os, pickle, sys, types, weakref

WORD = 64
SCALARS = {int, float, str, bool, type(None)}
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType, types.WrapperDescriptorType)
VIEWS = {type({}.keys()): 'keys', type({}.values()): 'values', type({}.items()): 'items'}
CONTAINERS = {list: 'list', tuple: 'tuple', set: 'set', frozenset: 'frozenset', dict: 'dict', collections.deque: 'deque', bytearray: 'bytearray',
              collections.OrderedDict: 'odict', collections.defaultdict: 'ddict', collections.Counter: 'counter'}
MUTABLE = {'list', 'set', 'dict', 'deque', 'bytearray', 'odict', 'ddict', 'counter', 'inst'}
KINDS = {v: k for k, v in CONTAINERS.items()}
BASES = [collections.Counter, collections.OrderedDict, collections.defaultdict, dict, list, tuple, set, frozenset, collections.deque,
         bytearray, bool, int, float, str, bytes, complex]
ITERATORS = tuple({type(iter(x)) for x in ([], (), '', b'', {}, {}.values(), {}.items(), set(), range(0), range(1 << 65), reversed([]))} |
                  {map, zip, filter, enumerate, reversed, types.GeneratorType})
PLAIN = {'Fraction': fractions.Fraction, 'Decimal': decimal.Decimal, 'date': datetime.date, 'time': datetime.time,
         'datetime': datetime.datetime, 'timedelta': datetime.timedelta, 'range': range, 'slice': slice, 'complex': complex, 'bytes': bytes}
PURE = {'math', 'cmath', '_operator'}  # modules whose functions are the same on both sides
# Values of the library: module, class, and what makes one.
LIBRARY = [('pathlib', 'PosixPath', str), ('pathlib', 'PurePosixPath', str), ('uuid', 'UUID', str), ('array', 'array', lambda v: (v.typecode, tuple(v))),
           ('ipaddress', 'IPv4Address', str), ('ipaddress', 'IPv6Address', str), ('time', 'struct_time', tuple)]
# Operators that decide what a test sees. What a class of the program says of them is not asked.
DECIDING = [f'__{n}__' for n in (
    'eq ne lt le gt ge bool add radd iadd sub rsub isub mul rmul imul truediv rtruediv floordiv rfloordiv mod rmod pow rpow '
    'neg pos abs invert and rand or ror xor rxor lshift rlshift rshift rrshift matmul rmatmul divmod rdivmod '
    'round trunc floor ceil int float complex index contains').split()]
# Operators that are calls like others.
CALLS = [f'__{n}__' for n in 'call len getitem setitem delitem iter next reversed enter exit str repr format'.split()]


class Files:
    """The files of one side, in its own directory, which cross by their content.

    Those of the tests cross once they are named in what crosses. The program's side knows no names: it sends each file that
    changed, and the tests' side keeps those that its text or a call names.
    """

    MOST, COUNT = 8 << 20, 256  # bytes and files that cross at a time

    def __init__(self):
        self.home = os.environ['HOME']  # the sandbox's
        self.names, self.known = set(), {}  # named files and folders; of each that crossed, its content

    def here(self, text):
        """A text that came, as this side means it."""
        return text

    def named(self, text):
        """A text that goes, as the other side means it."""
        return text

    def note(self, text, names):
        if 0 < len(text) < 1000 and len(names) < 100000 and '\0' not in text and '\n' not in text:
            path = os.path.normpath(os.path.join(self.home, text))
            if path.startswith(self.home + os.sep):
                names.add(path)

    def within(self, file, *names):
        """Whether a file, or a folder that it is in, is named."""
        while len(file) > len(self.home):
            if any(file in n for n in names):
                return True
            file = os.path.dirname(file)
        return False

    def crosses(self, file):
        return self.within(file, self.names)

    def too_much(self):
        raise OSError('files of more than 8 MiB, or more than 256, do not cross')

    def found(self):
        """The files that cross, with their content."""
        all, size = {}, 0
        for folder, _, files in os.walk(self.home):
            for file in (os.path.join(folder, f) for f in files):
                if not self.crosses(file) or os.path.islink(file) or not os.path.isfile(file):
                    continue
                name, more = os.path.relpath(file, self.home), os.path.getsize(file)
                if size + more > self.MOST or len(all) >= self.COUNT:
                    all[name] = self.too_much()
                    continue
                size += more
                with open(file, 'rb') as f:
                    all[name] = base64.b64encode(f.read()).decode()
        return all

    def changed(self):
        """What the other side has to be told: content by name, null for a file that is gone."""
        if not self.known and not os.listdir(self.home):
            return {}
        now = self.found()
        new = {n: b for n, b in now.items() if self.known.get(n) != b}
        gone = [n for n, b in self.known.items() if b is not None and not os.path.lexists(os.path.join(self.home, n))]
        self.known.update(new)
        self.known.update(dict.fromkeys(gone))
        return {**new, **dict.fromkeys(gone)}

    def take(self, files):
        for name, text in files.items():
            path = os.path.normpath(os.path.join(self.home, name))
            if not path.startswith(self.home + os.sep) or not (os.path.realpath(os.path.dirname(path)) + os.sep).startswith(self.home + os.sep):
                raise ValueError('no file of this directory')
            self.put(name, path, text)

    def put(self, name, path, text):
        """Makes a file what the other side says: its content in base64, null for none."""
        self.known[name] = text
        if text is None:
            if os.path.isfile(path):
                os.remove(path)
            return
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), 'wb') as f:
            f.write(base64.b64decode(text))


class Wire:
    """One end of the connection. far makes what stands for an object of the other side."""

    def __init__(self, fd_in, fd_out, handle):
        self.fd_in, self.fd_out, self.handle = fd_in, fd_out, handle
        self.buffer, self.exported, self.numbers = b'', {}, {}
        self.files = Files()
        self.classes = {}  # that the problem declares, by name: both sides have them
        self.given = {}  # those of them that cross with all their fields

    def read(self):
        while b'\n' not in self.buffer:
            more = os.read(self.fd_in, 1 << 20)
            if not more:
                raise EOFError
            self.buffer = self.buffer + more if self.buffer else more
        line, _, self.buffer = self.buffer.partition(b'\n')
        m = json.loads(line)
        self.files.take(m.get('files') or {})
        return m

    def write(self, message):
        changed = self.files.changed()
        if changed:
            message['files'] = changed
        text = memoryview(json.dumps(message).encode() + b'\n')
        while text:
            text = text[os.write(self.fd_out, text):]

    def export(self, value):
        n = self.numbers.get(id(value))
        if n is None:
            n = self.numbers[id(value)] = len(self.exported) + 1
            self.exported[n] = value
        return n

    def ask(self, op, *operands):
        """Calls an operation of the other side. Containers that it changed are changed here; answers calls meanwhile."""
        nodes, objects = self.encode(operands)
        self.write({'op': op, 'nodes': nodes})
        while True:
            m = self.read()
            if 'op' in m:
                self.write(self.answer(m))
                continue
            return m, objects

    def answer(self, m):
        objects = []
        try:
            operands = self.decode(m['nodes'], objects)
            before = m['nodes'][:len(objects)]
            value = self.handle(m['op'], operands)
            return {'nodes': self.encode(value, objects, before)[0], **self.aside()}
        except BaseException as e:
            nodes = self.encode(self.fault(e), objects, m['nodes'][:len(objects)])[0]
            return {'raised': nodes, **self.aside()}

    def aside(self):
        return {}

    # A value is a list of nodes; the root comes last. An item is a scalar, or a list: ['r', number of a node] and so on.

    def encode(self, root, objects=(), before=()):
        numbers = {id(x): i for i, x in enumerate(objects)}
        objects = list(objects)
        nodes = []

        def item(v):
            kind = type(v)
            if kind is str:
                return self.files.named(v)
            if kind is bool or v is None:
                return v
            if kind is int:
                return v if -1 << 53 < v < 1 << 53 else ['I', hex(v)]
            if kind is float:
                return ['f', v.hex()]
            n = numbers.get(id(v))
            if n is None:
                n = numbers[id(v)] = len(objects)
                objects.append(v)
            return ['r', n]
        last, done = item([root]), 0
        while done < len(objects):
            node = self.node(objects[done], item)
            if done < len(before):
                node = None if node == before[done] or node[0] not in MUTABLE and node[0] != 'sub' else node
            nodes.append(node)
            done += 1
        return nodes + [last], objects

    def node(self, v, item):
        kind = type(v)
        name = CONTAINERS.get(kind)
        if name:
            return self.content(name, v, item)
        if kind in (bytes, complex, range, slice, fractions.Fraction, decimal.Decimal, datetime.date, datetime.time, datetime.datetime, datetime.timedelta):
            return ['plain', kind.__name__, *self.parts(kind, v, item)]
        if kind in VIEWS:
            return ['view', VIEWS[kind], item(tuple(v))]
        if kind is types.MappingProxyType:
            return ['proxy', item(dict(v))]
        if v is Ellipsis or v is NotImplemented:
            return ['const', str(v)]
        if issubclass(kind, type):
            name = next((n for n, c in self.classes.items() if c is v), None)
            if name or type.__dict__['__module__'].__get__(v) == 'builtins' and getattr(builtins, v.__name__, None) is v:
                return ['given', name] if name else ['type', v.__name__]
        if kind is types.ModuleType:
            return ['module', v.__name__]
        if kind is types.BuiltinFunctionType and v.__module__ in PURE and getattr(sys.modules[v.__module__], v.__name__, None) is v:
            return ['pure', v.__module__, v.__name__]
        name = next((n for n, c in self.classes.items() if c is kind), None)
        if name in self.given:
            return ['inst', name, [x if i % 2 == 0 else item(x) for pair in self.fields(v).items() for i, x in enumerate(pair)]]
        if name and issubclass(kind, enum.Enum):
            return ['member', item(kind), item(v._value_)]
        if name and issubclass(kind, tuple):
            return ['named', item(kind), [item(x) for x in tuple.__iter__(v)]]
        return self.object(v, item)

    def content(self, name, v, item):
        if name in ('dict', 'odict', 'counter', 'ddict'):
            flat = [item(x) for pair in (collections.OrderedDict if name == 'odict' else dict).items(v) for x in pair]
            return [name, flat] + ([item(v.default_factory)] if name == 'ddict' else [])
        if name == 'bytearray':
            return [name, bytes(v).hex()]
        base = KINDS[name]
        return [name, [item(x) for x in base.__iter__(v)]] + ([v.maxlen] if name == 'deque' else [])

    def parts(self, kind, v, item):
        if kind is bytes:
            return [v.hex()]
        if kind is complex:
            return [item(v.real), item(v.imag)]
        if kind in (range, slice):
            return [item(v.start), item(v.stop), item(v.step)]
        if kind is fractions.Fraction:
            return [item(v._numerator), item(v._denominator)]
        if kind is datetime.timedelta:
            return [v.days, v.seconds, v.microseconds]
        if kind is decimal.Decimal:
            return [decimal.Decimal.__str__(v)]
        if getattr(v, 'tzinfo', None) not in (None, datetime.timezone.utc):
            raise TypeError('a time of a zone of its own')
        return [kind.isoformat(v)]

    def fields(self, v):
        slots = [n for c in type(v).__mro__ for n in ([c.__dict__['__slots__']] if isinstance(c.__dict__.get('__slots__'), str) else c.__dict__.get('__slots__', ()))]
        all = {n: getattr(v, n) for n in slots if n not in ('__dict__', '__weakref__') and hasattr(v, n)}
        return {**all, **getattr(v, '__dict__', {})}

    def decode(self, nodes, objects):
        """Returns the root, and appends to objects what the nodes stand for; those that it holds already are changed in place."""
        known = len(objects)
        objects.extend([None] * (len(nodes) - 1 - known))
        made = set(range(known))

        def item(x):
            if type(x) is not list:
                if type(x) not in SCALARS:
                    raise ValueError('no value')
                return self.files.here(x) if type(x) is str else x
            if x[0] == 'I':
                return int(x[1], 16)
            if x[0] == 'f':
                return float.fromhex(x[1])
            n = x[1]
            if n not in made:
                made.add(n)
                objects[n] = self.make(nodes[n], item)
            return objects[n]
        for n, node in enumerate(nodes[:-1]):
            if n >= known and node[0] in MUTABLE:
                made.add(n)
                objects[n] = object.__new__(self.given[node[1]]) if node[0] == 'inst' else KINDS[node[0]]() if node[0] != 'deque' else collections.deque(maxlen=node[2])
        for n in range(len(nodes) - 1):
            item(['r', n])
        for late in (False, True):  # what may be hashed is filled first
            for n, node in enumerate(nodes[:-1]):
                if node and (node[0] in ('set', 'dict', 'odict', 'ddict', 'counter')) == late and node[0] in MUTABLE:
                    self.fill(objects[n], node, item)
                elif node and node[0] == 'sub' and late and node[3][0] in MUTABLE:
                    self.fill(objects[n], node[3], item)
        return item(nodes[-1])[0]

    def fill(self, v, node, item):
        name = node[0]
        if name == 'inst':
            if type(v) is not self.given.get(node[1]):
                raise ValueError('no object of that class')
            for n in set(getattr(v, '__dict__', ())) - set(node[2][::2]):
                object.__delattr__(v, n)
            for n, x in zip(node[2][::2], node[2][1::2]):
                if type(n) is str and not n.startswith('__'):
                    self.put(v, n, item(x))
            return
        base = KINDS[name]
        if name == 'bytearray':
            v[:] = bytes.fromhex(node[1])
        elif issubclass(base, dict):
            new = [(item(node[1][i]), item(node[1][i + 1])) for i in range(0, len(node[1]), 2)]
            like = collections.OrderedDict if name == 'odict' else dict
            like.clear(v)
            for k, x in new:
                like.__setitem__(v, k, x)
            if name == 'ddict' and v.default_factory is None:
                v.default_factory = item(node[2])
        elif name == 'set':
            new = [item(x) for x in node[1]]
            set.clear(v)
            set.update(v, new)
        else:
            new = [item(x) for x in node[1]]
            base.clear(v)
            base.extend(v, new)

    def put(self, v, name, value):
        """Sets a field of an object of the problem."""
        object.__setattr__(v, name, value)

    def make(self, node, item):
        name = node[0]
        if name in ('tuple', 'frozenset'):
            return KINDS[name](item(x) for x in node[1])
        if name == 'plain':
            return self.plain(node, item)
        if name == 'view':
            all = item(node[2])
            if node[1] == 'items':
                return dict(all).items()
            return dict.fromkeys(all).keys() if node[1] == 'keys' else dict(enumerate(all)).values()
        if name == 'proxy':
            return types.MappingProxyType(item(node[1]))
        if name == 'const':
            return {'Ellipsis': Ellipsis, 'NotImplemented': NotImplemented}[node[1]]
        if name == 'type':
            c = vars(builtins)[node[1]]
            if not isinstance(c, type) or type.__dict__['__module__'].__get__(c) != 'builtins':
                raise ValueError('no class')
            return c
        if name == 'member' and isinstance(item(node[1]), enum.EnumMeta):
            return item(node[1])(item(node[2]))
        if name == 'named' and issubclass(item(node[1]), tuple):
            return tuple.__new__(item(node[1]), [item(x) for x in node[2]])
        if name == 'given':
            return self.classes[node[1]]
        if name == 'own':
            return self.exported[node[1]]
        if name == 'pure' and node[1] in PURE:
            f = vars(__import__(node[1]))[node[2]]
            if type(f) is not types.BuiltinFunctionType or f.__module__ != node[1]:
                raise ValueError('no function')
            return f
        return self.far(node, item)

    def plain(self, node, item):
        kind, parts = PLAIN[node[1]], [item(x) for x in node[2:]]
        if kind is bytes:
            return bytes.fromhex(parts[0])
        if kind is fractions.Fraction and any(type(x) is not int for x in parts):
            raise ValueError('no fraction')
        if kind in (datetime.date, datetime.time, datetime.datetime):
            return kind.fromisoformat(parts[0])
        return kind(*parts)


def base(v):
    """The content of v as a value of the language's own class: what a class of the program makes of it is not asked."""
    for b in BASES:
        if b in type.__dict__['__mro__'].__get__(type(v)):
            return b
    return None


def of_class(kind, name):
    """What the classes of an object say that its attribute is; None: nothing."""
    return next((c.__dict__[name] for c in type.__dict__['__mro__'].__get__(kind) if name in c.__dict__), None)


def streams():
    """Takes the standard input and output for the connection: the program and the tests find nothing to read, and print to stderr."""
    ends = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return ends


def start(side, argument):
    main = vars(sys.modules['__main__'])
    for n in ('builtins', 'sys', 'names'):
        main.pop(n, None)
    sys.argv[:] = ['-']
    if side == 'program':
        Program(*streams(), main).run()
    global SIDE
    SIDE = Tests(*streams())
    run(json.loads(argument))
