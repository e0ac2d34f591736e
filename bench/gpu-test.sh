#!/bin/bash
# Runs the tests that want a GPU and the checks of contracts that do, races apr against PyTorch where python3 has it, and
# prints one table. usage: bench/gpu-test.sh   Ends with 1 if a row of correctness or a check fails or the race breaks off.
#   APR_GPU_TESTS=DIR  where `make gpu-binaries` put its programs, or its archive, for a machine without Go; else they are built
#   APR_GPU_OUT=DIR    keeps what was measured there (empty, or it does not exist yet); contracts.json is for make trust,
#                      families.json for make families
#   ONLY="PART …"      nothing but these parts: contracts (8 minutes), tests, families (1 minute), race, speed. speed is for
#                      about 10 minutes: the race of Qwen3 and Llama pairs, teachers with experts, tf32, passes of few rows and of slots, decode,
#                      DeltaNet; ends with 1 if a goal is missed. PyTorch compiles its own experts for minutes: PAIRS=qwen3-30b-a3b:qwen3-0.6b WAYS=torch
#   LIMIT=SECONDS      begins no measurement of the race after so many seconds: the table then has what was measured
#   PAIRS, ROUNDS, WAYS, BATCH, SEQ as for bench/peer/race-cuda.sh; PAIRS=none leaves the race out
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${APR_GPU_TESTS:-}
if [ -z "$programs" ]; then
	make --no-print-directory gpu-binaries
	programs=bin/gpu
fi
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
if [ -f "$programs" ]; then
	mkdir "$temp/programs"
	tar -C "$temp/programs" -xJf "$programs"
	programs=$temp/programs
fi
programs=$(realpath "$programs")
out=${APR_GPU_OUT:-$temp/out}
mkdir -p "$out"
out=$(realpath "$out")
parts=${ONLY:-contracts tests families race}
for part in $parts; do
	case $part in
	contracts | tests | families | race | speed) ;;
	*)
		echo "ONLY=$ONLY: $part is no part; parts are contracts, tests, families, race and speed" >&2
		exit 2
		;;
	esac
done
asked() { [[ " $parts " == *" $1 "* ]]; }
"$programs/apr" gpu
status=0

# The checks of contracts, each on the tree as it is and under its mutants.
if asked contracts; then
	"$programs/apr" contract falsify --prebuilt "$programs/contracts" --allow-unavailable --no-progress --evidence "$out/contracts.json" || status=1
	[ "$parts" != contracts ] || exit $status
fi

# A test program runs in its package's folder, as go test has it. What fails shows in the table.
tests() { # PACKAGE, flags
	local name=${1//\//-}
	echo "testing $1"
	(cd "$1" && "$programs/$name.test" -test.v -test.timeout=8m "${@:2}") >"$out/$name.txt" 2>&1 ||
		grep -E -B3 '^ *--- FAIL|^panic|^fatal' "$out/$name.txt" || tail -n 5 "$out/$name.txt"
}
decode=
if asked tests; then
	tests device/cuda -test.skip 'Speed|Rate|Cost|FortyGiB'
	tests distill -test.run CUDA
	tests cmd/apr -test.run CUDA -test.skip CUDAPair
	decode="OverlapBits|DecodeAgrees|DecodeNaN|DecodeBandwidth|PromptAfterDecode|GenerationPlan|FloorCUDA|SlotsInTiles"
fi
if asked speed; then
	decode="${decode:+$decode|}DecodeFamilies|DecodeExperts|DeltaSpeed|FewRowSpeed|SlotSpeed"
fi
[ -z "$decode" ] || tests bench -test.run "$decode"
if asked families; then
	FAMILIES_OUT=$out/families.json tests bench/families -test.run TestDevice
fi

race() { # of the pairs and ways of the environment
	[ "${PAIRS:-}" != none ] || return 0
	LIMIT=${LIMIT:+$((LIMIT > SECONDS ? LIMIT - SECONDS : 1))} bench/peer/race-cuda.sh "$programs/apr" "$out" || {
		echo "the race broke off"
		status=1
	}
}
if asked race; then
	race
fi
goals=
if asked speed; then
	goals=-goals
	PAIRS=${PAIRS:-qwen3-8b:qwen3-0.6b llama3.1-8b:llama3.2-1b} WAYS=${WAYS:-cublas torch fp8 q4k-small} ROUNDS=${ROUNDS:-1} race
	[ -n "${PAIRS:-}" ] || PAIRS="qwen3-30b-a3b:qwen3-0.6b gpt-oss-20b:qwen3-0.6b" WAYS=q4k ROUNDS=1 race
	case " ${PAIRS:-1.5b:0.5b} " in
	*" 1.5b:0.5b "*) PAIRS=1.5b:0.5b WAYS=tf32 ROUNDS=1 race ;;
	esac
fi
echo
"$programs/gputable" $goals "$out" || status=1
exit $status
