#!/bin/bash
# Races apr against PyTorch at the same distillation step, both on the same two processors, one after the other, twice.
# usage: bench/peer/race-cpu.sh [APR]   (needs python3 with torch and transformers; APR defaults to bin/apr)
set -euo pipefail
cd "$(dirname "$0")/../.."
apr=${1:-bin/apr}
cpus=${CPUS:-0,1}
lscpu | grep -E 'Model name|Thread|Core|L2|L3' || true
python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)'
for round in 1 2; do
	echo "== round $round, processors $cpus"
	taskset -c "$cpus" python3 bench/peer/torch_kd_cpu.py testdata/models/gosrc 2 8 256 12 | grep RESULT
	taskset -c "$cpus" "$apr" bench examples/gosrc/student-config.json --kd testdata/models/gosrc \
		--batch-size 8 --seq-len 256 --warmup 5 --iterations 25 --json 2>/dev/null |
		python3 -c 'import json, sys; d = json.load(sys.stdin); print("RESULT apr", d["device"], "%.0f ms/step %.0f tok/s" % (d["latency_ms"]["p50"], d["tokens_per_second"]), d["step_ms"], "%.0f GFLOP/s of %.0f" % (d["gflops"], d["gemm_gflops"])); [print("   %-18s %3d calls %7.2f ms %6.1f GFLOP" % (o["op"], o["calls"], o["ms"], o["gflop"])) for o in d["operations"]]'
done
