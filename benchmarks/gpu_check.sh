#!/usr/bin/env bash
# Checks and profiles the kernels and the engine, its CUDA graphs included, on a machine with a GPU, in at most 8
# minutes:
#
#     bash benchmarks/gpu_check.sh            PYTHON=/path/to/python chooses the interpreter
#
# Needs torch >= 2.11, triton >= 3.6 and transformers >= 5.17. Tables are written to benchmarks/results/.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
failed=0

step() {  # step SECONDS NAME COMMAND...
    echo "== $2"
    timeout "$1" "${@:3}" || { echo "FAILED: $2 (exit $?)"; failed=1; }
}

$python - <<'EOF' || exit 2
import sys, torch, transformers, triton
if not torch.cuda.is_available():
    sys.exit("no GPU is visible to torch: nothing to check")
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, transformers {transformers.__version__}")
EOF

step 100 "kernels against float64" $python -m benchmarks.gpu_correctness
if command -v compute-sanitizer > /dev/null; then
    step 80 "memory accesses of all kernels" compute-sanitizer --error-exitcode 1 $python -m benchmarks.gpu_correctness --small
else
    echo "== compute-sanitizer is not installed: memory accesses not checked"
fi
step 190 "profile" $python -m benchmarks.kernels --skip-compile
step 100 "engine" $python -m benchmarks.gpu_engine
exit $failed
