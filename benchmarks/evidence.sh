#!/usr/bin/env bash
# What credit buys, on equal terms: every alignment and study of docs/evidence.md, two to three hours on two cores.
#   benchmarks/evidence.sh [rules|alignment|options|studies|ladder] ...
# Results lie in runs/evidence; what is finished there is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
runs=runs/evidence
parts="rules alignment options studies ladder"
for part in "$@"; do
  [[ " $parts " == *" $part "* ]] || { echo "evidence.sh: $part: choose of $parts" >&2; exit 2; }
done

once() { # NAME COMMAND: makes an alignment that is not there yet
  [ -e "$runs/$1/alignment.json" ] || "${@:2}" --out "$runs/$1"
}

align() { # NAME FLAGS: what each credit adds to one gradient, at a fixed policy
  once "$1" python -m prover_mini.compare --alignment --batches "$batches" --weights 1 4 8 \
    --methods prover "k2:--credit prover --continuations 2" random judge_reward "${@:2}"
}

rules() { # NAME FLAGS: the same for judges that need no language model
  once "rules-$1" python -m benchmarks.judge_rules --batches 24 --seed 5 "${@:2}"
}

options() { # NAME FLAGS: options beyond the source
  once "options-$1" python -m prover_mini.compare --alignment --batches 20 --seed 1 \
    --methods prover "rounds:--sequential 0.1" "shrunk:--shrinkage 1" "rounds_shrunk:--sequential 0.2 --shrinkage 1" \
    "${@:2}"
}

study() { # NAME SEEDS FLAGS: learning curves, in batches so small that more rollouts do help
  local name=$1 seeds=$2
  shift 2
  python -m prover_mini.compare --seeds "$seeds" --jobs 2 --groups-per-step 4 --save-every 20 --record-groups 0 \
    --out "$runs/study-$name" --methods grpo budget prover random judge_reward "w4_k2:$weight_4" "$@"
}
weight_4="--credit-weight 4 --continuations 2"

for part in ${*:-$parts}; do
  case $part in
    alignment) # the three environments, and the start at which the deciding step is rare
      batches=20
      align alfworld --env alfworld
      align alfworld-rare --env alfworld --model tiny-rare
      align webshop --env webshop
      align searchqa --env searchqa
      ;;
    rules)
      rules alfworld --env alfworld
      rules alfworld-rare --env alfworld --model tiny-rare
      rules webshop --env webshop
      rules searchqa --env searchqa
      ;;
    options)
      options alfworld --env alfworld
      options searchqa --env searchqa
      ;;
    studies)
      study alfworld-20-turns 5 "w4_k2_random:$weight_4 --judge random" "twice:--credit grpo --groups-per-step 8" \
        --env alfworld --max-turns 20 --lr 5e-4 --steps 24 --eval-every 8
      study alfworld-10-turns 8 --methods grpo "w4_k2:$weight_4" "w4_k2_random:$weight_4 --judge random" \
        "twice:--credit grpo --groups-per-step 8" --env alfworld --max-turns 10 --lr 5e-4 --steps 24 --eval-every 8
      study webshop 5 --env webshop --steps 24 --eval-every 12
      study searchqa 5 --env searchqa --steps 40 --eval-every 20
      study alfworld-rare 5 --env alfworld --model tiny-rare --lr 5e-4 --steps 24 --eval-every 8
      # what one update of the first study gains from credit, at its start and at its end
      batches=60
      align alfworld-20-turns-4-groups --env alfworld --max-turns 20 --groups-per-step 4
      batches=40
      align alfworld-20-turns-trained --checkpoint $runs/study-alfworld-20-turns/grpo-0 --methods prover \
        "k2:--credit prover --continuations 2" "k2_7:--credit prover --continuations 2 --max-successes 7" random judge_reward
      ;;
    ladder) # the same by length of an episode, and as training goes on
      batches=12
      for turns in 5 10 20; do align "alfworld-$turns-turns" --env alfworld --max-turns $turns; done
      for turns in 10 20; do
        align "alfworld-rare-$turns-turns" --env alfworld --model tiny-rare --max-turns $turns
      done
      for hops in 1 2 3; do align "searchqa-$hops-hop" --env searchqa --mix "$hops-hop:1"; done
      # the embedded policy succeeds at four hops by chance alone, so it first learns what one to three hops teach
      for trained in searchqa "alfworld --model tiny-rare"; do
        path=$runs/trained-${trained%% *}
        # shellcheck disable=SC2086 # two words
        [ -e "$path/latest" ] ||
          python train.py --env $trained --credit grpo --eval-every 100 --save-every 100 --run-dir "$path"
      done
      align searchqa-4-hop --checkpoint $runs/trained-searchqa --mix 4-hop:1
      align alfworld-rare-trained --checkpoint $runs/trained-alfworld
      ;;
  esac
done
