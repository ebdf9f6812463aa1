#!/usr/bin/env bash
# What credit buys, on equal terms: every alignment and study of docs/evidence.md, two to three hours on two cores.
#   benchmarks/evidence.sh [rules|alignment|studies|ladder] ...     results in runs/evidence; finished cells are skipped
set -euo pipefail
cd "$(dirname "$0")/.."
export OMP_NUM_THREADS=1
runs=runs/evidence

align() { # NAME FLAGS: what each credit adds to one gradient, at a fixed policy
  local name=$1
  shift
  [ -e "$runs/$name/alignment.json" ] || python -m prover_mini.compare --alignment --batches "$batches" \
    --weights 1 4 8 --methods prover k2:--continuations=2 random judge_reward --out "$runs/$name" "$@"
}

rules() { # NAME FLAGS: the same for judges that need no language model
  local name=$1
  shift
  [ -e "$runs/rules-$name/alignment.json" ] || python -m benchmarks.judge_rules --batches 24 --seed 5 \
    --out "$runs/rules-$name" "$@"
}

study() { # NAME [MORE METHODS] FLAGS: learning curves of five seeds; small batches, where more rollouts do help
  local name=$1
  shift
  python -m prover_mini.compare --seeds 5 --jobs 2 --groups-per-step 4 --eval-every 10 --save-every 20 \
    --record-groups 0 --out "$runs/study-$name" --methods grpo budget prover random judge_reward "$weight_4" "$@"
}
weight_4="w4_k4:--credit-weight 4 --continuations 4"

for part in ${*:-rules alignment studies ladder}; do
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
    studies)
      study alfworld-rare "w4_k4_random:--credit-weight 4 --continuations 4 --judge random" \
        "twice:--credit grpo --groups-per-step 8" --env alfworld --model tiny-rare --steps 60
      study webshop --env webshop --steps 40
      study searchqa --env searchqa --steps 60
      ;;
    ladder) # the same by length of an episode, and as training goes on
      batches=12
      for turns in 5 10 20; do align "alfworld-$turns-turns" --env alfworld --max-turns $turns; done
      for turns in 10 20; do align "alfworld-rare-$turns-turns" --env alfworld --model tiny-rare --max-turns $turns; done
      for hops in 1 2 3; do align "searchqa-$hops-hop" --env searchqa --mix "$hops-hop:1"; done
      # the embedded policy succeeds at four hops by chance alone, so it first learns what one to three hops teach
      trained=$runs/searchqa-trained
      [ -e $trained/latest ] || python train.py --env searchqa --credit grpo --eval-every 80 --run-dir $trained
      align searchqa-4-hop --checkpoint $trained --mix 4-hop:1
      align alfworld-rare-trained --checkpoint "$runs/study-alfworld-rare/w4_k4-0"
      ;;
    *)
      echo "evidence.sh: $part: choose of rules, alignment, studies, ladder" >&2
      exit 2
      ;;
  esac
done
