"""Renders chat templates with Jinja, in the environment of transformers, for tokenizer and internal/jinja to compare with.

    python3 testdata/templates/make.py FOLDER OUT.json.gz

FOLDER holds *.jinja, conversations.json and, if wanted, snippets.json, a list of further templates. OUT lists, for every template and conversation, the text or the error.
"""
import datetime, glob, gzip, json, os, sys
import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

START = datetime.datetime(2026, 7, 4, 9, 5, 7)


class Generation(Extension):
    """{% generation %} marks what the assistant writes."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = START.strftime
    return env


def render(template, variables):
    try:
        return {"want": template.render(**variables)}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {e}"}


def main(folder, out):
    sys.setrecursionlimit(3000)
    env = environment()
    with open(os.path.join(folder, "conversations.json")) as f:
        conversations = json.load(f)
    cases = []
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        with open(path, newline="") as f:
            template = env.from_string(f.read())
        for name, variables in conversations.items():
            cases.append({"template": os.path.basename(path), "conversation": name, **render(template, variables)})
    path = os.path.join(folder, "snippets.json")
    if os.path.exists(path):
        with open(path) as f:
            snippets = json.load(f)
        name = "two calls +prompt"
        for text in snippets:
            try:
                cases.append({"snippet": text, "conversation": name, **render(env.from_string(text), conversations[name])})
            except jinja2.exceptions.TemplateError as e:
                cases.append({"snippet": text, "conversation": name, "error": f"{type(e).__name__}: {e}"})
    doc = {"origin": f"Jinja {jinja2.__version__}, ImmutableSandboxedEnvironment, trim_blocks, lstrip_blocks, loopcontrols", "cases": cases}
    with gzip.GzipFile(out, "w", mtime=0) as f:
        f.write(json.dumps(doc, ensure_ascii=False, indent=0).encode())
    good = sum("want" in c for c in cases)
    print(f"{len(cases)} cases: {good} texts, {len(cases) - good} errors")


if __name__ == "__main__":
    main(*sys.argv[1:])
