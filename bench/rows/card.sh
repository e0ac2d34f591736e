#!/bin/bash
# Passes of few rows on one GPU of compute capability 9.0: products with matrices in tiles against those of the
# expanded matrix; then passes of 1 … 64 positions of a random 7B in Q4_K_M and the first token of a prompt of 64. The machine needs no Go.
# About 2 minutes. Leaves rows.md and the tests' output in OUT; ends with 1 if products are not right (a missed goal is a row).
# usage, in a checkout:
#   for p in device/cuda bench; do go test -c -tags gpu -o bin/rows/${p//\//-}.test ./$p; done
#   TESTS=bin/rows OUT=folder LIMIT=400 bench/rows/card.sh
set -u
cd "$(dirname "$0")/../.."
TESTS=$(realpath "${TESTS:-bin/rows}") OUT=${OUT:-/tmp/apr-rows} LIMIT=${LIMIT:-400}
mkdir -p "$OUT"
OUT=$(realpath "$OUT") end=$((SECONDS + LIMIT)) status=0

# run NAME PACKAGE TEST runs a test in its package's folder; its output becomes OUT/rows-NAME.txt.
run() {
	local left=$((end - SECONDS)) begun=$SECONDS
	if [ "$left" -lt 20 ]; then
		echo "$1: no time left" | tee -a "$OUT/rows.md"
		return 1
	fi
	(cd "$2" && timeout -k 3 "$left" "$TESTS/${2//\//-}.test" -test.v -test.run "$3") >"$OUT/rows-$1.txt" 2>&1
	local rc=$?
	echo "$1: $((SECONDS - begun)) s, exit $rc"
	return $rc
}

: >"$OUT/rows.md"
run products device/cuda '^TestTilesSpeed$' || status=1
{
	echo "Products with tiles:"
	grep -oE '[0-9]+×.*' "$OUT/rows-products.txt"
} >>"$OUT/rows.md"
run passes bench '^TestFewRowSpeed$' || status=1
{
	echo "Passes of 7B in Q4_K_M:"
	grep -oE '(a pass of +[0-9]+ positions .*|[0-9]+ positions: [0-9]+ graphs.*|to the first token .*|[a-z ]+of a (pass|prompt) of 64.*)' "$OUT/rows-passes.txt"
} >>"$OUT/rows.md"
cat "$OUT/rows.md"
exit $status
