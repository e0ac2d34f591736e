#!/bin/bash
# Runs the tests that want a GPU, races apr against PyTorch where python3 has it, and prints one table.
# usage: bench/gpu-test.sh   Ends with 1 if a row of correctness fails or the race breaks off.
#   APR_GPU_TESTS=DIR  where `make gpu-binaries` put its programs, for a machine without Go; else they are built
#   APR_GPU_OUT=DIR    keeps what was measured there (empty, or it does not exist yet)
#   PAIRS, ROUNDS, BATCH, SEQ as for bench/peer/race-cuda.sh; PAIRS=none leaves the race out
set -euo pipefail
cd "$(dirname "$0")/.."
programs=${APR_GPU_TESTS:-}
if [ -z "$programs" ]; then
	make --no-print-directory gpu-binaries
	programs=bin/gpu
fi
programs=$(realpath "$programs")
out=${APR_GPU_OUT:-$(mktemp -d)}
mkdir -p "$out"
out=$(realpath "$out")
[ -n "${APR_GPU_OUT:-}" ] || trap 'rm -rf "$out"' EXIT
"$programs/apr" gpu

# A test program runs in its package's folder, as go test has it. What fails shows in the table.
tests() { # PACKAGE, flags
	local name=${1//\//-}
	echo "testing $1"
	(cd "$1" && "$programs/$name.test" -test.v -test.timeout=8m "${@:2}") >"$out/$name.txt" 2>&1 ||
		grep -E -B3 '^ *--- FAIL|^panic|^fatal' "$out/$name.txt" || tail -n 5 "$out/$name.txt"
}
tests device/cuda -test.skip 'Speed|Rate|Cost'
tests distill -test.run CUDA
tests bench -test.run "OverlapBits|DecodeAgrees|DecodeNaN|DecodeBandwidth|PromptAfterDecode|GenerationPlan"
tests cmd/apr -test.run CUDA

status=0
if [ "${PAIRS:-}" != none ]; then
	bench/peer/race-cuda.sh "$programs/apr" "$out" || { echo "the race broke off"; status=1; }
fi
echo
"$programs/gputable" "$out" || status=1
exit $status
