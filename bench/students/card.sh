#!/bin/bash
# Makes the tables of docs/students.md and of quantised students on a machine with a GPU and without Go. `make students-card` makes FOLDER
# (apr, students, quantaware, gosource.jsonl.zst) and FOLDER.tar.xz; either is taken. Ends in time with what is done; the same
# command again, with the same OUT and settings, goes on. usage, in a checkout: bench/students/card.sh FOLDER OUT
#   PARTS="PART …"   students     the table of the 6.9M teacher: OUT/gosrc.jsonl, gosrc.md
#                    teacher      trains the 29M teacher: OUT/teacher-30m.apr (117 MB), teacher-30m.json
#                    students-30m the table of that teacher: OUT/gosrc-30m.jsonl, gosrc-30m.md
#                    quantaware   quantised students of the 6.9M model: OUT/quantaware.jsonl, quantaware.md
#                    default: students
#   LIMIT=SECONDS    for all parts together (420)
#   TOKENS, SEEDS, RATES, JOBS, ONLY   as the flags of bench/students (1310720, 1,2,3, .5,1,2, 4, all)
#   STEPS, TYPES, QUANT_JOBS, QUANT_BACKEND   as the flags of bench/quantaware (350, q2_k,q3_k_m,q4_0,q4_k_m, 4, cuda)
#   TEACHER, DATA, HELD, MODEL   other files than those of the checkout
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
apr=$programs/apr
status=0

table() { # NAME TEACHER
	"$programs/students" -apr "$apr" -name "$1" -teacher "$2" -data "$data" -held "$held" -machine "$machine" -backend "$backend" \
		-tokens "${TOKENS:-1310720}" -seeds "${SEEDS:-1,2,3}" -rates "${RATES:-.5,1,2}" -only "${ONLY:-}" -jobs "${JOBS:-4}" \
		-limit "$(left)s" -log "$out/$1.jsonl" >"$out/$1.md" || status=1
	cat "$out/$1.md"
}

for part in ${PARTS:-students}; do
	echo "== $part, $(left) s are left"
	case $part in
	students) table gosrc "${TEACHER:-examples/gosrc/teacher.apr}" ;;
	teacher)
		timeout "$(left)" "$apr" distill examples/gosrc/teacher-30m.yaml -d "$programs/gosource.jsonl.zst" --backend "$backend" \
			--force --json --no-progress -o "$out/teacher-30m" >"$out/teacher-30m.json" || { status=1; continue; }
		mv "$out/teacher-30m/student.apr" "$out/teacher-30m.apr"
		"$apr" eval "$out/teacher-30m.apr" -d "$held" --seq-len 256 --backend "$backend"
		;;
	students-30m) table gosrc-30m "$out/teacher-30m.apr" ;;
	quantaware)
		"$programs/quantaware" -apr "$apr" -machine "$machine" -backend "${QUANT_BACKEND:-$backend}" -steps "${STEPS:-350}" -seeds "${SEEDS:-1,2,3}" \
			-types "${TYPES:-q2_k,q3_k_m,q4_0,q4_k_m}" -jobs "${QUANT_JOBS:-4}" -limit "$(left)s" -keep "$out/quantaware" -log "$out/quantaware.jsonl" \
			"${MODEL:-testdata/models/gosrc}" "$data" "$held" >"$out/quantaware.md" || status=1
		cat "$out/quantaware.md"
		;;
	*)
		echo "PARTS: $part is no part" >&2
		exit 2
		;;
	esac
done
echo "== done in $SECONDS s"
exit $status
