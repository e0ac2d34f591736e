#!/bin/bash
# Runs the tests that want a GPU and the checks of contracts that do, races apr against PyTorch where python3 has it, and
# prints one table. usage: bench/gpu-test.sh   Ends with 1 if a row of correctness or a check fails or the race breaks off.
#   APR_GPU_TESTS=DIR  where `make gpu-binaries` put its programs, or its archive, for a machine without Go; else they are built
#   APR_GPU_OUT=DIR    keeps what was measured there (empty, or it does not exist yet); contracts.json is for make trust
#   ONLY=contracts     nothing but the checks of contracts
#   PAIRS, ROUNDS, BATCH, SEQ as for bench/peer/race-cuda.sh; PAIRS=none leaves the race out
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
"$programs/apr" gpu
status=0

# The checks of contracts, each on the tree as it is and under its mutants.
"$programs/apr" contract falsify --prebuilt "$programs/contracts" --allow-unavailable --no-progress --evidence "$out/contracts.json" || status=1
[ "${ONLY:-}" != contracts ] || exit $status

# A test program runs in its package's folder, as go test has it. What fails shows in the table.
tests() { # PACKAGE, flags
	local name=${1//\//-}
	echo "testing $1"
	(cd "$1" && "$programs/$name.test" -test.v -test.timeout=8m "${@:2}") >"$out/$name.txt" 2>&1 ||
		grep -E -B3 '^ *--- FAIL|^panic|^fatal' "$out/$name.txt" || tail -n 5 "$out/$name.txt"
}
tests device/cuda -test.skip 'Speed|Rate|Cost|FortyGiB'
tests distill -test.run CUDA
tests bench -test.run "OverlapBits|DecodeAgrees|DecodeNaN|DecodeBandwidth|PromptAfterDecode|GenerationPlan"
FAMILIES_OUT=$out/families.json tests bench/families -test.run TestDevice
tests cmd/apr -test.run CUDA -test.skip CUDAPair

if [ "${PAIRS:-}" != none ]; then
	bench/peer/race-cuda.sh "$programs/apr" "$out" || { echo "the race broke off"; status=1; }
fi
echo
"$programs/gputable" "$out" || status=1
exit $status
