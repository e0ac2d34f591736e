#!/bin/bash
# Races apr against llama.cpp at reading a prompt and at generating, with the same quantised model on the same two
# processors, one program after the other, several rounds; the last line compares medians.
# usage: bench/peer/race-llama.sh [APR]   (needs LLAMA_BENCH, the llama-bench program, and python3; APR defaults to bin/apr)
#   MODEL   a GGUF file; without it one of the shape of Qwen2.5 1.5B with random weights is made: 4 GB of disk, 2 minutes
#   SHAPE   another published shape, such as qwen3-30b-a3b; LAYERS: its first so many layers (4 of that one: 6 GB of disk, then 1.9 GB)
#   ROUNDS  default 5
set -euo pipefail
cd "$(dirname "$0")/../.."
apr=${1:-bin/apr}
llama=${LLAMA_BENCH:-llama-bench}
cpus=${CPUS:-0,1}
if [ -z "${MODEL:-}" ]; then
	shape=${SHAPE:-1.5b} layers=${LAYERS:-0}
	MODEL=${TMPDIR:-/tmp}/apr-race-$shape-$layers-q4_k_m.gguf
	if [ ! -e "$MODEL" ]; then
		go run ./bench/synth -shape "$shape" -layers "$layers" -fill -o "$MODEL.bf16.gguf"
		"$apr" quantize "$MODEL.bf16.gguf" -o "$MODEL" --scheme q4_k_m
		rm "$MODEL.bf16.gguf"
	fi
fi
lscpu | grep -E 'Model name|L2|L3' || true
for round in $(seq "${ROUNDS:-5}"); do
	taskset -c "$cpus" $llama -m "$MODEL" -t 2 -p 128 -n 32 -r 1 -o json 2>/dev/null |
		python3 -c 'import json, sys; a, b = json.load(sys.stdin); print("llama.cpp", a["build_commit"], "prompt %.1f tokens/s generation %.2f tokens/s" % (a["avg_ts"], b["avg_ts"]))'
	taskset -c "$cpus" "$apr" bench "$MODEL" --backend cpu --prompt-tokens 128 --max-tokens 33 --warmup 1 --iterations 1 --json 2>/dev/null |
		python3 -c 'import json, sys; g = json.load(sys.stdin)["generation"]; print("apr -", "prompt %.1f tokens/s generation %.2f tokens/s" % (g["prompt_tokens_per_second"], g["tokens_per_second"]))'
done | python3 -c '
import statistics, sys
rows = []
for line in sys.stdin:
    print(line, end="", flush=True)
    rows.append(line.split())
median = lambda who, i: statistics.median(float(r[i]) for r in rows if r[0] == who)
for i, what in ((3, "prompt"), (6, "generation")):
    a, b = median("apr", i), median("llama.cpp", i)
    print("median %s: apr %.1f, llama.cpp %.2f tokens/s, ratio %.2f" % (what, a, b, a / b))'
