#!/usr/bin/env bash
# ALFWorld with Qwen3.5-4B on one node of 8 GPUs: 100 updates of 16 groups of 8, at most 50 turns, as in the paper.
#   scripts/node_qwen35_4b_alfworld.sh json_2.1.1
# Print what fits before it starts:   add --plan
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
games=$1
shift 1

# The panel is all 134 games in unseen rooms (0 takes all). Fifty turns with their thoughts need a long context; a
# segment is still at most 4 turns, the judge has to name the moment and not the whole plan.
# The KL term stays off: it would load a second model.
torchrun --standalone --nproc-per-node 8 train.py --env alfworld --model Qwen/Qwen3.5-4B --dtype bfloat16 \
    --data "$games" --max-turns 50 --max-context-tokens 32768 \
    --steps 100 --groups-per-step 16 --group-size 8 --continuations 8 --credit-weight 1 --max-segment-turns 4 \
    --lr 1e-6 --clip-low 0.2 --clip-high 0.2 --kl-coef 0 \
    --eval-tasks 0 --eval-every 20 --save-every 10 "$@"
