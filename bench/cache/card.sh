#!/bin/bash
# What a teacher costs that is run once, or whose layers come from the host, on one GPU: random models of published shapes in
# Q4_K_M, made on the machine, and this repository's sources as text. Leaves JSON in OUT and prints a table.
# usage: APR=apr SYNTH=synth OUT=folder LIMIT=280 bench/cache/card.sh     (synth: go build ./bench/synth)
#   60 s  7B: made; draws; hidden states; the rate against that of body and head alone
#   60 s  7B -> 0.5B: steps from draws, from hidden states, and without a teacher
#   60 s  7B with layers from the host and 4 GiB of memory free: 65,536 and 8,192 positions a pass, beside the resident one
#   50 s  generation with 1, 64 and 256 slots
#   30 s  1.5B: made; draws
# TEACHER, SMALL, STUDENT: shapes. TOKENS: of text, about. BACKEND=cpu tries the script without a card.
set -u
cd "$(dirname "$0")/../.."
LIMIT=${LIMIT:-280} OUT=${OUT:-/tmp/apr-cache} BACKEND=${BACKEND:-cuda}
TEACHER=${TEACHER:-7b} SMALL=${SMALL:-1.5b} STUDENT=${STUDENT:-0.5b} TOKENS=${TOKENS:-400000} STEPS=${STEPS:-40} LAYERS=${LAYERS:-0}
end=$((SECONDS + LIMIT))
mkdir -p "$OUT"
OUT=$(realpath "$OUT") APR=$(realpath "$APR") SYNTH=$(realpath "$SYNTH")
temp=$(mktemp -d -p "${TMPDIR:-/tmp}")
hog=
trap '[ -z "$hog" ] || kill $hog 2>/dev/null; rm -rf "$temp"' EXIT
table=$OUT/cache-table.txt
: >"$table"
say() { echo "$*" | tee -a "$table"; }

# run SECONDS NAME COMMAND… : its stdout becomes OUT/cache-NAME.json. What no time is left for is said.
run() {
	local left=$((end - SECONDS)) most=$1 name=$2 begun=$SECONDS
	shift 2
	if [ "$left" -lt 5 ]; then
		say "$name: no time left"
		return 1
	fi
	if timeout -k 3 "$((left < most ? left : most))" "$@" >"$temp/out" 2>"$temp/err"; then
		mv "$temp/out" "$OUT/cache-$name.json"
		echo "$name: $((SECONDS - begun)) s"
	else
		say "$name: failed after $((SECONDS - begun)) s: $(tail -n 2 "$temp/err" | tr '\n' ' ' | cut -c1-300)"
		return 1
	fi
}

# value NAME FIELD… prints members of OUT/cache-NAME.json, with - for what is not there.
value() {
	python3 - "$OUT/cache-$1.json" "${@:2}" <<'P'
import json, sys
try:
    r = json.load(open(sys.argv[1]))
except Exception:
    r = {}
for path in sys.argv[2:]:
    v = r
    for key in path.split("."):
        v = v.get(key) if isinstance(v, dict) else None
    print("-" if v is None else ("%.6g" % v if isinstance(v, float) else v), end=" ")
P
}

make_model() { # SHAPE
	local begun=$SECONDS layers=()
	[ "$LAYERS" = 0 ] || layers=(-layers "$LAYERS")
	timeout -k 3 60 "$SYNTH" -shape "$1" "${layers[@]}" -scheme q4_k_m -tokens 151665 -o "$temp/$1.gguf" || return 1
	say "$1 in Q4_K_M made in $((SECONDS - begun)) s, $(stat -c %s "$temp/$1.gguf") bytes"
}

python3 - "$TOKENS" "$temp/text.jsonl" <<'P'
import glob, json, sys
left = int(sys.argv[1]) * 3
with open(sys.argv[2], "w") as out:
    for f in sorted(glob.glob("**/*.go", recursive=True)):
        text = open(f, errors="replace").read()
        out.write(json.dumps({"text": text}) + "\n")
        left -= len(text)
        if left < 0:
            break
P
python3 - "$STUDENT" "$temp/student.json" <<'P'
import json, sys
shapes = {"0.5b": (24, 14, 2, 896, 4864), "tiny": (2, 4, 2, 64, 128)}
layers, heads, kv, h, f = shapes[sys.argv[1]]
json.dump(dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_hidden_layers=layers, num_attention_heads=heads,
    num_key_value_heads=kv, hidden_size=h, intermediate_size=f, vocab_size=151936, max_position_embeddings=32768, rope_theta=1e6,
    rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu"), open(sys.argv[2], "w"))
P
data=(-d "$temp/text.jsonl" --seq-len 1024 --batch-size 8 --data-cache off --val-fraction 0 --backend "$BACKEND" --json)

# precompute SECONDS NAME MODEL OPTIONS…
precompute() {
	run "$1" "$2" "$APR" distill "$temp/$3.gguf" "${data[@]}" --stage precompute -o "$temp/$2" "${@:4}" || return 1
	set -- "$2" $(value "$2" tokens_per_second forward_tokens_per_second draws_us_per_token bytes_per_position pass.teacher_backend pass.positions pass.costs.host.bytes_per_step)
	say "$(printf '%-22s %9s tokens/s, device alone %9s, draws %8s us, %8s B a token, %s, %s positions a pass, %s B fetched' "$@")"
}

# train NAME OPTIONS… prints the median step of a run, of which the first ten are left out.
train() {
	local name=$1
	shift
	run 45 "$name" "$APR" distill "$@" --student-config "$temp/student.json" "${data[@]}" --steps "$STEPS" --eval-every 0 --samples 0 \
		--control none --checkpoint-every 0 --probe=off -o "$temp/$name" || return 1
	cp "$temp/$name/steps.jsonl" "$OUT/cache-$name-steps.jsonl" 2>/dev/null || true
	say "$name: $(python3 - "$temp/$name/steps.jsonl" <<'P'
import json, sys
ms = []
for line in open(sys.argv[1]):
    r = json.loads(line)
    if isinstance(r.get("ms"), dict):
        ms.append(r["ms"].get("step", r["ms"].get("total", 0)))
        continue
    for key in ("ms", "step_ms", "duration_ms", "milliseconds"):
        if isinstance(r.get(key), (int, float)):
            ms.append(r[key]); break
    else:
        if isinstance(r.get("seconds"), (int, float)):
            ms.append(1e3 * r["seconds"])
ms = sorted(ms[10:] or ms)
print("median step %.2f ms, %.0f tokens/s, of %d steps" % (ms[len(ms) // 2], 8192e3 / ms[len(ms) // 2], len(ms)) if ms else "no times")
P
)"
}

say "$(date -u +%FT%TZ) $("$APR" --version 2>/dev/null | head -1)"
if make_model "$TEACHER"; then
	precompute 60 draws "$TEACHER" --teacher-backend auto
	train plain "$temp/$TEACHER.gguf" --alpha 0
	[ -d "$temp/draws" ] && train from-draws --cache "$temp/draws"
	precompute 50 hidden "$TEACHER" --teacher-backend auto --cache-kind hidden
	[ -d "$temp/hidden" ] && train from-hidden --cache "$temp/hidden"
	rm -rf "$temp/hidden" "$temp/plain" "$temp/from-draws" "$temp/from-hidden"
	precompute 40 resident-65536 "$TEACHER" --teacher-backend q4k
	precompute 40 resident-8192 "$TEACHER" --teacher-backend q4k --shard-size 304KB
	# All of the card's memory but 5 GiB is held by another program: a GiB stays a reserve, 4 are for the teacher.
	if [ "$BACKEND" = cuda ]; then
		python3 -c '
import time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - (5 << 30)), dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info()[0], flush=True)
time.sleep(600)' >"$temp/hog" 2>&1 &
		hog=$!
		for _ in $(seq 40); do [ -s "$temp/hog" ] && break; sleep 0.5; done
		say "bytes free beside another program: $(tail -n 1 "$temp/hog" | cut -c1-120)"
	fi
	streaming=stream
	[ "$BACKEND" = cuda ] || streaming=auto
	precompute 50 stream-65536 "$TEACHER" --teacher-backend $streaming
	precompute 50 stream-8192 "$TEACHER" --teacher-backend $streaming --shard-size 304KB
	if [ -n "$hog" ]; then
		kill $hog 2>/dev/null
		wait $hog 2>/dev/null
		hog=
	fi
	for k in 65536 8192; do
		say "layers from the host against resident, $k positions a pass: $(python3 -c '
import sys
a, b = sys.argv[1:]
print("%.1f %%" % (100 * float(a) / float(b)) if "-" not in (a, b) else "-")' "$(value stream-$k tokens_per_second | tr -d ' ')" "$(value resident-$k tokens_per_second | tr -d ' ')")"
	done
	python3 -c '
import json
for i in range(512):
    print(json.dumps({"prompt": "func main%d() { // number %d" % (i, i)}))' >"$temp/prompts.jsonl"
	for slots in 64 256 1; do
		n=$((slots == 1 ? 2 : 2 * slots))
		head -n $n "$temp/prompts.jsonl" >"$temp/p.jsonl"
		run 40 slots-$slots "$APR" distill "$temp/$TEACHER.gguf" --stage generate -d "$temp/p.jsonl" --max-tokens 128 --slots $slots \
			--backend "$BACKEND" --json -o "$temp/gen-$slots.jsonl" &&
			say "generation, $slots slots: $(value slots-$slots tokens_per_second tokens slots)"
	done
	rm -f "$temp/$TEACHER.gguf"
fi
if [ "$SMALL" != none ] && [ $((end - SECONDS)) -gt 20 ] && make_model "$SMALL"; then
	precompute 40 draws-small "$SMALL" --teacher-backend auto
fi
say "done in $SECONDS s"
