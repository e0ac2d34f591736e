#!/bin/bash
# Runs the example with three seeds and prints the table of docs/benchmarks.md: held-out nats/token of the distilled and of the
# control student, the margin of each seed, and the spread between seeds. usage: bench/seeds.sh [APR] [SEED…]
set -euo pipefail
cd "$(dirname "$0")/.."
apr=${1:-bin/apr}
shift || true
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "| seed | distilled | control | margin | KL from teacher, distilled / control | top-1 as teacher, distilled / control | time |"
echo "|---|---|---|---|---|---|---|"
for seed in "${@:-1 2 3}"; do
	for s in $seed; do
		"$apr" distill examples/gosrc/distill.yaml --seed "$s" -o "$out/$s" --json --quiet >"$out/$s.json"
		python3 - "$out/$s.json" "$s" <<-'P'
			import json, sys
			d = json.load(open(sys.argv[1])); e = {x["name"]: x for x in d["evaluations"]}; a, b = e["distilled student"], e["control student"]
			print("| %s | %.4f | %.4f | %.4f | %.4f / %.4f | %.2f %% / %.2f %% | %.0f s |" % (sys.argv[2], a["nats_per_token"], b["nats_per_token"], b["nats_per_token"] - a["nats_per_token"], a["kl"], b["kl"], 100 * a["top1_agreement"], 100 * b["top1_agreement"], d["duration_seconds"]))
		P
	done
done
python3 - "$out" <<'P'
import glob, json, sys
rows = []
for f in glob.glob(sys.argv[1] + "/*.json"):
    e = {x["name"]: x["nats_per_token"] for x in json.load(open(f))["evaluations"]}; rows.append((e["distilled student"], e["control student"]))
a, b = zip(*rows); spread = max(max(a) - min(a), max(b) - min(b))
print("\nspread between seeds: distilled %.4f, control %.4f; worst distilled against best control: %.4f" % (max(a) - min(a), max(b) - min(b), min(b) - max(a)))
P
