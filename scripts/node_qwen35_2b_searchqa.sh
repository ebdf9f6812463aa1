#!/usr/bin/env bash
# SearchQA with Qwen3.5-2B on one node of 8 GPUs: 100 updates of 16 groups of 8, at most 30 turns, as in the paper.
#   scripts/node_qwen35_2b_searchqa.sh nq_hotpot.jsonl wiki-18.jsonl
# Print what fits before it starts:   add --plan
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
questions=$1 passages=$2
shift 2

# Two groups per GPU. A search server in place of the passages: --retriever-url http://HOST:8000/retrieve
# Learning rate, clipping and KL are not known from the paper; these are what comparable trainers use.
# 400 test questions, as in the paper, every one once; sampled as in training, so that before and after compare.
torchrun --standalone --nproc-per-node 8 train.py --env searchqa --model Qwen/Qwen3.5-2B --dtype bfloat16 \
    --data "$questions" --corpus "$passages" --topk 3 --max-turns 30 \
    --steps 100 --groups-per-step 16 --group-size 8 --continuations 8 --credit-weight 1 --max-segment-turns 4 \
    --lr 1e-6 --clip-low 0.2 --clip-high 0.2 --kl-coef 0 \
    --eval-tasks 400 --eval-every 20 --save-every 10 "$@"
