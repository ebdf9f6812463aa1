#!/usr/bin/env bash
# WebShop on two CPU cores, minutes: the embedded policy in the embedded shop of 1,200 generated products.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1

# A success is the full reward 1; the finer score of the original is in the run's records.
torchrun --standalone --nproc-per-node 2 train.py --env webshop "$@"
