"""Trains a small tokenizer of each kind with Hugging Face's library and records what it makes of many texts.

    python3 testdata/tokenizers/make.py OUT      writes OUT/tokenizers.tar.gz

The archive holds, for each kind of KINDS, KIND/tokenizer.json, KIND/tokenizer_config.json and KIND/cases.json.gz:

    {"origin": "...", "cases": [{"text", "ids", "special", "decoded"}, ...], "decode": [{"ids", "text"}, ...]}

ids are those of encode(text, add_special_tokens=False), special those with True, decoded is decode(ids,
skip_special_tokens=False). The ids in "decode" are random. Nothing is downloaded; the vocabularies are trained on this
repository's own files. Training may differ between versions of the library, so a run replaces all files.
"""

import glob
import gzip
import io
import json
import os
import random
import sys
import tarfile
import time
import traceback

import tokenizers
from tokenizers import Tokenizer, pre_tokenizers, trainers

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
META = "\u2581"

C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
Z = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*" + Z
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
CASED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + Z
REGEX = {
    "qwen2": QWEN % r"\p{N}",
    "qwen35": C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + Z,
    "llama-bpe": QWEN % r"\p{N}{1,3}",
    "gpt-4o": UPPER + C + "?|" + LOWER + C + r"?|\p{N}{1,3}" + CASED,
    "tekken": UPPER + "|" + LOWER + r"|\p{N}" + CASED,
}

MULTILINGUAL = [
    "The quick brown fox jumps over the lazy dog. It's what they've said, we'll see; I'd go, you're right, I'm here.",
    "IT'S WHAT THEY'VE SAID, WE'LL SEE; I'D GO, YOU'RE RIGHT, I'M HERE. don\u2019t \u2018quoted\u2019 \u201cdouble\u201d",
    "Le c\u0153ur a ses raisons que la raison ne conna\u00eet point. \u00c7a va? \u00c9l\u00e8ve, na\u00efve, fa\u00e7ade, \u0153uvre.",
    "Zw\u00f6lf Boxk\u00e4mpfer jagen Viktor quer \u00fcber den gro\u00dfen Sylter Deich. Stra\u00dfe STRASSE \u1e9e",
    "\u0421\u044a\u0435\u0448\u044c \u0435\u0449\u0451 \u044d\u0442\u0438\u0445 \u043c\u044f\u0433\u043a\u0438\u0445 \u0444\u0440\u0430\u043d\u0446\u0443\u0437\u0441\u043a\u0438\u0445 \u0431\u0443\u043b\u043e\u043a.",
    "\u039e\u03b5\u03c3\u03ba\u03b5\u03c0\u03ac\u03b6\u03c9 \u03c4\u03b7\u03bd \u03c8\u03c5\u03c7\u03bf\u03c6\u03b8\u03cc\u03c1\u03b1 \u03b2\u03b4\u03b5\u03bb\u03c5\u03b3\u03bc\u03af\u03b1.",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002\u4eba\u5de5\u667a\u80fd\u6b63\u5728\u6539\u53d8\u4e16\u754c\u3002",
    "\u65e5\u672c\u8a9e\u306e\u6587\u7ae0\u3067\u3059\u3002\u30ab\u30bf\u30ab\u30ca\u3068\u3072\u3089\u304c\u306a\u3001\u4eba\u3005\u3005\u3002",
    "\ud55c\uad6d\uc5b4 \ubb38\uc7a5\uc785\ub2c8\ub2e4. \uc548\ub155\ud558\uc138\uc694 \uc138\uacc4.",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd \u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902 \u0932\u093f\u0916\u093e \u0939\u0941\u0906 \u0935\u093e\u0915\u094d\u092f\u0964 \u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e04\u0e23\u0e31\u0e1a",
    "Vi\u1ec7t Nam: t\u00f4i kh\u00f4ng hi\u1ec3u. Ti\u00ea\u0301ng Vie\u0323\u0302t co\u0301 da\u0302\u0301u. I\u0307stanbul \u0131\u015f\u0131k \u0130zmir",
    "\U0001f600\U0001f601 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \U0001f1e9\U0001f1ea \u2764\ufe0f \u2603 \u2713 \u2192 \u2260 \u20ac \u00a3 \u00a5",
]

BUILT_IN = MULTILINGUAL + [
    "", " ", "  ", "   ", "    ", " " * 5, " " * 8, " " * 16, " " * 17, " " * 40, " " * 100, "\t", "\t\t", "\t \t", "\n", "\n\n", "\n\n\n", "\n" * 9,
    "\r", "\r\n", "\r\n\r\n", "\r\r\n", " \n", "\n ", " \n ", "  \n  ", "a\r\nb\r\n\r\nc", "a \r\n b", "\n\t\n\tx", "x\n\n\n  y", "end with space ", "end with two  ",
    " begin", "  begin", "   begin", "a b", "a  b", "a   b", "a    b", "a\u00a0b", "a\u2003b", "a\u3000\u3000b", "a\u0085b", "a\u2028b", "a\u200bb", "a\ufeffb", "\ufeffa",
    "'s", "'S", "it's", "IT'S", "it'S", "we'll", "WE'LL", "we'Ll", "they're", "THEY'RE", "I've", "I'm", "he'd", "don't", "DON'T", "x'\u017f", "'\u017f", "''s", "'sa", "'tis", "rock'n'roll",
    "'llama", "a's's's", "\u00e9's", "\u4f60's", "1's", "'", "''", " 's", "o'clock", "HTTP's", "A'LL",
    "0", "12", "123", "1234", "12345", "1234567890", "1" * 31, "3.14159", "1,000,000", "0x1F", "1e-5", "\u0661\u0662\u0663\u0664", "\u2167\u2168", "\u00bd\u00be\u00b2", "\U0001d7d8\U0001d7d9\U0001d7da\U0001d7db", "a1b2c3", "a12b345c6789", " 1 12 123 1234", "  42", "v1.2.3",
    "HelloWorld", "helloWorld", "HELLOWorld", "HTTPServer", "XMLHttpRequest", "iPhone", "McDonald", "camelCaseString", "PascalCaseString", "SCREAMING_SNAKE", "snake_case_name", "kebab-case-name", "ABCdef", "aBC", "A", "Ab", "AB", "ABc",
    "\u01c5x", "\u01c5X", "x\u01c5", "\u1f88\u1f80", "\u02b0a", "A\u02b0", "\u02b0\u02b0", "\u05d0A", "A\u05d0", "a\u05d0B", "\u4f60A", "A\u4f60a", "\u0301", "\u0301\u0301", " \u0301", "a\u0301", "A\u0301", "A\u0301B", "a\u0301\u0323", "\u00e9", "e\u0301", "\u212b", "\u1100\u1161\u11a8", "\ufb01", "\u0958",
    "e" + "\u0301" * 12, "!\u0301", "1\u0301", "\n\u0301", "'\u0301s", "\u0e31\u0e31", "\u0903a", "\u20dd", "\u0e17\u0e35\u0e48",
    "!!!", "...", "?!", "!a", "!!a", " !", " !!", "  !!", "a!", "a !", "--", "->", "=>", "/*", "//", "// x", "/\n/", "!\n", "!\r\n", "!\n\n", "!/\n/", "?\n//\n", "a/b/c", "/a/b", "http://x.y/z?q=1&r=2#s", "a@b.cd", "$x", "${x}", "<a>", "</a>", "<|", "|>", "<|x|>", "&amp;", "\\n", "\\", "\"q\"", "`code`", "{}", "[]", "()", "(a)", "#!/bin/sh", "#include", "+=", "!=", "a_b", "_", "__init__",
    "\x00", "\x01\x02", "\x1b[0m", "\x7f", "a\x00b", "\x0b", "\x0c", "\x1c\x1d", "\ue000", "\U0010fffd", "\U0001d400\U0001d41a", "\U00010400\U00010428", "\U00020000", "\U0001d165",
    "\u1e69x", "s\u0323\u0307x", "as\u0307\u0323xb", "\u2581", "\u2581\u2581", "a\u2581b", "\u2581a", " \u2581 ", "\u2581 a", "\u0120", "\u010a", "\u0120a", "<0x41>", "<0x0A>", "<0xE2>", "<unk>", "<s>", "</s>", "<pad>",
    "\u2603", "\u2603\u2603", "a\u2603b", "\u2603 \u2603", "z\u2603#\u2603\u2603Q", "\u4f60\u597d\u2603", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "HelloWorld UnreachableToken xyzzyxyz", " UnreachableToken", "UnreachableToken", "xyzzyxyz", "HelloWorlds", "  HelloWorld", "777", "7777", "777777",
    "def f(x):\n    return x + 1\n", "for (int i = 0; i < 10; i++) {\r\n\tprintf(\"%d\\n\", i);\r\n}\r\n", "func main() {\n\tfmt.Println(\"hi\")\n}\n", "| a | b |\n|---|---|\n| 1 | 2 |\n", "{\"a\": [1, 2.5, null], \"b\": \"\\u00e9\"}", "a" * 300, "ab" * 150, "=" * 80, "-" * 129, "e" * 128, "ab " * 60, "\u4f60" * 50, "1 " * 30, ".\n" * 20,
]

# Added tokens of the byte-level kinds: text, special, lstrip, rstrip, normalized.
BYTE_ADDED = [
    ("<|begin|>", True, False, False, False), ("<|end|>", True, False, False, False), ("<|im_start|>", True, False, False, False), ("<|im_start|>x", True, False, False, False),
    ("<tool>", False, False, False, False), ("<|both|>", True, True, True, False), ("<|right|>", True, False, True, False), ("<|left|>", False, True, False, False),
]
ADDED_TEXTS = [
    "{0}", "{0}{0}", "a{0}b", "a {0} b", "a  {0}  b", " {0} ", "\n{0}\n", "a\n {0} \nb", "{0} {1}", "{0}{1}{0}", "{1} {0} x", "x{0}y{1}z", "x {0} {1} y", "  {0}   {1}  ", "text {0}text{1} text", "{0}'s", "1{0}2", "{0}\u00e9", "\u2581{0}\u2581", "{0}  x",
]


def corpus():
    """Returns texts of this repository, about 700 kB, and the built-in ones several times."""
    names = sorted(glob.glob(os.path.join(ROOT, "docs", "*.md")) + glob.glob(os.path.join(ROOT, "*.md")))
    names += sorted(glob.glob(os.path.join(ROOT, "*", "*.go")))[::5]
    texts, size = [], 0
    for name in names:
        with open(name, encoding="utf-8", newline="") as f:
            text = f.read()[:12000]
        texts.append(text)
        size += len(text)
        if size > 700_000:
            break
    if size < 100_000:
        raise SystemExit("%s holds only %d characters of text" % (ROOT, size))
    return texts + [t for t in BUILT_IN if len(t) < 200] * 3 + MULTILINGUAL * 12


def texts_of(files, added):
    """Returns the texts of the cases: built-in, with added tokens inside, pieces of files, random."""
    texts = list(BUILT_IN)
    for i, form in enumerate(ADDED_TEXTS * 2):
        first, second = added[i % len(added)], added[(i * 3 + 1 + i // len(added)) % len(added)]
        texts.append(form.format(first, second))
    r = random.Random(11)
    for _ in range(40):
        text = r.choice(files)
        at = r.randrange(max(1, len(text) - 200))
        texts.append(text[at:at + r.randrange(20, 200)])
    signs = list(" \t\n\r'.,/!-_0129abzABZ") + ["  ", "'s", "'LL", "\r\n", "The", "the", "ing", "123"] + list("\u00a0\u3000\u0085\u017f\u00df\u00e9\u00c9\u01c5\u02b0\u05d0\u4f60\u0301\u0323\u0903\u0661\u2167\u00bd\u20ac\u2603\u2581\U0001f600\U0001d41a\u200d")
    for seed in range(90):
        r = random.Random(seed)
        texts.append("".join(r.choice(signs) for _ in range(r.randrange(1, 24))))
    for seed in range(30):
        r = random.Random(1000 + seed)
        words = [w for t in r.sample(MULTILINGUAL, 3) for w in t.split(" ")] + added
        texts.append(r.choice(["", " "]).join(r.choice(words) + r.choice(["", "", " ", "\n"]) for _ in range(r.randrange(2, 9))))
    return list(dict.fromkeys(texts))


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def byte_level(regex):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def replace(a, b):
    return {"type": "Replace", "pattern": {"String": a}, "content": b}


def template(before, after, ids):
    token = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    text = lambda n, i: {"Sequence": {"id": n, "type_id": i}}
    around = lambda inner: [token(t) for t in before] + inner + [token(t) for t in after]
    return {
        "type": "TemplateProcessing", "single": around([text("A", 0)]), "pair": around([text("A", 0)]) + around([text("B", 1)]),
        "special_tokens": {t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in before + after},
    }


def added_token(id, text, special, lstrip=False, rstrip=False, normalized=False):
    return {"id": id, "content": text, "single_word": False, "lstrip": lstrip, "rstrip": rstrip, "normalized": normalized, "special": special}


def whole(model, **parts):
    """Returns the text of a tokenizer.json."""
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}
    file.update(parts)
    file["model"] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {}, "merges": [], **model,
    }
    return json.dumps(file, ensure_ascii=False)


def train(file, files, size, **options):
    """Trains the model of a tokenizer.json; returns its tokens in order of ids, and the merges as pairs."""
    t = Tokenizer.from_str(file)
    t.train_from_iterator(files, trainer=trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=[], **options))
    model = json.loads(t.to_str())["model"]
    vocab = sorted(model["vocab"], key=model["vocab"].get)
    assert [model["vocab"][v] for v in vocab] == list(range(len(vocab)))
    merges = [m.split(" ") if isinstance(m, str) else list(m) for m in model["merges"]]
    return vocab, merges


def byte_kind(files, pre, nfc=False, ignore=False, bos=False, eos=False, extra=(), wrap=True, unk=None):
    """Returns a byte-level tokenizer.json, its tokenizer_config and the texts of its added tokens."""
    parts = {"normalizer": {"type": "NFC"} if nfc else None, "pre_tokenizer": pre, "decoder": byte_level(True)}
    vocab, merges = train(whole({}, **parts), files, 640, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    vocab += [t for t in ["HelloWorld", "\u0120UnreachableToken", "xyzzyxyz", "777", "\u0120" * 24] if t not in vocab]  # no merges reach these
    added = BYTE_ADDED + list(extra)
    tokens = [added_token(len(vocab) + i, *a) for i, a in enumerate(added)]
    ids = {t["content"]: t["id"] for t in tokens}
    post = byte_level(True)
    if bos or eos:
        post = template(["<|begin|>"] * bos, ["<|end|>"] * eos, ids)
        if wrap:
            post = sequence("processors", byte_level(True), post)
    model = {"vocab": {t: i for i, t in enumerate(vocab)}, "merges": merges, "ignore_merges": ignore, "unk_token": unk}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>" if bos else None, "eos_token": "<|end|>"}
    return whole(model, added_tokens=tokens, post_processor=post, **parts), config, list(ids)


BYTES = ["<0x%02X>" % b for b in range(256)]
PIECE_DECODERS = [replace(META, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def closure(vocab, first):
    """Returns every way to put a token together of two others, as the converter of transformers orders them."""
    ids = {t: i for i, t in enumerate(vocab)}
    ways = []
    for text, id in ids.items():
        if id < first:
            continue
        local = [(text[:i], text[i:], -id) for i in range(1, len(text)) if ids.get(text[:i], -1) >= first and ids.get(text[i:], -1) >= first]
        ways += sorted(local, key=lambda w: (ids[w[0]], ids[w[1]]))
    ways.sort(key=lambda w: (w[2], len(w[0]), len(w[1])), reverse=True)
    return [[w[0], w[1]] for w in ways]


def piece_kind(files, parts, specials, bytes=BYTES, defined=(), fuse=True, eos=False, alphabet=220, scored=False):
    """Returns a SentencePiece-BPE tokenizer.json, its tokenizer_config and the texts of its added tokens."""
    cut = {"type": "Metaspace", "replacement": META, "prepend_scheme": "always", "split": True}
    words, merges = train(whole({"unk_token": "<unk>"}, pre_tokenizer=cut, decoder=cut), files, 430, limit_alphabet=alphabet)
    head = ["<unk>", "<s>", "</s>"] + [a[0] for a in specials if a[0] not in ("<unk>", "<s>", "</s>")] + list(bytes)
    made = []
    for text in defined:  # each of one character repeated: two shorter ones make it
        made.append([text[:-1], text[-1]])
    vocab = head + list(defined) + [w for w in words if w not in defined and w not in head]
    for text in defined:
        if text[0] not in vocab:
            vocab.append(text[0])
    merges = made + [m for m in merges if m not in made]
    if scored:
        merges = closure(vocab, len(head))
    ids = {t: i for i, t in enumerate(vocab)}
    assert len(ids) == len(vocab)
    flags = {a[0]: a[1:] for a in specials}
    tokens = [added_token(ids[t], t, True, *flags.get(t, ())) for t in ["<unk>", "<s>", "</s>"] + [a[0] for a in specials if a[0] not in ("<unk>", "<s>", "</s>")]]
    tokens += [added_token(ids[t], t, False) for t in defined]
    tokens.sort(key=lambda t: t["id"])
    model = {"vocab": ids, "merges": merges, "unk_token": "<unk>", "fuse_unk": fuse, "byte_fallback": True}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    post = template(["<s>"], ["</s>"] * eos, ids)
    return whole(model, added_tokens=tokens, post_processor=post, **parts), config, [t["content"] for t in tokens]


def split_kind(name, **options):
    return lambda files: byte_kind(files, sequence("pretokenizers", split(REGEX[name]), byte_level(False)), **options)


PREPEND = sequence("normalizers", {"type": "Prepend", "prepend": META}, replace(" ", META))
INST = [("[INST]",), ("[/INST]",)]


def prepended(strip=True):
    return {"normalizer": PREPEND, "decoder": sequence("decoders", *PIECE_DECODERS, STRIP)}


def metaspace(scheme, strip):
    pre = {"type": "Metaspace", "replacement": META, "prepend_scheme": scheme, "split": False}
    return {"pre_tokenizer": pre, "decoder": sequence("decoders", *PIECE_DECODERS, *([STRIP] if strip else []))}


GEMMA = {
    "normalizer": replace(" ", META), "decoder": sequence("decoders", *PIECE_DECODERS),
    "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
}
REPEATED = [c * n for c, most in ((META, 9), ("\n", 4)) for n in range(2, most)]
NORMALIZED = ("\u1e69x", False, False, False, True)

KINDS = {
    "qwen2": split_kind("qwen2", nfc=True, extra=[NORMALIZED]),
    "qwen2-plain": split_kind("qwen2"),
    "qwen35": split_kind("qwen35", nfc=True),
    "llama-bpe": split_kind("llama-bpe", ignore=True, bos=True),
    "dbrx": split_kind("llama-bpe", bos=True, eos=True, wrap=False),
    "gpt-4o": split_kind("gpt-4o"),
    "tekken": split_kind("tekken", ignore=True, bos=True, wrap=False),
    "refact": lambda files: byte_kind(files, sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(True)), unk="<|end|>"),
    "gpt-2": lambda files: byte_kind(files, byte_level(True)),
    "gemma": lambda files: piece_kind(files, GEMMA, [("<start_of_turn>",), ("<end_of_turn>",)], defined=REPEATED),
    "mistral": lambda files: piece_kind(files, prepended(), INST),
    "mistral-scores": lambda files: piece_kind(files, prepended(), INST, scored=True),
    "phi3": lambda files: piece_kind(files, prepended(), [("</s>", False, True), ("<|user|>", False, True), ("<|end|>", False, True), ("<|both|>", True, True)]),
    "metaspace-first": lambda files: piece_kind(files, metaspace("first", True), INST, eos=True),
    "metaspace-always": lambda files: piece_kind(files, metaspace("always", True), INST),
    "metaspace-never": lambda files: piece_kind(files, metaspace("never", False), INST),
    "unknown": lambda files: piece_kind(files, prepended(), INST, bytes=BYTES[:0x80] + BYTES[0xC0:0xE0], alphabet=60),
    "unknown-apart": lambda files: piece_kind(files, GEMMA, INST, bytes=BYTES[:0x80] + BYTES[0xA0:0xD0], alphabet=60, fuse=False),
}


def cases_of(file, added, files):
    """Encodes and decodes with the library; returns the cases and its own text of the tokenizer.json."""
    t = Tokenizer.from_str(file)
    for token in json.loads(file)["added_tokens"]:
        assert t.token_to_id(token["content"]) == token["id"], token
    cases = []
    for text in texts_of(files, added):
        ids = t.encode(text, add_special_tokens=False).ids
        special = t.encode(text, add_special_tokens=True).ids
        cases.append({"text": text, "ids": ids, "special": special, "decoded": t.decode(ids, skip_special_tokens=False)})
    decode = []
    for seed in range(60):
        r = random.Random(500 + seed)
        top = t.get_vocab_size() if seed % 2 else min(300, t.get_vocab_size())
        ids = [r.randrange(top) for _ in range(r.randrange(1, 14))]
        decode.append({"ids": ids, "text": t.decode(ids, skip_special_tokens=False)})
    assert len(cases) >= 300, len(cases)
    return cases, decode, t.to_str(pretty=False)


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    files = corpus()
    origin = "tokenizers %s for Python %d.%d, by make.py" % (tokenizers.__version__, *sys.version_info[:2])
    failed = []
    print("%-18s %6s %6s %7s %6s %8s %8s" % ("kind", "tokens", "cases", "ids", "begin", "kB", "seconds"))
    with tarfile.open(os.path.join(out, "tokenizers.tar.gz"), "w:gz") as tar:
        for kind, make in KINDS.items():
            begin = time.time()
            try:
                file, config, added = make(files)
                cases, decode, text = cases_of(file, added, files)
            except BaseException:  # a panic of the library is no Exception
                traceback.print_exc()
                failed.append(kind)
                continue
            packed = io.BytesIO()
            with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as z:
                z.write(json.dumps({"origin": origin, "cases": cases, "decode": decode}, ensure_ascii=False, separators=(",", ":")).encode())
            size = 0
            for name, data in (("tokenizer.json", text.encode()), ("tokenizer_config.json", json.dumps(config, indent=1).encode()), ("cases.json.gz", packed.getvalue())):
                info = tarfile.TarInfo("%s/%s" % (kind, name))
                info.size = len(data)
                size += len(data)
                tar.addfile(info, io.BytesIO(data))
            print("%-18s %6d %6d %7d %6d %8d %8.1f" % (kind, len(json.loads(text)["model"]["vocab"]), len(cases), sum(len(c["ids"]) for c in cases),
                                                    len(cases[5]["special"]) - len(cases[5]["ids"]), size // 1000, time.time() - begin), flush=True)
    print(origin, "archive of %d kB" % (os.path.getsize(os.path.join(out, "tokenizers.tar.gz")) // 1000))
    if failed:
        sys.exit("failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
