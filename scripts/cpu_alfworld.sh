#!/usr/bin/env bash
# ALFWorld on two CPU cores, minutes: the embedded policy in the small rooms of the embedded games.
# Another start, which rarely takes the pivotal step:   scripts/cpu_alfworld.sh --model tiny-rare
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

# Admissible commands are not listed (the preset): the embedded policy learned without, and contexts stay short.
torchrun --standalone --nproc-per-node 2 train.py --env alfworld "$@"
