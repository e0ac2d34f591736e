#!/bin/bash
# Races apr against PyTorch at the same distillation step on one GPU, in turns, and leaves what was measured in a folder
# for bench/gputable: apr-PAIR@WAY-ROUND.json, torch-PAIR-ROUND.txt. Without torch and transformers in python3, apr runs alone.
# usage: bench/peer/race-cuda.sh APR DIR
#   PAIRS="7b:0.5b 1.5b:0.5b"  TEACHER:STUDENT as in apr bench --shape; torch_kd.py knows those of Qwen2.5, Qwen3 and Llama 3
#   ROUNDS=2  BATCH=8  SEQ=1024
#   LIMIT=SECONDS  begins no measurement after so many seconds
#   WAYS="cublas q4k q4k-small fp8 fp8-small torch"  how the teacher is computed, in this order: expanded, or in the blocks of
#   llama.cpp's mix Q4_K_M, with products in bfloat16 or in 8-bit floats; torch is PyTorch's turn; tf32 is everything in TF32.
#   For pairs of Qwen2.5 apr may plan for 28 GiB, what PyTorch needs for the first pair; for the small ways 0.6 of what it needs:
#   16.8 GiB, and 10 for the second pair, or 12 where that is too little. For other pairs it may plan for the whole card, and for
#   the small ways for 0.65 of what PyTorch needed (0.8 with students of Llama), so that torch comes before them.
set -euo pipefail
cd "$(dirname "$0")/../.."
apr=$1 out=$2
batch=${BATCH:-8} seq=${SEQ:-1024} rounds=${ROUNDS:-2} limit=${LIMIT:-}
peer=true
if ! python3 -c 'import torch, transformers' 2>/dev/null; then
	peer=false
	echo "python3 has no torch with transformers: apr runs alone"
fi

torch_step() { # PAIR ROUND
	$peer || return 0
	python3 bench/peer/torch_kd.py --pairs "$1" --variants bf16-compile-chunk --batch "$batch" --seq "$seq" --steps 20 \
		2>"$out/torch-$1-$2.log" | { grep RESULT || true; } >"$out/torch-$1-$2.txt"
}

# memory prints the GiB that apr may plan for, several to be tried in turn; nothing: what is free.
memory() { # PAIR WAY
	local share=0.65
	case $2-$1 in
	tf32-*) ;;
	*-small-7b:*) echo 16.8 ;;
	*-small-1.5b:*) echo 10 12 ;;
	*-small-*)
		[[ $1 != *:llama* ]] || share=0.8
		sed -n 's/.* peak \([0-9.]*\) GiB.*/\1/p' "$out/torch-$1-"*.txt 2>/dev/null | head -n 1 | awk -v s=$share '{ printf "%.2f", s * $1 }' || true
		;;
	*-7b:* | *-1.5b:*) echo 28 ;;
	esac
}

apr_step() { # PAIR WAY ROUND
	local flags=() sizes size
	case $2 in
	q4k*) flags=(--teacher-backend q4k) ;;
	fp8*) flags=(--teacher-backend q4k --teacher-gemm fp8) ;;
	tf32) flags=(--dtype tf32) ;;
	esac
	sizes=$(memory "$1" "$2")
	if [[ -z $sizes && $2 == *-small ]]; then
		echo "left out: how much PyTorch needs for $1 is not known"
		return
	fi
	for size in ${sizes:-free}; do
		if "$apr" bench --backend cuda --shape "$1" --random-weights --batch-size "$batch" --seq-len "$seq" --warmup 10 --iterations 30 \
			$([ "$size" = free ] || echo --memory "$size") "${flags[@]}" --json >"$out/bench.json"; then
			mv "$out/bench.json" "$out/apr-$1@$2-$3.json"
			return
		fi
		echo "not measured in $size GiB: $(tail -c 400 "$out/bench.json")"
	done
}

for pair in ${PAIRS:-7b:0.5b 1.5b:0.5b}; do
	for round in $(seq "$rounds"); do
		for way in ${WAYS:-cublas q4k q4k-small fp8 fp8-small torch}; do
			if [ -n "$limit" ] && ((SECONDS > limit)); then
				echo "left out after $limit s: $pair, $way, round $round"
				continue
			fi
			echo "measuring $pair, $way, round $round of $rounds"
			case $way in
			torch) torch_step "$pair" "$round" ;;
			cublas | q4k | q4k-small | fp8 | fp8-small | tf32) apr_step "$pair" "$way" "$round" ;;
			*)
				echo "$way is no way to compute a teacher" >&2
				exit 2
				;;
			esac
		done
	done
done
rm -f "$out/bench.json"
