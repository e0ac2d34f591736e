"""Parquet files as pyarrow writes them, with what is in them: for tests of a reader."""
import sys, os, json, random, decimal, datetime
import pyarrow as pa, pyarrow.parquet as pq
out = sys.argv[1]; os.makedirs(out, exist_ok=True)
r = random.Random(1)
words = "le chat noir dort 猫 在 睡觉 über straße naïve 🙂 func main() { return x } \n\t".split(" ")
def text(i):
    if i % 17 == 3: return None
    if i % 19 == 5: return ""
    return " ".join(r.choice(words) for _ in range(r.choice([1, 5, 20, 200] if i % 31 == 0 else [1, 5, 20])))
n = 240
texts = [text(i) for i in range(n)]
chats = [None if i % 23 == 7 else [] if i % 29 == 8 else [{"role": ["user", "assistant"][j % 2], "content": text(i * 7 + j) or "x"} for j in range(r.choice([2, 4]))] for i in range(n)]
json.dump({"pyarrow": pa.__version__, "text": texts, "messages": chats}, open(out + "/expected.json", "w"), ensure_ascii=False)
chat_type = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
base = pa.table({"text": pa.array(texts, pa.string()), "messages": pa.array(chats, chat_type)})
def write(name, table, **kw):
    try:
        pq.write_table(table, f"{out}/{name}.parquet", row_group_size=kw.pop("row_group_size", 100), data_page_size=kw.pop("data_page_size", 600), **kw)
    except Exception as e: print("not written", name, e)
for comp in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]:
    for page in ["1.0", "2.0"]:
        for d in [True, False]:
            write(f"{comp}-v{page[0]}-{'dict' if d else 'plain'}", base, compression=comp, data_page_version=page, use_dictionary=d)
for enc in ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"]:
    for page in ["1.0", "2.0"]:
        write(f"enc-{enc.lower()}-v{page[0]}", base, use_dictionary=False, column_encoding={c: enc for c in ["text", "messages.list.element.role", "messages.list.element.content"]}, data_page_version=page, compression="zstd")
extra = {
    "id": pa.array(range(n), pa.int64()), "u": pa.array(range(n), pa.uint64()), "f16": pa.array([float(i) for i in range(n)], pa.float32()).cast(pa.float16()), "ok": pa.array([i % 3 == 0 for i in range(n)]),
    "when": pa.array([datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=i) for i in range(n)], pa.timestamp("us", "UTC")), "day": pa.array([datetime.date(2024, 1, 1)] * n), "dec": pa.array([decimal.Decimal(i) / 100 for i in range(n)], pa.decimal128(12, 2)),
    "big": pa.array([decimal.Decimal(i) for i in range(n)], pa.decimal256(60, 0)), "raw": pa.array([b"\x00\xff" * (i % 4) for i in range(n)]), "tags": pa.array([["a"] * (i % 3) for i in range(n)]), "map": pa.array([[("k", i)] for i in range(n)], pa.map_(pa.string(), pa.int32())),
    "nest": pa.array([{"a": {"b": [[i], []]}} for i in range(n)]), "cat": pa.array(["x", "y", None] * (n // 3)).dictionary_encode(), "nothing": pa.nulls(n), "fixed": pa.array([b"1234"] * n, pa.binary(4)), "t": pa.array([i for i in range(n)], pa.time64("ns")), "dur": pa.array(range(n), pa.duration("s")),
}
write("columns", pa.table({**{k: v for k, v in extra.items()}, "text": base["text"], "messages": base["messages"]}))
for k, v in extra.items(): write("beside-" + k, pa.table({k: v, "text": base["text"], "messages": base["messages"]}))
write("large", pa.table({"text": base["text"].cast(pa.large_string()), "messages": base["messages"]}))
write("dictionary", pa.table({"text": base["text"].combine_chunks().dictionary_encode(), "messages": base["messages"]}))
write("required", pa.table({"text": pa.array([t or "" for t in texts])}, schema=pa.schema([pa.field("text", pa.string(), nullable=False)])))
write("one-group", base, row_group_size=10000, data_page_size=1 << 20)
write("many-groups", base, row_group_size=7)
write("empty", base.slice(0, 0))
write("no-stats", base, write_statistics=False, write_page_index=False)
write("page-index", base, write_page_index=True)
write("checksums", base, write_page_checksum=True)
write("bloom", base, store_schema=False)
write("oldlist", base, use_compliant_nested_type=False, version="1.0")
write("binary-text", pa.table({"text": base["text"].cast(pa.binary())}))
print(len(os.listdir(out)), "files")
