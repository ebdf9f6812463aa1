#!/usr/bin/env bash
# SearchQA on two CPU cores, about two minutes: the embedded policy, world and questions; `make train` does the same.
# Flags that are added here win over those of the preset, for example:   scripts/cpu_searchqa.sh --credit grpo
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

# One rank per core: the models are so small that more threads per rank would wait for each other.
torchrun --standalone --nproc-per-node 2 train.py --env searchqa "$@"
