#!/bin/bash
# Rewrites the tables of docs/interop.md between its marks. LLAMA is a command that starts llama.cpp's programs by name
# (LLAMA completion …); without it the rows of llama.cpp are left out, and the document says so.
# usage: [LLAMA=COMMAND] [CHUNKS=40] bench/interop.sh
set -euo pipefail
cd "$(dirname "$0")/.."
doc=docs/interop.md
tables=$(mktemp)
trap 'rm -f "$tables" "$tables.new"' EXIT
CGO_ENABLED=0 go run ./bench/interop -llama-cpp "${LLAMA:-}" -chunks "${CHUNKS:-40}" \
	testdata/models/gosrc examples/gosrc/data/gosrc-val.jsonl.zst > "$tables"
awk -v tables="$tables" '
	/^<!-- tables begin -->$/ { print; print ""; while ((getline line < tables) > 0) print line; print ""; skip = 1 }
	/^<!-- tables end -->$/ { skip = 0 }
	!skip && !/^<!-- tables begin -->$/ { print }' "$doc" > "$tables.new"
cp "$tables.new" "$doc"
git --no-pager diff --stat -- "$doc"
