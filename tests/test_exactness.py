"""What the engine records against transformers' recomputation, as a trainer uses it: whole rollouts with refilled
slots, and forks at every turn boundary. `pytest -s tests/test_exactness.py` prints the largest differences."""

import pytest
import torch

from envs import load_suite
from prover_mini.chat import Chat
from prover_mini.config import parse
from prover_mini.engine import Engine, self_check
from prover_mini.model import load_policy, policy_path
from prover_mini.rollout import Player
from prover_mini.trajectory import OFF_POLICY, Trajectory
from tests.tiny_models import build


@torch.no_grad()
def largest_difference(model, trajectories: list[Trajectory], temperature: float) -> tuple[float, int]:
    """Over all sampled tokens, |recorded log-prob - log-prob by one plain forward of each trajectory|; their number."""
    largest, tokens = 0.0, 0
    for t in trajectories:
        logits = model(torch.tensor([t.ids]), use_cache=False).logits[0, :-1].float() / temperature
        expected = logits.log_softmax(-1).gather(1, torch.tensor(t.ids[1:])[:, None])[:, 0]
        sampled = torch.tensor(t.turn_ids[1:]) != OFF_POLICY
        difference = (torch.tensor(t.logprobs[1:]) - expected).abs()[sampled]
        largest, tokens = max(largest, difference.max().item()), tokens + int(sampled.sum())
    return largest, tokens


@pytest.mark.parametrize("name, tolerance", [("hybrid", 1e-5), ("qwen3", 1e-5), ("qwen2", 1e-5), ("tiny", 1e-3)])
def test_recorded_logprobs_and_forks_at_every_turn(name, tolerance):
    config, _ = parse(["--continuations", "2", "--slots", "24", "--max-turns", "4", "--temperature", "0.9"])
    policy, tokenizer = load_policy(policy_path(config), "float32", torch.device("cpu"))
    model = policy if name == "tiny" else build(name, vocab_size=len(tokenizer))
    suite = load_suite("searchqa", config)
    engine = Engine(model, config.slots, config.max_context_tokens)
    self_check(engine)
    player = Player(engine, Chat(tokenizer, suite.instructions, config.max_observation_tokens), suite, config)
    tasks = list(enumerate(suite.tasks("train")[:8]))
    rollouts = [t for g in player.rollouts(tasks, 1, [4] * 8) for t in g.trajectories]
    forked = rollouts[::4]
    boundaries = [(t, n, "x") for t in forked for n in range(len(t.turns))]
    branches = [t for branch in player.continuations(boundaries, range(2)) for t in branch]
    assert len(branches) == 2 * len(boundaries) >= 2 * 8
    for what, trajectories in (("rollouts", rollouts), ("forks", branches)):
        difference, tokens = largest_difference(model, trajectories, config.temperature)
        print(f"\n{name:7} {what:9} largest log-prob difference {difference:.1e} over {tokens} tokens", end="")
        assert difference <= tolerance
