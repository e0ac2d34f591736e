#!/bin/bash
# Races apr against PyTorch at the same distillation step on one GPU, in turns, and leaves what was measured in a folder
# for bench/gputable: apr-PAIR-ROUND.json, torch-PAIR-ROUND.txt. Without torch and transformers in python3, apr runs alone.
# usage: bench/peer/race-cuda.sh APR DIR
#   PAIRS="7b:0.5b 1.5b:0.5b"  ROUNDS=2  BATCH=8  SEQ=1024
#   WAYS="cublas q4k q4k-small fp8 fp8-small"  how the teacher is computed: expanded, or in the blocks of llama.cpp's mix
#   Q4_K_M, with products in bfloat16 or in 8-bit floats. apr may plan for 28 GiB, what PyTorch needs for the first pair; for
#   the small ways 0.6 of what it needs: 16.8 GiB, and 10 for the second pair, or 12 where that is too little.
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
		for way in ${WAYS:-cublas q4k q4k-small fp8 fp8-small}; do
			echo "measuring $pair, teacher $way, round $round of $rounds"
			case $way in
			cublas) flags="" ;;
			q4k*) flags="--teacher-backend q4k" ;;
			fp8*) flags="--teacher-backend q4k --teacher-gemm fp8" ;;
			esac
			memory=28
			case $way-$pair in
			*-small-7b*) memory=16.8 ;;
			*-small-*) memory="10 12" ;;
			esac
			for gib in $memory; do
				if "$apr" bench --backend cuda --shape "$pair" --random-weights --batch-size "$batch" --seq-len "$seq" \
					--memory "$gib" --warmup 10 --iterations 30 $flags --json >"$out/bench.json"; then
					mv "$out/bench.json" "$out/apr-$pair@$way-$round.json"
					break
				fi
				echo "it does not fit $gib GiB"
			done
		done
		if $peer; then
			python3 bench/peer/torch_kd.py --pairs "$pair" --variants bf16-compile-chunk --batch "$batch" --seq "$seq" --steps 20 \
				2>"$out/torch-$pair-$round.log" | { grep RESULT || true; } >"$out/torch-$pair-$round.txt"
		fi
	done
done
