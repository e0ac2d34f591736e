"""The side of the tests: what their text says, which decides what a program may pass over."""
import ast, symtable

UNSEEN = {'antigravity', 'this', 'idlelib', 'turtledemo', 'test', 'lib2to3', '__main__'}
# Modules of functions and classes whose names the tests may leave to the program to import. A program that is asked for one
# often names it like one of the last two.
FUNCTIONS_OF = ('math', 'cmath', 'operator', 'collections', 'copy', 'functools', 'fractions', 'decimal')
IMPORTED_FROM = FUNCTIONS_OF + ('itertools', 'statistics')
# What goes through a result, and does not compare it.
CONSUMERS = {'list', 'tuple', 'set', 'dict', 'next', 'sum', 'len', 'sorted', 'any', 'all', 'min', 'max'}
BUILTINS = set(dir(builtins))
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def declared(node, into):
    """The names that a statement binds, not within functions."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        into.add(node.name)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        into.update((a.asname or a.name).split('.')[0] for a in node.names)
    elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        into.add(node.id)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for child in ast.iter_child_nodes(node):
            declared(child, into)


def outermost(checks, names):
    """The names that tests call with what other functions of these names returned."""
    def inner(n):
        calls = [x.func.id for a in n.args + [k.value for k in n.keywords] for x in ast.walk(a) if isinstance(x, ast.Call) and isinstance(x.func, ast.Name)]
        return any(c in names and c != n.func.id for c in calls)
    return {n.func.id for n in ast.walk(checks) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and inner(n)}


def library(checks):
    """The names that tests use as modules of the library, by what they take of them."""
    taken = {}
    for n in ast.walk(checks):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name):
            taken.setdefault(n.value.id, set()).add(n.attr)
    known = getattr(sys, 'stdlib_module_names', sys.builtin_module_names)

    def has(name, attrs):
        try:
            return all(hasattr(__import__(name), a) for a in attrs)
        except Exception:  # of another system
            return False
    return {n for n, attrs in taken.items() if n in known and n not in UNSEEN and has(n, attrs)}


def imports(*nodes):
    """The modules that a text imports, without what is within packages."""
    all = [x for n in nodes for x in ast.walk(n)]
    known = getattr(sys, 'stdlib_module_names', sys.builtin_module_names)
    return {a.name for x in all if isinstance(x, ast.Import) for a in x.names if a.name in known} - UNSEEN


def free(text):
    """The names that a text uses and binds nowhere: with these it asks for something of the program."""
    used, bound, tables = set(), set(), [symtable.symtable(text, '<tests>', 'exec')]
    for t in tables:
        tables.extend(t.get_children())
        for s in t.get_symbols():
            if t is tables[0] or s.is_global():
                (bound if s.is_assigned() or s.is_imported() or s.is_namespace() else used).add(s.get_name())
    return used - bound


def of_library(name, *value):
    """Whether a module of functions has something of this name, and whether that is the value."""
    found = [getattr(m, name) for m in map(__import__, FUNCTIONS_OF) if name in getattr(m, '__all__', dir(m))]
    return any(all(f is v for v in value) for f in found)


def imported(tree, names):
    """The names that a program takes from modules of functions, and does not declare otherwise, with what the library has there."""
    found, other = {}, set()
    for s in tree.body:
        if isinstance(s, ast.ImportFrom) and not s.level and s.module in IMPORTED_FROM:
            m = __import__(s.module)
            public = {n: v for n, v in vars(m).items() if n[0] != '_' and type(v) is not types.ModuleType}
            found.update({n: public[n] for a in s.names if a.name == '*' for n in names & set(public)})
            found.update({a.asname or a.name: public[a.name] for a in s.names if a.name in public})
        else:
            declared(s, other)
    return {n: v for n, v in found.items() if n in names and n not in other}


def names_in(*nodes):
    return {x.id for n in nodes if n for x in ast.walk(n) if isinstance(x, ast.Name)}


def inner_names(node):
    """The names of what a statement calls by itself: f of f(x), o of o.f(x)."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def parameters(f):
    a = f.args
    return {x.arg for x in a.posonlyargs + a.args + a.kwonlyargs + [a.vararg, a.kwarg] if x}


class Text:
    """The text of the tests. names are those of the program, and those that the tests give to what they make of them."""

    def __init__(self, tree, names):
        self.nodes = [n for n in ast.walk(tree) if hasattr(n, 'lineno')]
        self.functions = {n.name: n for n in self.nodes if isinstance(n, SCOPES[:2])}
        self.checks = self.closed(set(), lambda known: (n for n, f in self.functions.items() if self.check_in(known, f)))
        self.names = self.closed(set(names), self.reached)

    def closed(self, known, more):
        """known and what more finds with it, until that is nothing new."""
        while True:
            new = set(more(known)) - known
            if not new:
                return known
            known |= new

    def check_in(self, known, *nodes):
        """Whether there is an assertion, or a call of one of unittest or of a function that has one."""
        calls = [x.func for n in nodes for x in ast.walk(n) if isinstance(x, ast.Call)]
        return any(isinstance(x, ast.Assert) for n in nodes for x in ast.walk(n)) or any(
            isinstance(f, ast.Name) and f.id in known or isinstance(f, ast.Attribute) and (f.attr.startswith('assert') or f.attr in known | {'fail'}) for f in calls)

    def reached(self, known):
        """The names that the tests give to what they make of known ones."""
        for n in self.nodes:
            value = getattr(n, 'iter' if isinstance(n, (ast.For, ast.AsyncFor)) else 'value', None)
            if isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor)) and names_in(value) & known:
                yield from names_in(*(n.targets if isinstance(n, ast.Assign) else [n.target]))
            elif isinstance(n, (ast.With, ast.AsyncWith)):
                for i in n.items:
                    if names_in(i.context_expr) & known:
                        yield from names_in(i.optional_vars)
            elif isinstance(n, SCOPES[:2]) and names_in(*n.body, *n.decorator_list) & known:
                yield n.name
            elif isinstance(n, ast.Call):
                if inner_names(n.func) & known:
                    yield from {x.id for x in n.args if isinstance(x, ast.Name)} - BUILTINS  # it may be changed
                if isinstance(n.func, ast.Name) and n.func.id in self.functions and names_in(*n.args, *(k.value for k in n.keywords)) & known:
                    yield from parameters(self.functions[n.func.id])

    def place(self, code, line, instruction):
        """Line and column of an instruction; the column is -1 where the interpreter does not say it."""
        if hasattr(code, 'co_positions'):
            first, _, column, _ = next(iter(list(code.co_positions())[instruction // 2:]), (None,) * 4)
            if first is not None and column is not None:
                return first, column
        return line, -1

    def around(self, code, place):
        """The statements and functions that a place of code is in, the innermost last."""
        line, column = place

        def holds(n):
            return n.lineno <= line <= n.end_lineno and (column < 0 or (n.lineno, n.col_offset) <= place < (n.end_lineno, n.end_col_offset))
        found = [n for n in self.nodes if isinstance(n, (ast.stmt, ast.Lambda)) and holds(n)]
        if code.co_name != '<lambda>':
            found = [n for n in found if not isinstance(n, ast.Lambda)]
        if column < 0:  # of "if x: raise E" in one line either may have failed: the condition counts
            found = [n for n in found if not any(m is not n and m.lineno == n.lineno and isinstance(m, (ast.If, ast.For, ast.While)) for m in found)]
        return sorted(found, key=lambda n: (n.lineno, n.col_offset, -n.end_lineno, -n.end_col_offset))

    def frames(self, trace):
        """The steps of a trace, as code, and what of the text is around its place; no text for code that is not of the tests."""
        while trace:
            code = trace.tb_frame.f_code
            yield code, self.around(code, self.place(code, trace.tb_lineno, trace.tb_lasti)) if code.co_filename == '<tests>' else []
            trace = trace.tb_next

    def lost(self, e, trace, frame):
        """Why a context of the program may not pass over an exception of its body; empty: it may."""
        if isinstance(e, AssertionError):
            return 'a test fails'
        code, nodes = next(((c, n) for c, n in self.frames(trace) if n), (None, []))
        withs = [n for n in nodes[:-1] if isinstance(n, (ast.With, ast.AsyncWith))]
        if not withs:
            return ''
        exact = [n for n in withs if frame.f_code is code and n.lineno <= frame.f_lineno <= n.items[-1].context_expr.end_lineno]
        body = (exact or withs)[0]
        inside = nodes[nodes.index(body) + 1:]
        own = isinstance(inside[-1], ast.Raise) or not names_in(inside[-1]) - BUILTINS  # as in raise E, or 1 / 0
        # What is not run any more: a loop from its start, other statements from the one that failed.
        at = next((n for n in inside if isinstance(n, (ast.For, ast.AsyncFor, ast.While))), inside[-1])
        rest = [n for s in body.body for n in ast.walk(s) if hasattr(n, 'lineno') and (n.lineno, n.col_offset) >= (at.lineno, at.col_offset)]
        if not own and self.check_in(self.checks, *rest):
            return 'the tests check something there'
        asked = self.conditions(inside) + ([] if own else [inside[-1]])
        if names_in(*asked) & self.names and list(self.frames(trace))[-1][0].co_filename != '<harness>':
            return 'it depends on what the program gave'
        return ''

    def conditions(self, nodes):
        """What decides whether these statements run."""
        return [getattr(n, a) for n in nodes for a in ('test', 'iter', 'subject') if hasattr(n, a)]

    def swallowed(self, e):
        """Whether an exception of a callback is a failure of the tests, if the program keeps it for itself."""
        frames = list(self.frames(e.__traceback__))
        nodes = next((n for _, n in reversed(frames) if n), [])
        if not nodes:
            return not isinstance(e, (TypeError, AttributeError))  # of a method of the library, unless it is called in a wrong way
        code, inmost = frames[-1]
        if code.co_filename == '<harness>' or inmost and isinstance(inmost[-1], ast.Raise):
            return False  # it is the program's, or what the tests mean to raise
        scope = max((i for i, n in enumerate(nodes) if isinstance(n, SCOPES)), default=-1)
        given = parameters(nodes[scope]) if scope >= 0 else set()
        return bool(names_in(*nodes[-1:], *self.conditions(nodes[scope + 1:])) & (given | self.names))

    def unseen(self, frame):
        """Whether the tests do not look at what a call of the program returns."""
        while frame and frame.f_code.co_filename != '<tests>':
            frame = frame.f_back
        if not frame:
            return False
        nodes = self.around(frame.f_code, self.place(frame.f_code, frame.f_lineno, frame.f_lasti))
        if not nodes or not isinstance(nodes[-1], ast.Expr):
            return False
        return not self.check_in(self.checks, nodes[-1]) and bool(inner_names(nodes[-1].value) & (self.names | CONSUMERS))
