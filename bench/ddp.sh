#!/bin/bash
# Measures several GPUs of one machine that train one student: exactness, faults, efficiency beside the same cards alone,
# and PyTorch DDP. Needs two GPUs and NCCL; DDP needs PyTorch with transformers in python3. Prints one table per part.
# usage: bench/ddp.sh APR DIR
#   LIMIT=SECONDS  begins no measurement after so many seconds, and ends each by then (570)
#   ONLY="speed ddp exact world teach faults"  parts, in this order: of each pair the cards alone and together, then PyTorch on the same
#     cards, and a line that compares them; "overlap" is one more: the same step with what ranks exchange
#     beside it and by itself (APR_NCCL_OVERLAP=0), and with fewer thread blocks for NCCL (NCCL_MAX_CTAS)
#   Each part writes its lines and files before the next one begins: a run that is cut off has what it measured.
#   CTAS="8 16"  how many
#   PAIRS="7b:0.5b 1.5b:0.5b"  BATCH=8 (rows of each GPU)  SEQ=1024
# world also runs with 4 and 8 GPUs, and teach with 3, where there are as many.
# About: exact 30 s, world 30 s, teach 30 s, speed 60 s a pair and 40 s with fp8, ddp 60 s a pair (more where torch compiles), faults 40 s,
# overlap 20 s a pair and variant, of which there are 2 and one for each of CTAS.
set -u
cd "$(dirname "$0")/.." || exit 1
apr=$(realpath "$1") out=$2
mkdir -p "$out"
out=$(realpath "$out")
limit=${LIMIT:-570} batch=${BATCH:-8} seq=${SEQ:-1024} pairs=${PAIRS:-7b:0.5b 1.5b:0.5b}
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
export NCCL_NVLS_ENABLE=0
log=$out/ranks-main.txt
: >"$log"
say() { echo "$*" | tee -a "$log"; }
timed() { # SECONDS NAME COMMAND…: what it says is in $temp/NAME.out and .err
	local s=$((limit - SECONDS)) name=$2 t0=$SECONDS rc
	[ "$s" -gt "$1" ] && s=$1
	shift 2
	if [ "$s" -lt 3 ]; then
		say "$name: left out, no time"
		return 1
	fi
	timeout -k 2 "$s" "$@" >"$temp/$name.out" 2>"$temp/$name.err"
	rc=$?
	[ $rc = 0 ] && return 0
	say "$name: ended with $rc after $((SECONDS - t0)) s: $(tail -n 3 "$temp/$name.err" | cut -c1-500 | tr '\n' ' ')"
	return $rc
}
asked() { [[ " ${ONLY:-speed ddp exact world teach faults} " == *" $1 "* ]]; }

text=examples/gosrc/data/gosrc-val.jsonl.zst
common="examples/gosrc/teacher.apr --student-config examples/gosrc/student-config.json -d $text --val-fraction 0 --seq-len 256
	--control none --samples 0 --no-progress --backend cuda --teacher-backend cublas"

exact() { # gradients of one GPU and of two
	timed 40 exact-1 "$apr" distill $common --batch-size 16 --steps 1 --dtype f32 -o "$temp/e1"
	timed 40 exact-2 "$apr" distill $common --batch-size 16 --steps 1 --dtype f32 --gpus 2 -o "$temp/e2"
	timed 40 bits-1 "$apr" distill $common --batch-size 16 --steps 5 --gpus 2 -o "$temp/b1"
	timed 40 bits-2 "$apr" distill $common --batch-size 16 --steps 5 --gpus 2 -o "$temp/b2"
	APR_NCCL_OVERLAP=0 timed 40 bits-3 "$apr" distill $common --batch-size 16 --steps 5 --gpus 2 -o "$temp/b3"
	python3 - "$temp" <<-'PY' 2>&1 | tee -a "$log"
		import sys, json, struct, glob, array
		t = sys.argv[1]
		def read(run):  # the first moments after one step are 0.1 times the clipped gradient
		    f = sorted(glob.glob(f"{t}/{run}/checkpoints/**/*.safetensors", recursive=True))[-1]
		    raw = open(f, "rb").read(); n = struct.unpack("<Q", raw[:8])[0]; head = json.loads(raw[8:8 + n]); got = {}
		    for k, v in head.items():
		        if k.startswith("optimizer.m."):
		            a, b = v["data_offsets"]; x = array.array("f"); x.frombytes(raw[8 + n + a:8 + n + b]); got[k] = x
		    return got
		try:
		    a, b = read("e1"), read("e2"); assert a.keys() == b.keys() and a
		    def rel(keys): return (sum((p - q) ** 2 for k in keys for p, q in zip(a[k], b[k])) / sum(p * p for k in keys for p in a[k])) ** .5
		    worst = max(((rel([k]), k) for k in a if any(a[k])))
		    print(f"exactness: float32 gradient of 1 and 2 GPUs, relative L2 {rel(a):.2e} over all {len(a)} tensors, worst {worst[0]:.2e} ({worst[1]}); 1e-5 wanted")
		except Exception as e: print("exactness: not measured:", e)
	PY
	cmp -s "$temp/b1/student.apr" "$temp/b2/student.apr" && say "bits: two runs on 2 GPUs are equal" || say "bits: two runs on 2 GPUs DIFFER"
	cmp -s "$temp/b1/student.apr" "$temp/b3/student.apr" && say "bits: and to one without overlap" || say "bits: one without overlap DIFFERS"
}

world() { # a rank dies mid-run under =world, and the run goes on
	local flags="$common --batch-size 16 --deterministic=world --steps 600 --checkpoint-every 100" pid child n
	timed 60 world-1 "$apr" distill $flags -o "$temp/w1"
	timed 60 world-2 "$apr" distill $flags --gpus 2 -o "$temp/w2"
	[ $((limit - SECONDS)) -gt 20 ] || return
	timeout -k 2 60 "$apr" distill $flags --gpus 2 -o "$temp/w3" >/dev/null 2>"$temp/w3.err" &
	pid=$!
	for _ in $(seq 200); do
		[ -d "$temp/w3/checkpoints" ] && ls "$temp/w3/checkpoints" | grep -q step-.*0 && break
		sleep .1
	done
	child=$(pgrep -f "$temp/w3" | sort -n | tail -n 1)
	kill -KILL "$child" 2>/dev/null
	wait $pid
	say "killed: process $child; rank 0 ended with $?: $(grep -o 'rank [0-9] of 2[^"]*' "$temp/w3.err" | tail -n 1)"
	timed 60 world-3 "$apr" distill $flags --gpus 2 -o "$temp/w3" --resume
	for n in 4 8; do
		[ "$n" -le "$gpus" ] && timed 60 "world-on-$n" "$apr" distill $flags --gpus "$n" -o "$temp/w-on-$n" &&
			[ -e "$temp/w1/student.apr" ] &&
			{ cmp -s "$temp/w1/student.apr" "$temp/w-on-$n/student.apr" && say "=world: $n GPUs have the bits of 1" || say "=world: bits of $n GPUs DIFFER from those of 1"; }
	done
	sha256sum "$temp"/w[123]/student.apr | sed "s|$temp/||" | tee -a "$log"
	if cmp -s "$temp/w1/student.apr" "$temp/w3/student.apr" && cmp -s "$temp/w2/student.apr" "$temp/w3/student.apr"; then
		say "=world: killed and continued on 2 GPUs has the bits of 1 and of 2 GPUs undisturbed"
	else
		say "=world: bits DIFFER, or a run is missing"
	fi
}

teach() { # one GPU learns from one that only teaches, or from two with half of its layers each: the student of one that does both
	local flags="$common --batch-size 16 --steps 60" n=0 way
	for way in "" "--gpus 2 --teacher-ranks 1" "--gpus 2 --teacher-ranks 1 --dtype f32" "--dtype f32"; do
		n=$((n + 1))
		timed 40 teach-$n "$apr" distill $flags $way -o "$temp/t$n"
	done
	for n in "1 2 bfloat16" "4 3 float32"; do
		set -- $n
		cmp "$temp/t$1/student.apr" "$temp/t$2/student.apr" >/dev/null 2>&1 && say "teach: a GPU that is taught by another has the bits of one that does both, $3" ||
			say "teach: bits DIFFER from those of one GPU, or a run is missing, $3"
	done
	[ "$gpus" -ge 3 ] || return
	timed 40 teach-split "$apr" distill $flags --gpus 3 --teacher-ranks 2 --teacher-split -o "$temp/t5"
	cmp "$temp/t1/student.apr" "$temp/t5/student.apr" >/dev/null 2>&1 && say "teach: a GPU that is taught by two sections has the bits of one that does both" ||
		say "teach: bits of two sections DIFFER from those of one GPU, or a run is missing"
}

step() { # NAME WORLD DEVICES FLAGS…
	local name=$1 n=$2 devices=$3
	shift 3
	rm -f "$out/ranks-$name.json" # of an earlier call
	CUDA_VISIBLE_DEVICES=$devices timed 75 "$name" "$apr" bench --backend cuda --shape "$pair" --random-weights --batch-size "$batch" --seq-len "$seq" \
		--warmup 8 --iterations 30 $([ "$n" = 1 ] && echo --floor 0 --peak-size 1024 || echo --world-size "$n") "$@" --no-progress --json &&
		cp "$temp/$name.out" "$out/ranks-$name.json"
}
speed() { # NAME FLAGS…: both cards alone at the same time, then together
	local way=$1 name=${pair//:/-}
	shift
	step "alone0-$name-$way" 1 0 "$@" &
	step "alone1-$name-$way" 1 1 "$@"
	wait
	step "both-$name-$way" 2 0,1 "$@"
	python3 - "$out" "$name-$way" <<-'PY' 2>&1 | tee -a "$log"
		import json, sys
		out, name = sys.argv[1:]
		try:
		    alone = [json.load(open(f"{out}/ranks-alone{i}-{name}.json")) for i in (0, 1)]; both = json.load(open(f"{out}/ranks-both-{name}.json"))
		    a = [j["step"]["tokens_per_second"] for j in alone]; b = both["step"]["tokens_per_second"]
		    gib = lambda j, k: j["peak_memory"].get(k, 0) / 2**30
		    print(f"speed {name}: alone {a[0]:.0f} and {a[1]:.0f}, together {b:.0f} tokens/s: efficiency {100 * b / sum(a):.1f} %; step {both['step']['median_ms']:.1f} ms, p95 {both['step']['p95_ms']:.1f}; waiting for ranks {both['step']['phases_ms'].get('exchange', 0):.2f} ms; optimizer {both['step']['phases_ms'].get('optimizer', 0):.2f} ms, alone {alone[0]['step']['phases_ms'].get('optimizer', 0):.2f}")
		    print(f"memory {name}: alone {gib(alone[0], 'device'):.2f} (in use {gib(alone[0], 'device_in_use'):.2f}), together {gib(both, 'device'):.2f} GiB a GPU (in use {gib(both, 'device_in_use'):.2f}), over the plan {both.get('memory_over_plan')}")
		except Exception as e: print(f"speed {name}: not measured:", e)
	PY
}

overlap() { # what two GPUs exchange: beside the step and by itself, with that many thread blocks
	local name=${pair//:/-} on ctas
	for on in 1 0; do
		APR_NCCL_OVERLAP=$on step "overlap$on-$name" 2 0,1
	done
	for ctas in ${CTAS:-8 16}; do
		NCCL_MAX_CTAS=$ctas step "overlap1-$name-$ctas" 2 0,1
	done
	python3 - "$out" "$name" "${CTAS:-8 16}" <<-'PY' 2>&1 | tee -a "$log"
		import json, sys
		out, name, ctas = sys.argv[1:]
		for what, file in [("beside the step", f"overlap1-{name}"), ("by itself", f"overlap0-{name}")] + [(f"beside, NCCL_MAX_CTAS={c}", f"overlap1-{name}-{c}") for c in ctas.split()]:
		    try:
		        s = json.load(open(f"{out}/ranks-{file}.json"))["step"]; p = s["phases_ms"]
		        print(f"overlap {name}, {what}: {s['tokens_per_second']:.0f} tokens/s; step {s['median_ms']:.2f} ms, p95 {s['p95_ms']:.2f}; waiting for ranks {p.get('exchange', 0):.2f}, student backward {p['student_backward']:.2f}, teacher {p['teacher']:.2f}, optimizer {p['optimizer']:.2f} ms")
		    except Exception as e: print(f"overlap {name}, {what}: not measured:", e)
	PY
}

ddp() { # PyTorch on the same two cards, and how both compare
	local name=${pair//:/-}
	rm -f "$out/ranks-ddp-$name.txt" # of an earlier call
	timed 150 "ddp-$name" python3 -m torch.distributed.run --standalone --nproc-per-node 2 bench/peer/torch_kd_ddp.py "$pair" "$batch" "$seq" 15
	grep RESULT "$temp/ddp-$name.out" 2>/dev/null | tee -a "$log" "$out/ranks-ddp-$name.txt"
	compare "$name"
}

compare() { # NAME: one line from the files of both
	python3 - "$out" "$1" <<-'PY' 2>&1 | tee -a "$log"
		import json, re, sys
		out, name = sys.argv[1:]
		try:
		    both = json.load(open(f"{out}/ranks-both-{name}-bf16.json")); ours = both["step"]["tokens_per_second"]
		    peak = both["peak_memory"].get("device", 0) / 2**30
		    speed, gib = re.search(r"([0-9]+) tok/s peak ([0-9.]+) GiB", open(f"{out}/ranks-ddp-{name}.txt").read().splitlines()[-1]).groups()
		    print(f"beside PyTorch {name}: {ours:.0f} and {speed} tokens/s, ratio {ours / float(speed):.3f}; {peak:.1f} and {gib} GiB a GPU")
		except Exception as e: print(f"beside PyTorch {name}: not measured:", e)
	PY
}

fault() { # NAME: what is done to rank 1 of a run that began
	local how=$1 dir=$temp/f-$1 flags="$common --batch-size 16 --steps 100000 --stall-timeout 10s --checkpoint-every 20" pid child t0 rc
	if [ "$how" = pulled ]; then
		export APR_RANK_SECRET=bench
		python3 -c '
import socket, threading, sys, time, os
s = socket.create_server(("127.0.0.1", 29701)); c, _ = s.accept()
for _ in range(300):
    try: d = socket.create_connection(("127.0.0.1", 29700)); break
    except OSError: time.sleep(.1)
def pump(a, b):
    while True:
        x = a.recv(65536)
        if not x: return
        b.sendall(x)
for a, b in ((c, d), (d, c)): threading.Thread(target=pump, args=(a, b), daemon=True).start()
while not os.path.exists(sys.argv[1]): time.sleep(.1)
for x in (c, d): x.shutdown(socket.SHUT_RDWR)
' "$temp/pull" &
		CUDA_VISIBLE_DEVICES=1 timeout -k 2 50 "$apr" distill $flags --rank 1 --world-size 2 --rendezvous 127.0.0.1:29701 -o "$dir-1" >/dev/null 2>"$temp/f1.err" &
		timeout -k 2 50 "$apr" distill $flags --rank 0 --world-size 2 --rendezvous 127.0.0.1:29700 -o "$dir" >/dev/null 2>"$temp/f.err" &
	else
		timeout -k 2 50 "$apr" distill $flags --gpus 2 -o "$dir" >/dev/null 2>"$temp/f.err" &
	fi
	pid=$!
	for _ in $(seq 250); do
		[ -s "$dir/steps.jsonl" ] && [ "$(wc -l <"$dir/steps.jsonl")" -gt 25 ] && break
		sleep .1
	done
	t0=$(date +%s.%N)
	if [ "$how" = pulled ]; then
		touch "$temp/pull"
	else
		child=$(pgrep -f "$dir" | sort -n | tail -n 1)
		kill -STOP "$child"
	fi
	wait $pid
	rc=$?
	say "$how: rank 0 ended with $rc after $(awk "BEGIN{printf \"%.1f\", $(date +%s.%N) - $t0}") s: $(grep -o 'rank [0-9] of 2[^"\\]*' "$temp/f.err" | tail -n 1)"
	[ "$how" = pulled ] || kill -KILL "$child" 2>/dev/null
	wait
}

gpus=$(nvidia-smi -L 2>/dev/null | wc -l)
"$apr" gpu 2>&1 | head -n 6 | tee -a "$log"
for pair in $pairs; do
	asked speed && speed bf16
	asked ddp && ddp
done
if asked overlap; then
	for pair in $pairs; do overlap; done
fi
asked exact && exact
asked world && world
asked teach && teach
if asked speed; then
	pair=${pairs%% *}
	speed fp8 --teacher-backend q4k --teacher-gemm fp8
fi
asked faults && { fault stopped; fault pulled; }
say "measured in $SECONDS s"
