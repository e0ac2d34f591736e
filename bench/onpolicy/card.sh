#!/bin/bash
# Times on-policy steps of 7B Q4_K <- 0.5B on one GPU, beside the same loop in PyTorch + transformers where python3 has them: 64
# prompts of 128 tokens x 8 texts of 512 tokens. usage, in a checkout: bench/onpolicy/card.sh PROGRAM OUT
#   PROGRAM           bench/onpolicy, built
#   TEACHERS="q4k fp8" how apr computes the teacher; each takes about 40 s
#   LAG=0,before,beside   the student's texts by its present weights, or a step ahead, before the step or beside it (0)
#   GRAPHS=false          launches a pass beside the step kernel by kernel
#   LIMIT=SECONDS     for all together (300); SIZE="flags of both programs"; PEER=no leaves PyTorch out
# Leaves onpolicy-q4k.json, onpolicy-fp8.json, onpolicy-torch.json and onpolicy.md in OUT; ends in time with what is done.
set -uo pipefail
cd "$(dirname "$0")/../.."
program=$(realpath "$1") out=$(realpath "$2")
end=$((SECONDS + ${LIMIT:-300}))
left() { echo $((end - SECONDS > 1 ? end - SECONDS : 1)); }
size=(${SIZE:---prompts 64 --samples 8 --prompt 128 --tokens 512})
for way in ${TEACHERS:-q4k fp8}; do
	timeout "$(left)" "$program" -backend "${BACKEND:-cuda}" -shape "${SHAPE:-7b:0.5b}" -teacher "$way" "${size[@]}" -rounds "${ROUNDS:-2}" -lag "${LAG:-0}" -graphs="${GRAPHS:-true}" \
		>"$out/onpolicy-$way.json" 2>"$out/onpolicy-$way.txt" || echo "$way: no result, rc $?"
	sed "s/^/$way: /" "$out/onpolicy-$way.txt" | tail -n 9
done
if [ "${PEER:-yes}" = yes ] && python3 -c 'import torch, transformers' 2>/dev/null; then
	l=$(left)
	timeout "$l" python3 bench/peer/torch_onpolicy.py --limit "$l" --shape "${SHAPE:-7b:0.5b}" "${size[@]}" >"$out/onpolicy-torch.txt" 2>"$out/onpolicy-torch.err" ||
		{ echo "torch: no result, rc $?"; tail -n 3 "$out/onpolicy-torch.err"; }
	grep '^{' "$out/onpolicy-torch.txt" | tail -n 1 >"$out/onpolicy-torch.json"
	sed 's/^/torch: /' "$out/onpolicy-torch.txt" | grep -v '{' | tail -n 4
fi
"$program" -table "$out" | tee "$out/onpolicy.md"
