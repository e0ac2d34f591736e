#!/usr/bin/env python3
"""Writes gosrc-q4_k_m.json: SHA-256 of every tensor's values as little-endian float32, by the equations of the formats.

    testdata/models/dequantise.py testdata/models/gosrc-q4_k_m.gguf > testdata/models/gosrc-q4_k_m.json

It shares no code with the program. Every product below is exact in float64, so each value is rounded to float32 once,
as it is when the products are computed in float32.
"""
import hashlib
import json
import struct
import sys
from array import array


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    at = 0

    def number(form):
        nonlocal at
        x, = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return x

    def text():
        nonlocal at
        n = number("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            kind = number("I")
            return [value(kind) for _ in range(number("Q"))]
        return number({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}[kind])

    assert data[:4] == b"GGUF" and data[4:8] == b"\3\0\0\0"
    at = 8
    tensors, keys = number("Q"), number("Q")
    for _ in range(keys):
        text()
        value(number("I"))
    infos = [(text(), [number("Q") for _ in range(number("I"))], number("I"), number("Q")) for _ in range(tensors)]
    start = (at + 31) // 32 * 32
    for name, dims, kind, offset in infos:
        n = 1
        for d in dims:
            n *= d
        yield name, dims, kind, n, data[start + offset:]


def half(b, at):
    return struct.unpack_from("<e", b, at)[0]


def q4_k(b):
    d, low = half(b, 0), half(b, 2)
    s, q = b[4:16], b[16:144]
    for j in range(8):
        if j < 4:
            scale, least = s[j] & 63, s[j + 4] & 63
        else:
            scale, least = s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4
        for i in range(32):
            yield d * scale * (q[32 * (j // 2) + i] >> 4 * (j % 2) & 15) - low * least


def q6_k(b):
    ql, qh, s, d = b[:128], b[128:192], struct.unpack_from("<16b", b, 192), half(b, 208)
    for i in range(256):
        h, k, l = i // 128, i % 128 // 32, i % 32
        v = ql[64 * h + 32 * (k % 2) + l] >> 4 * (k // 2) & 15 | (qh[32 * h + l] >> 2 * k & 3) << 4
        yield d * s[8 * h + 2 * k + l // 16] * (v - 32)


def values(kind, n, raw):
    if kind == 0:
        return array("f", raw[:4 * n])
    block, size = {12: (q4_k, 144), 14: (q6_k, 210)}[kind]
    out = array("f")
    for i in range(n // 256):
        out.extend(block(raw[i * size:(i + 1) * size]))
    return out


hashes = {name: hashlib.sha256(values(kind, n, raw).tobytes()).hexdigest() for name, dims, kind, n, raw in read(sys.argv[1])}
json.dump(hashes, sys.stdout, indent=1, sort_keys=True)
print()
