#!/bin/bash
# What a teacher costs that is run once, or whose layers come from the host, on one GPU, and how fast it writes: random models of
# published shapes in Q4_K_M, made on the machine, and this repository's sources as text. The machine needs python3, no Go; with the
# part `stream` also PyTorch, which holds the memory that the teacher shall not have, and with `torch` PyTorch and transformers. Each
# part prints its lines of the table when it ends. Leaves JSON and the whole table, cache.md, in OUT.
# usage, in a checkout:
#   go build -o apr ./cmd/apr && go build -o synth ./bench/synth
#   APR=apr SYNTH=synth OUT=folder PARTS="7b torch slots" LIMIT=540 bench/cache/card.sh
# PARTS, in this order:
#   SHAPE   that teacher to STUDENT: draws and hidden states made, and their share of the rate of body and head alone; bytes a token;
#           steps from both, against steps without a teacher (--alpha 0)
#   slots   BIG writes texts with 1, 64 and 256 slots
#   stream  BIG from host memory with 4 GiB free, 65,536 and 8,192 positions a pass, beside BIG on the card
#   torch   PyTorch's live step from BIG to STUDENT, beside which the steps from draws and hidden states of BIG are put
#   giant   GIANT, whose 42 GB lie in host memory, makes draws of GIANT_TOKENS tokens; it wants 50 GB of disk and 100 of memory
# OUT may be that of an earlier call with other PARTS: the table has what is there.
# LIMIT: seconds for all. What no time is left for is said. The rest is for trying the script without a card: BACKEND=cpu, LAYERS,
# STUDENT=tiny, TOKENS of text, ROW positions, ROWS of a step, STEPS, WORDS to write, SLOTS, TORCH (the command of PyTorch's step).
set -u
cd "$(dirname "$0")/../.."
PARTS=${PARTS:-7b 1.5b slots stream} LIMIT=${LIMIT:-540} OUT=${OUT:-/tmp/apr-cache} BACKEND=${BACKEND:-cuda} BIG=${BIG:-7b}
STUDENT=${STUDENT:-0.5b} TOKENS=${TOKENS:-400000} STEPS=${STEPS:-40} LAYERS=${LAYERS:-0} ROW=${ROW:-1024} ROWS=${ROWS:-8}
WORDS=${WORDS:-128} SLOTS=${SLOTS:-1 64 256} GIANT=${GIANT:-llama3.1-70b} GIANT_TOKENS=${GIANT_TOKENS:-131072}
TORCH=${TORCH:-python3 bench/peer/torch_kd.py}
end=$((SECONDS + LIMIT))
mkdir -p "$OUT"
OUT=$(realpath "$OUT") APR=$(realpath "$APR") SYNTH=$(realpath "$SYNTH")
temp=$(mktemp -d) hog=
trap '[ -z "$hog" ] || kill $hog; rm -rf "$temp"' EXIT
note() { echo "$*" | tee -a "$OUT/cache-notes.txt"; }

# run SECONDS NAME COMMAND… : its stdout becomes OUT/cache-NAME.json, its stderr OUT/cache-NAME.log.
run() {
	local left=$((end - SECONDS)) most=$1 name=$2 begun=$SECONDS
	shift 2
	if [ "$left" -lt 5 ]; then
		note "$name: no time left"
		return 1
	fi
	rm -f "$OUT/cache-$name.json"
	if timeout -k 3 "$((left < most ? left : most))" "$@" >"$temp/out" 2>"$OUT/cache-$name.log"; then
		mv "$temp/out" "$OUT/cache-$name.json"
		echo "$name: $((SECONDS - begun)) s"
	else
		note "$name: failed after $((SECONDS - begun)) s: $(tail -n 2 "$OUT/cache-$name.log" | tr '\n' ' ' | cut -c1-300)"
		return 1
	fi
}

# model SHAPE SECONDS TOKENS makes $temp/SHAPE.gguf unless it is there.
model() {
	local begun=$SECONDS layers=()
	[ ! -f "$temp/$1.gguf" ] || return 0
	[ "$LAYERS" = 0 ] || layers=(-layers "$LAYERS")
	run "${2:-60}" "make-$1" "$SYNTH" -shape "$1" "${layers[@]}" -scheme q4_k_m -tokens "${3:-151665}" -o "$temp/$1.gguf" || { rm -f "$temp/$1.gguf"; return 1; }
	note "$1 in Q4_K_M made in $((SECONDS - begun)) s: $(stat -c %s "$temp/$1.gguf") bytes"
}

resident=q4k
[ "$BACKEND" = cuda ] || resident=auto
data=(-d "$temp/text.jsonl" --seq-len "$ROW" --batch-size "$ROWS" --data-cache off --val-fraction 0 --backend "$BACKEND" --json)

# precompute NAME SHAPE OPTIONS… makes $temp/NAME.
precompute() { run "${SECONDS_EACH:-60}" "$1" "$APR" distill "$temp/$2.gguf" "${data[@]}" --stage precompute -o "$temp/$1" "${@:3}"; }

# train NAME OPTIONS… keeps the steps' times.
train() {
	rm -f "$OUT/cache-$1-steps.jsonl"
	run 75 "$1" "$APR" distill "${@:2}" --student-config "$temp/student.json" "${data[@]}" --steps "$STEPS" --eval-every 0 --samples 0 \
		--control none --checkpoint-every 0 -o "$temp/$1"
	cp "$temp/$1/steps.jsonl" "$OUT/cache-$1-steps.jsonl" # also of a run that was ended while it wrote the student
	rm -rf "${temp:?}/$1"
}

pair() { # SHAPE
	model "$1" || return
	train "$1-plain" "$temp/$1.gguf" --alpha 0 --teacher-backend "$resident" # which is not timed then
	precompute "$1-draws" "$1" && train "$1-from-draws" --cache "$temp/$1-draws"
	precompute "$1-hidden" "$1" --cache-kind hidden && train "$1-from-hidden" --cache "$temp/$1-hidden"
	rm -rf "${temp:?}/$1-draws" "${temp:?}/$1-hidden"
}

slots() {
	model "$BIG" || return
	python3 -c '
import json
for i in range(512):
    print(json.dumps({"prompt": "func main%d() { // number %d" % (i, i)}))' >"$temp/prompts.jsonl"
	for n in $SLOTS; do
		head -n $((2 * n)) "$temp/prompts.jsonl" >"$temp/p.jsonl"
		run 60 "slots-$n" "$APR" distill "$temp/$BIG.gguf" --stage generate -d "$temp/p.jsonl" --max-tokens "$WORDS" --slots "$n" \
			--backend "$BACKEND" --json -o "$temp/texts-$n.jsonl"
	done
}

# stream: another program holds all of the card's memory but 5 GiB: one stays a reserve, 4 are for the teacher.
stream() {
	model "$BIG" || return
	local way=stream small=$((37 * 8192))
	[ "$BACKEND" = cuda ] || way=auto
	precompute resident-65536 "$BIG" --teacher-backend $resident
	precompute resident-8192 "$BIG" --teacher-backend $resident --shard-size ${small}B
	if [ "$BACKEND" = cuda ]; then
		python3 -c '
import time, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - (5 << 30)), dtype=torch.uint8, device="cuda")
print(torch.cuda.mem_get_info()[0], flush=True)
time.sleep(600)' >"$temp/hog" 2>&1 &
		hog=$!
		for _ in $(seq 40); do [ -s "$temp/hog" ] && break; sleep 0.5; done
		note "bytes free beside another program: $(tail -n 1 "$temp/hog" | cut -c1-120)"
	fi
	precompute stream-65536 "$BIG" --teacher-backend $way
	precompute stream-8192 "$BIG" --teacher-backend $way --shard-size ${small}B
	[ -z "$hog" ] || kill $hog
	hog=
}

live() {
	rm -f "$OUT/cache-torch-$BIG.txt"
	run 150 "torch-$BIG" $TORCH --pairs "$BIG:$STUDENT" --variants bf16-compile-chunk --batch "$ROWS" --seq "$ROW" --steps 20 || return
	grep RESULT "$OUT/cache-torch-$BIG.json" >"$OUT/cache-torch-$BIG.txt" || note "torch-$BIG: no result"
	rm -f "$OUT/cache-torch-$BIG.json"
}

giant() {
	local way=stream from=$SECONDS room
	[ "$BACKEND" = cuda ] || way=auto
	room=$(df --output=avail -BG "$temp" | tail -n 1 | tr -dc 0-9)
	if [ "$LAYERS" = 0 ] && [ "${room:-0}" -lt 46 ]; then
		note "giant: left out, ${room} GiB of disk are free"
		return
	fi
	model "$GIANT" 240 128256 || return
	data[1]=$temp/giant.jsonl
	SECONDS_EACH=300 precompute giant "$GIANT" --teacher-backend $way
	data[1]=$temp/text.jsonl
	note "$GIANT: $((SECONDS - from)) s in all"
	rm -rf "${temp:?}/giant"
}

# lines PART prints what there is of a part.
lines() { python3 bench/cache/table.py "$OUT" "$STUDENT" "$1"; }

python3 - "$TOKENS" "$STUDENT" "$temp" "$GIANT_TOKENS" <<'P'
import glob, json, sys
for name, tokens in ("text", sys.argv[1]), ("giant", sys.argv[4]):
    left = int(tokens) * 3
    with open(f"{sys.argv[3]}/{name}.jsonl", "w") as out:
        for f in sorted(glob.glob("**/*.go", recursive=True)):
            text = open(f, errors="replace").read()[:max(left, 0)]
            left -= len(text)
            if text:
                out.write(json.dumps({"text": text}) + "\n")
layers, heads, kv, h, f = {"0.5b": (24, 14, 2, 896, 4864), "tiny": (2, 4, 2, 64, 128)}[sys.argv[2]]
json.dump(dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], num_hidden_layers=layers, num_attention_heads=heads,
    num_key_value_heads=kv, hidden_size=h, intermediate_size=f, vocab_size=151936, max_position_embeddings=32768, rope_theta=1e6,
    rms_norm_eps=1e-6, tie_word_embeddings=True, hidden_act="silu"), open(sys.argv[3] + "/student.json", "w"))
P
[ "$BACKEND" != cuda ] || note "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)"
note "$("$APR" --version 2>/dev/null | head -1), text of $TOKENS tokens, rows of $ROW, $ROWS a step"
for part in $PARTS; do
	case $part in
	slots) slots ;;
	stream) stream ;;
	torch) live ;;
	giant)
		rm -f "$temp/$BIG.gguf" # room for it
		giant
		rm -f "$temp/$GIANT.gguf"
		;;
	*) pair "$part" ;;
	esac
	[ "$part" = "$BIG" ] || rm -f "$temp/$part.gguf"
	lines "$part"
done
python3 bench/cache/table.py "$OUT" "$STUDENT" >"$OUT/cache.md"
cat "$OUT/cache.md"
