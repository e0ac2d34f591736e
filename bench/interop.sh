#!/bin/bash
# Rewrites the tables of docs/interop.md between their marks. LLAMA is a command that starts llama.cpp's programs by name
# (LLAMA completion …); without it the rows of llama.cpp are left out, the document says so, and the table of families stays.
# With FIXTURES=1 the files of testdata/gguf are made anew too.
# usage: [LLAMA=COMMAND] [CHUNKS=40] [FIXTURES=1] bench/interop.sh
set -euo pipefail
cd "$(dirname "$0")/.."
doc=docs/interop.md
new=$(mktemp)
trap 'rm -f "$new" "$new.doc"' EXIT

# replace MARK: puts standard input between the marks of that name
replace() {
	cat > "$new"
	awk -v tables="$new" -v begin="<!-- $1 begin -->" -v end="<!-- $1 end -->" '
		$0 == begin { print; print ""; while ((getline line < tables) > 0) print line; print ""; skip = 1 }
		$0 == end { skip = 0 }
		!skip && $0 != begin { print }' "$doc" > "$new.doc"
	cp "$new.doc" "$doc"
}

export CGO_ENABLED=0
interop() { go run ./bench/interop -llama-cpp "${LLAMA:-}" "$@"; }
interop -chunks "${CHUNKS:-40}" testdata/models/gosrc examples/gosrc/data/gosrc-val.jsonl.zst | replace tables
if [ -n "${LLAMA:-}" ]; then
	interop -families | replace families
	if [ -n "${FIXTURES:-}" ]; then interop -fixtures testdata/gguf; fi
fi
git --no-pager diff --stat -- "$doc"
