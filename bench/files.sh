#!/bin/bash
# Measures model files: 15 GB of zeros (sparse) listed, converted and quantised; a copy of 4 GB against dd; Q4_K against
# llama.cpp's quantizer, one core each. Needs GNU time and about 20 GB of disk; WHAT is one or more of list, stream, copy,
# quantize. LLAMA is a command that starts llama.cpp's programs by name.
# usage: [LLAMA=COMMAND] [DIR=/tmp/apr-files] [ROUNDS=3] bench/files.sh WHAT…
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${DIR:-/tmp/apr-files} rounds=${ROUNDS:-3}
mkdir -p "$dir"
export CGO_ENABLED=0
go build -o "$dir/apr" ./cmd/apr
go build -o "$dir/synth" ./bench/synth
tokenizer=$PWD/testdata/models/gosrc
cd "$dir"
timed() { # LABEL COMMAND…
	local label=$1; shift
	/usr/bin/time -f "$label: %e s, user %U s, sys %S s, peak %M KB" "$@" 2>&1 >/dev/null | tail -1
}
for what in "$@"; do
	case $what in
	list)
		for f in zero.gguf zero.apr zero-hf; do
			[ -e $f ] || ./synth -shape 7b -zero -tokens 151643 -tokenizer "$tokenizer" -o $f
			for c in tensors inspect; do timed "$c $f" ./apr $c $f --json; done
		done ;;
	stream)
		[ -e zero-hf ] || ./synth -shape 7b -zero -tokenizer "$tokenizer" -o zero-hf
		timed "convert 15 GB to GGUF" ./apr convert zero-hf -o out.gguf --no-progress; rm -f out.gguf
		timed "quantise 15 GB" ./apr quantize zero-hf -s q4_k_m -o out.apr --no-progress; rm -f out.apr ;;
	copy)
		./synth -shape 7b -layers 4 -tokenizer "$tokenizer" -o four
		sync; cat four/model.safetensors > /dev/null
		for _ in $(seq "$rounds"); do
			timed "dd" dd if=four/model.safetensors of=out.dd bs=1M conv=fsync; rm -f out.dd; sync
			timed "apr convert to .apr" ./apr convert four -o out.apr --no-progress; rm -f out.apr; sync
			timed "apr convert to a folder" ./apr convert four -o out --no-progress; rm -rf out; sync
		done; rm -rf four ;;
	quantize)
		./synth -shape 1.5b -layers 1 -tokenizer "$tokenizer" -o race.gguf
		for _ in $(seq "$rounds"); do
			timed "llama.cpp Q4_K" taskset -c 0 ${LLAMA:?} quantize --pure race.gguf out.gguf Q4_K_S 1; rm -f out.gguf
			timed "apr q4k" taskset -c 0 ./apr convert race.gguf -o out.gguf --quantize q4k --no-progress; rm -f out.gguf
		done; rm -f race.gguf ;;
	*) echo "unknown: $what" >&2; exit 2 ;;
	esac
done
