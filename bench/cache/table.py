"""Prints one table of what card.sh left in a folder. usage: table.py FOLDER STUDENT [PART]
Of a part it prints the lines alone."""
import glob, json, os, re, statistics, sys

folder, student = sys.argv[1:3]
part = sys.argv[3] if len(sys.argv) > 3 else ""
PEAK = 989e12  # bfloat16 products of an H200 a second, as published, without sparsity


def read(name):
    try:
        return json.load(open(f"{folder}/cache-{name}.json"))
    except (OSError, ValueError):
        return None


def step(name):
    """Median tokens/s of a run's steps, of which the first quarter is left out, and how many are counted."""
    try:
        lines = [json.loads(line) for line in open(f"{folder}/cache-{name}-steps.jsonl")]
    except (OSError, ValueError):
        return None, 0
    lines = lines[len(lines) // 4:]
    rates = [line["tokens"] / line["ms"]["total"] * 1e3 for line in lines]
    return (statistics.median(rates), len(rates)) if rates else (None, 0)


rows = []


def row(what, rate, beside="", share=None, want="", notes=""):
    rows.append((what, "-" if rate is None else f"{rate:,.0f}", beside, "-" if share is None else f"{100 * share:.1f} %", want, notes))


def over(a, b):
    return a / b if a and b else None


def live(shape):
    """PyTorch's tokens/s of a live step, and its own line."""
    try:
        line = open(f"{folder}/cache-torch-{shape}.txt").read().strip()
    except OSError:
        return None, ""
    found = re.search(r"([0-9.]+) tok/s", line)
    return (float(found[1]) if found else None), line


def pair(shape):
    for kind in "draws", "hidden":
        r = read(f"{shape}-{kind}")
        if r is None:
            continue
        forward = r.get("forward_tokens_per_second")
        notes = f"{r['bytes_per_position']:.1f} bytes a token; {r['positions']:,} positions"
        if r.get("draws_us_per_token") is not None:
            notes += f"; draws {r['draws_us_per_token']:.3f} us a token"
        if r.get("pass"):
            notes += f"; {r['pass'].get('teacher_backend')}, {r['pass'].get('positions')} positions a pass"
        rate = r.get("tokens_per_second")
        row(f"{shape}: {kind} made", rate, f"body and head alone: {forward:,.0f}" if forward else "", over(rate, forward), ">= 95 %", notes)
    plain, n = step(f"{shape}-plain")
    row(f"{student}: a step without a teacher", plain, "", None, "", f"median of {n} steps")
    for kind in "draws", "hidden":
        rate, n = step(f"{shape}-from-{kind}")
        want = {"draws": 118000, "hidden": 100000}[kind]
        row(f"{shape} -> {student}: a step from {kind}", rate, "time against no teacher", over(plain, rate),
            "<= 110 %" + (f", >= {want:,}/s" if shape == "7b" and student == "0.5b" else ""), f"median of {n} steps")


def torch(shape):
    rate, line = live(shape)
    if not line:
        return
    row(f"{shape} -> {student}: PyTorch's live step", rate, notes=line.replace("RESULT ", ""))
    for kind, want in ("draws", "4"), ("hidden", "3.4"):
        ours, n = step(f"{shape}-from-{kind}")
        if ours:
            row(f"{shape} -> {student}: a step from {kind}", ours, "beside PyTorch's live step", over(ours, rate), f">= {float(want):.0%}", f"median of {n} steps")


def slots():
    one = read("slots-1")
    for n in sorted(int(os.path.basename(f)[len("cache-slots-"):-len(".json")]) for f in glob.glob(f"{folder}/cache-slots-*.json")):
        r = read(f"slots-{n}")
        many = n > 1
        row(f"{n} slots write", r["tokens_per_second"], "beside one" if many else "",
            over(r["tokens_per_second"], one and one["tokens_per_second"]) if many else None, ">= 1,000 %" if many else "",
            f"{r['tokens_made']} tokens, prompts included in the time; {r.get('passes')} passes, {r.get('passes_ran') or 'one way only'}")


def stream():
    for k in 65536, 8192:
        a, b = read(f"stream-{k}"), read(f"resident-{k}")
        if not a and not b:
            continue
        x, y = (r and r.get("tokens_per_second") for r in (a, b))
        way = (a or {}).get("pass") or {}
        host = ((way.get("costs") or {}).get("host") or {}).get("bytes_per_step")
        row(f"layers from the host, {k} positions asked for", x, f"on the card: {y:,.0f}" if y else "", over(x, y),
            ">= 97 %" if k == 65536 else ">= 85 %", f"{way.get('positions')} positions a pass, {host} bytes fetched" if way else "")


def giant():
    r = read("giant")
    if r is None:
        return
    way, rate = r.get("pass") or {}, r.get("forward_tokens_per_second") or r.get("tokens_per_second")
    costs = way.get("costs") or {}
    host, flops, n = (costs.get("host") or {}).get("bytes_per_step"), costs.get("flops_per_step"), way.get("positions")
    share = flops / n * rate / PEAK if flops and n and rate else None
    row("a teacher beyond the card makes draws", r.get("tokens_per_second"), f"body and head: {rate:,.0f}; of {PEAK / 1e12:.0f} TFLOP/s" if rate else "",
        share, "", f"{r['positions']:,} positions in {r['duration_seconds']:.0f} s; {way.get('teacher_backend')}, {n} positions and {host} bytes fetched a pass")


shapes = sorted(os.path.basename(f)[len("cache-"):-len("-draws.json")] for f in glob.glob(f"{folder}/cache-*-draws.json") if "from-" not in f)
lives = sorted(os.path.basename(f)[len("cache-torch-"):-len(".txt")] for f in glob.glob(f"{folder}/cache-torch-*.txt"))
known = {"slots": slots, "stream": stream, "giant": giant, "torch": lambda: [torch(shape) for shape in lives]}
if part:
    known.get(part, lambda: pair(part))()
else:
    for shape in shapes:
        pair(shape)
    for name in "torch", "slots", "stream", "giant":
        known[name]()
if not part:
    print("| what | tokens/s | beside | share | wanted | |\n|---|---:|---|---:|---|---|")
for r in rows:
    print("| " + " | ".join(r) + " |")
try:
    print("" if part else "\n" + "".join(f"- {line}" for line in open(f"{folder}/cache-notes.txt")), end="")
except OSError:
    pass
