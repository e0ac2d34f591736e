#!/bin/bash
# Races apr against PyTorch at the same distillation step on one GPU, in turns, and leaves what was measured in a folder
# for bench/gputable: apr-PAIR-ROUND.json, torch-PAIR-ROUND.txt. Without torch and transformers in python3, apr runs alone.
# usage: bench/peer/race-cuda.sh APR DIR
#   PAIRS="7b:0.5b 1.5b:0.5b"  ROUNDS=2  BATCH=8  SEQ=1024
#   MEMORY=28  GiB that apr may plan for: what PyTorch needs for the first pair
set -euo pipefail
cd "$(dirname "$0")/../.."
apr=$1 out=$2
batch=${BATCH:-8} seq=${SEQ:-1024} rounds=${ROUNDS:-2}
peer=true
if ! python3 -c 'import torch, transformers' 2>/dev/null; then
	peer=false
	echo "python3 has no torch with transformers: apr runs alone"
fi
for pair in ${PAIRS:-7b:0.5b 1.5b:0.5b}; do
	for round in $(seq "$rounds"); do
		echo "measuring $pair, round $round of $rounds"
		"$apr" bench --backend cuda --shape "$pair" --random-weights --batch-size "$batch" --seq-len "$seq" \
			--memory "${MEMORY:-28}" --warmup 10 --iterations 30 --json >"$out/apr-$pair-$round.json"
		if $peer; then
			python3 bench/peer/torch_kd.py --pairs "$pair" --variants bf16-compile-chunk --batch "$batch" --seq "$seq" --steps 20 \
				2>"$out/torch-$pair-$round.log" | { grep RESULT || true; } >"$out/torch-$pair-$round.txt"
		fi
	done
done
