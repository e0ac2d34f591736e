#!/bin/bash
# Races apr against PyTorch at the same distillation step on one GPU, alternating, and prints one table.
# usage: bench/peer/race-cuda.sh [APR] [PAIR...]   (needs python3 with torch and transformers; APR defaults to bin/apr,
# pairs to 7b:0.5b 1.5b:0.5b)
set -euo pipefail
cd "$(dirname "$0")/../.."
apr=${1:-bin/apr}
shift || true
pairs=("$@")
[ ${#pairs[@]} -gt 0 ] || pairs=(7b:0.5b 1.5b:0.5b)
batch=${BATCH:-8} seq=${SEQ:-1024} rounds=${ROUNDS:-2}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader
for pair in "${pairs[@]}"; do
	for round in $(seq "$rounds"); do
		"$apr" bench --backend cuda --shape "$pair" --random-weights --batch-size "$batch" --seq-len "$seq" \
			--warmup 5 --iterations 30 --json >"$work/apr-$pair-$round.json" 2>"$work/err" || { cat "$work/err"; exit 1; }
		python3 bench/peer/torch_kd.py --pairs "$pair" --variants bf16-compile-chunk --batch "$batch" --seq "$seq" --steps 20 2>/dev/null |
			grep RESULT >"$work/torch-$pair-$round.txt"
	done
done
python3 - "$work" "$rounds" "${pairs[@]}" <<'PY'
import json, re, sys
work, rounds, pairs = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
print(f"{'pair':10} {'program':8} {'tokens/s':>9} {'ms':>7} {'p95/p50':>8} {'GiB':>6}  phases in ms")
for pair in pairs:
    best = {"apr": 0, "PyTorch": 0}; peak = {}
    for r in range(1, rounds + 1):
        d = json.load(open(f"{work}/apr-{pair}-{r}.json"))
        lat, s = d["latency_ms"], d["step_ms"]
        gib = d["peak_memory"]["device"] / 2**30
        print(f"{pair:10} {'apr':8} {d['tokens_per_second']:9.0f} {lat['p50']:7.1f} {lat['p95']/lat['p50']:8.3f} {gib:6.1f}  " + ", ".join(f"{k} {v:.1f}" for k, v in s.items()))
        t = open(f"{work}/torch-{pair}-{r}.txt").read()
        ms, tok, pk, rest = re.search(r": ([\d.]+) ms/step (\d+) tok/s peak ([\d.]+) GiB \| (.*)", t).groups()
        print(f"{pair:10} {'PyTorch':8} {int(tok):9d} {float(ms):7.1f} {'':8} {float(pk):6.1f}  {rest}")
        best["apr"] = max(best["apr"], d["tokens_per_second"]); best["PyTorch"] = max(best["PyTorch"], int(tok))
        peak["apr"], peak["PyTorch"] = gib, float(pk)
    print(f"{pair:10} ratio {best['apr']/best['PyTorch']:.3f}  (best of each)   memory {peak['apr']:.1f} against {peak['PyTorch']:.1f} GiB")
PY
