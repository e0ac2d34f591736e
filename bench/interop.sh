#!/bin/bash
# Rewrites the tables of docs/interop.md between their marks: "tables" of one model, "families" of random models; "fixtures"
# are the files of testdata/gguf. LLAMA is a command that starts llama.cpp's programs by name (LLAMA completion …);
# without it the rows of llama.cpp are left out of the tables, the document says so, and the other two are not possible.
# usage: [LLAMA=COMMAND] [CHUNKS=40] bench/interop.sh [tables|families|fixtures]…    (without a word: tables families)
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
[ $# -gt 0 ] || set -- tables ${LLAMA:+families}
for part in "$@"; do
	case $part in
	tables) interop -chunks "${CHUNKS:-40}" testdata/models/gosrc examples/gosrc/data/gosrc-val.jsonl.zst | replace tables ;;
	families) interop -families | replace families ;;
	fixtures) interop -fixtures testdata/gguf ;;
	*) echo "interop.sh: $part is none of tables, families, fixtures" >&2; exit 2 ;;
	esac
done
git --no-pager diff --stat -- "$doc"
