#!/bin/bash
# Makes the tables of docs/students.md and of quantised students on a machine with a GPU and without Go. `make students-card` makes FOLDER
# (apr, students, quantaware, gosource.jsonl.zst) and FOLDER.tar.xz; either is taken. Ends in time with what is done; the same
# command again, with the same OUT and settings, goes on. usage, in a checkout: bench/students/card.sh FOLDER OUT
#   PARTS="PART …"   students     the table of the 6.9M teacher: OUT/gosrc.jsonl, gosrc.md
#                    teacher      trains the 29M teacher: OUT/teacher-30m.apr (117 MB), teacher-30m.json
#                    students-30m the table of that teacher: OUT/gosrc-30m.jsonl, gosrc-30m.md
#                    quantaware   quantised students of the 6.9M model: OUT/quantaware.jsonl, quantaware.md
#                    speeds       what steps with adapters and in blocks cost: OUT/speeds.jsonl, speeds.md
#                    adapters     transformers and PEFT read what apr wrote and write the same text: OUT/adapters.txt
#                    default: students
#   LIMIT=SECONDS    for all parts together (420); LIMIT_PART=SECONDS for quantaware alone, so that more has its turn
#   TOKENS, SEEDS, RATES, JOBS, ONLY   as the flags of bench/students (1310720, 1,2,3, .5,1,2, 4, all)
#   STEPS, BATCH, LENGTH, TYPES, QUANT_RATES, QUANT_JOBS, QUANT_BACKEND   as the flags of bench/quantaware (350, 8, 512,
#                    q4_k_m,q2_k,q3_k_m,q4_0, 3e-5,3e-5@2,6e-5@2,1e-4@2,6e-5:0@2,6e-5@1, 4, cuda)
#   TEACHER_FLAGS    further flags of apr distill for the part teacher, such as "--steps 3600"
#   SPEEDS_FLAGS     further flags of bench/students for the part speeds, such as "-speeds-model MODEL"
#   ADAPTER_STEPS    steps of each of the two students of the part adapters (60)
#   TEACHER, DATA, HELD, MODEL, GOSOURCE   other files than those of the checkout and of FOLDER
#   APR              another apr than that of FOLDER
#   BACKEND, MACHINE cuda; what nvidia-smi calls the GPU
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 2 ] || { sed -n '2,/^set/p' "$0" | sed '$d' >&2; exit 2; }
programs=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
if [ -f "$programs" ]; then
	mkdir -p "$out/programs"
	tar -C "$out/programs" -xJf "$programs"
	programs=$out/programs
fi
backend=${BACKEND:-cuda}
machine=${MACHINE:-$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 || true)}
data=${DATA:-examples/gosrc/data/gosrc-train-sample.jsonl.zst}
held=${HELD:-examples/gosrc/data/gosrc-val.jsonl.zst}
end=$((SECONDS + ${LIMIT:-420}))
left() { echo $((end > SECONDS ? end - SECONDS : 1)); }
export XDG_CACHE_HOME=$out/cache # tokens of the text, made once
apr=${APR:-$programs/apr}
model=${MODEL:-testdata/models/gosrc}
gosource=${GOSOURCE:-$programs/gosource.jsonl.zst}
status=0

table() { # NAME TEACHER
	"$programs/students" -apr "$apr" -name "$1" -teacher "$2" -data "$data" -held "$held" -machine "$machine" -backend "$backend" \
		-tokens "${TOKENS:-1310720}" -seeds "${SEEDS:-1,2,3}" -rates "${RATES:-.5,1,2}" -only "${ONLY:-}" -jobs "${JOBS:-4}" \
		-limit "$(left)s" -log "$out/$1.jsonl" >"$out/$1.md" || status=1
	cat "$out/$1.md"
}

teacher() {
	timeout "$(left)" "$apr" distill examples/gosrc/teacher-30m.yaml -d "$gosource" --backend "$backend" \
		--force --json --no-progress -o "$out/teacher-30m" ${TEACHER_FLAGS:-} >"$out/teacher-30m.json" || return 1
	mv "$out/teacher-30m/student.apr" "$out/teacher-30m.apr"
	timeout "$(left)" "$apr" eval "$out/teacher-30m.apr" -d "$held" --seq-len 256 --backend "$backend"
}

quantaware() {
	local limit
	limit=$(left)
	limit=$((${LIMIT_PART:-$limit} < limit ? ${LIMIT_PART:-$limit} : limit))
	"$programs/quantaware" -apr "$apr" -machine "$machine" -backend "${QUANT_BACKEND:-$backend}" -seeds "${SEEDS:-1,2,3}" \
		-steps "${STEPS:-350}" -batch-size "${BATCH:-8}" -seq-len "${LENGTH:-512}" -types "${TYPES:-q4_k_m,q2_k,q3_k_m,q4_0}" \
		-rates "${QUANT_RATES-3e-5,3e-5@2,6e-5@2,1e-4@2,6e-5:0@2,6e-5@1}" -jobs "${QUANT_JOBS:-4}" -limit "${limit}s" \
		-keep "$out/quantaware" -log "$out/quantaware.jsonl" "$model" "$data" "$held" >"$out/quantaware.md" || status=1
	cat "$out/quantaware.md"
}

speeds() {
	"$programs/students" -apr "$apr" -machine "$machine" -backend "$backend" -limit "$(left)s" -speeds "$out/speeds.jsonl" \
		${SPEEDS_FLAGS:-} >"$out/speeds.md" || status=1
	cat "$out/speeds.md"
}

# adapters trains one student by adapters, on text alone so that its texts are others than its base's, and one in blocks.
# A small run by adapters is computed again by apr verify, in float64.
adapters() {
	local at=$out/adapters
	mkdir -p "$at"
	run() { timeout "$(left)" "$apr" "$@" --quiet >>"$at/log.txt"; }
	local common=(-d "$data" --steps "${ADAPTER_STEPS:-60}" --batch-size 8 --seq-len 256 --control none --samples 0
		--eval-every 0 --backend "$backend" --force)
	run distill "$model" --student "$model" --allow-same-model --alpha 0 --lora --learning-rate 4e-3 "${common[@]}" -o "$at/lora" &&
		run distill "$model" --student "$model" --allow-same-model --alpha 0 --lora "${common[@]}" --steps 3 --batch-size 2 \
			--seq-len 64 -o "$at/lora-small" &&
		run verify "$at/lora-small" --steps 1 &&
		run export "$model" --adapter "$at/lora/adapter" --quantize f32 -o "$at/merged" --force &&
		run distill "$model" --quantize-aware q4_k_m "${common[@]}" -o "$at/blocks-run" &&
		run export "$at/blocks-run/student.apr" -o "$at/blocks.gguf" --force &&
		run export "$at/blocks-run/student.apr" --quantize f32 -o "$at/blocks" --force || return 1
	if ! python3 -c 'import torch, transformers' 2>/dev/null; then
		echo "python3 has no torch with transformers: nothing is compared"
		return
	fi
	timeout "$(left)" python3 bench/peer/check_adapter.py "$apr" "$model" "$at/lora/adapter" "$at/merged" "$at/blocks.gguf" "$at/blocks"
}

for part in ${PARTS:-students}; do
	echo "== $part, $(left) s are left"
	case $part in
	students) table gosrc "${TEACHER:-examples/gosrc/teacher.apr}" ;;
	teacher) teacher || status=1 ;;
	students-30m) table gosrc-30m "$out/teacher-30m.apr" ;;
	quantaware) quantaware ;;
	speeds) speeds ;;
	adapters)
		adapters >"$out/adapters.txt" 2>&1 || status=1
		cat "$out/adapters.txt"
		;;
	*)
		echo "PARTS: $part is no part" >&2
		exit 2
		;;
	esac
done
echo "== done in $SECONDS s"
exit $status
