"""The configuration: one dataclass is the command line, `--help` and config.json.

Values are taken in this order: the field's default, the preset of (environment, tiny or real model), the command
line. The sentence behind each field is its help text.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from prover_mini import tracker
from prover_mini.errors import UserError


def option(default: Any, help: str, choices: tuple[str, ...] | str = (), section: str = "") -> Any:
    """`choices` are the values that are allowed; or "module.NAME", a dictionary whose keys they are, so that an entry
    there is all it takes to add one. `section` is the part of `--help` that begins with this field."""
    return field(default=default, metadata={"help": help, "choices": choices, "section": section})


def choices_of(f: dataclasses.Field) -> tuple[str, ...]:
    choices = f.metadata["choices"]
    if isinstance(choices, str):
        module, _, name = choices.rpartition(".")
        choices = tuple(getattr(import_module(module), name))  # only now: these modules import this one
    return choices


@dataclass
class Config:
    env: str = option("searchqa", "Environment to train on.", "envs.SUITES", section="environment")
    data: str = option("", "File or directory with the environment's tasks; empty plays the embedded ones.")
    corpus: str = option(
        "", "SearchQA: passages to search, JSONL of id and contents; empty searches the embedded corpus."
    )
    retriever_url: str = option(
        "", "SearchQA: address of a server that speaks the Search-R1 protocol, instead of a corpus."
    )
    topk: int = option(3, "SearchQA: passages returned by one search.")
    mix: str = option(
        "",
        "SearchQA, embedded questions: shares of 1-hop, 2-hop, 3-hop, 4-hop and comparison, such as "
        "'2-hop:.6,3-hop:.4'; empty is the default mix. Where a kind has too few questions, all kinds get fewer.",
    )
    admissible: bool = option(True, "WebShop, ALFWorld: observations end with the actions that are possible.")
    page_mode: str = option(
        "text", "WebShop: pages as one line of parts, or line by line with marked buttons.", ("text", "text_rich")
    )
    max_turns: int = option(30, "Turns after which an episode counts as failed.")
    max_turn_tokens: int = option(256, "Tokens the policy may sample in one turn.")
    max_observation_tokens: int = option(512, "Tokens of an observation that the policy gets to see.")
    max_context_tokens: int = option(8192, "Tokens of a whole trajectory; longer ones count as failed.")
    env_timeout: int = option(
        120, "Seconds for one step of an environment that waits for a server; beyond, its episode counts as an error."
    )

    model: str = option(
        "tiny",
        "'tiny' is the environment's embedded policy, 'tiny-rare' ALFWorld's second one, which rarely takes the "
        "pivotal step; otherwise a local directory or a hub id.",
        section="policy and rollouts",
    )
    dtype: str = option(
        "float32",
        "Type of the weights in rollouts and in the loss; the optimizer keeps them in float32.",
        ("float32", "bfloat16"),
    )
    temperature: float = option(1.0, "Sampling temperature of rollouts and continuations, also applied in the loss.")
    slots: int = option(256, "Trajectories that one rank plays at the same time.")
    state_cache_mb: int = option(
        2048, "Memory per rank for states at turn boundaries; what does not fit is recomputed."
    )

    credit: str = option("prover", "Credit method.", "prover_mini.credit.METHODS", section="credit and verification")
    credit_weight: float = option(1.0, "Lambda: weight of a verified segment's delta.")
    continuations: int = option(8, "K: continuations sampled from each of the two boundaries of a segment.")
    max_segment_turns: int = option(4, "Longest segment, in turns (the divergence judge proposes two at most).")
    max_successes: int = option(3, "Groups with 1 to this many successes are eligible for a segment.")
    judge_bonus: float = option(0.5, "judge_reward: a proposed segment earns credit_weight times this, unverified.")
    sequential: float = option(
        0.0,
        "Sample a segment's continuations in rounds, 2 + 2 first, and stop once the chance that all K would show "
        "another sign is at most this (0.1 to 0.2 are sensible); 0 samples all at once.",
    )
    shrinkage: float = option(
        0.0, "Shrink delta towards 0 by this many times its variance over delta (1 is the James-Stein form); 0 is off."
    )
    share_boundaries: bool = option(
        False, "A state that one segment ends with and another one begins with is continued from only once."
    )
    advantage_std: bool = option(False, "Divide group advantages by the group's standard deviation.")
    credit_std: bool = option(False, "Divide a segment's bonus by the group's standard deviation too.")
    budget_matched: bool = option(
        False, "grpo: spend on extra rollouts of eligible groups what ProVer's continuations would cost."
    )
    budget_run: str = option(
        "",
        "budget_matched: run directory of a ProVer run whose continuation tokens are spent step by step; "
        "empty measures them by verifying and discarding.",
    )

    judge: str = option(
        "divergence",
        "Who proposes the segment: two algorithms without a language model, the policy itself, or a model behind a "
        "server.",
        "prover_mini.judge.JUDGES",
        section="judge",
    )
    judge_url: str = option(
        "",
        "endpoint: address of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; the key is read from "
        "OPENAI_API_KEY.",
    )
    judge_model: str = option(
        "",
        "endpoint: the server's name of the model; policy: local directory of a model that judges instead of the "
        "policy's own weights.",
    )
    judge_temperature: float = option(0.7, "endpoint, policy: sampling temperature of the judge; 0 is greedy.")
    judge_tokens: int = option(4096, "endpoint, policy: tokens of one reply of the judge, its thoughts included.")
    judge_context_tokens: int = option(
        32768,
        "endpoint, policy: tokens of a whole conversation with the judge; what it is shown is shortened to fit. The "
        "policy's own weights take max_context_tokens at most.",
    )
    judge_tool_calls: int = option(
        8, "endpoint, policy: looks at the failed runs that the judge may take per proposal."
    )
    judge_timeout: float = option(
        120.0, "Seconds that a proposal may take (endpoint), or all proposals of a step together (policy)."
    )
    judge_concurrency: int = option(8, "Proposals of one rank that an endpoint or a judge_model works on at a time.")
    judge_max_failures: float = option(
        0.5, "Stop when more than this share of the judge's last 32 or so calls failed; 1 never stops."
    )

    steps: int = option(100, "Updates of the policy.", section="update")
    groups_per_step: int = option(16, "Tasks per step, over all ranks.")
    group_size: int = option(8, "G: trajectories per task.")
    minibatches: int = option(1, "Optimizer steps made from one step's trajectories; clipping acts only beyond 1.")
    micro_batch: int = option(32, "Trajectories in one forward and backward pass; does not change the result.")
    activation_checkpointing: bool = option(
        False, "Compute each layer again in the backward pass instead of keeping its activations; same result."
    )
    lr: float = option(1e-6, "Peak learning rate of AdamW.")
    lr_schedule: str = option("constant", "Learning rate after warm-up.", ("constant", "linear", "cosine"))
    warmup_steps: int = option(0, "Steps over which the learning rate rises linearly.")
    adam_beta2: float = option(0.99, "AdamW's second decay rate.")
    weight_decay: float = option(0.0, "AdamW's weight decay.")
    max_grad_norm: float = option(1.0, "Gradients are scaled down to this norm.")
    clip_low: float = option(0.2, "The ratio is clipped at 1 minus this.")
    clip_high: float = option(0.2, "The ratio is clipped at 1 plus this.")
    dual_clip: float = option(0.0, "Dual clip c for negative advantages; 0 is off.")
    loss_level: str = option(
        "token",
        "Ratio per token, per trajectory (GSPO), or per trajectory with the gradient left at each token.",
        ("token", "sequence", "sequence_token"),
    )
    aggregation: str = option(
        "token_mean", "How token losses become one number.", ("token_mean", "seq_mean_token_mean", "constant")
    )
    kl_coef: float = option(0.0, "Weight of the KL to the starting policy; at 0 no reference model is loaded.")
    kl_estimator: str = option("k3", "Estimator of that KL.", ("k1", "k2", "k3"))
    importance_cap: float = option(0.0, "Weight token losses by min(p_trainer / p_sampler, this); 0 is off.")
    invalid_penalty: float = option(0.0, "Subtracted from the credit of every turn with an invalid action.")
    max_bad_steps: int = option(
        3, "Stop after this many steps in a row with a non-finite loss or gradient, or without a sound episode."
    )

    eval_every: int = option(
        20,
        "Steps between evaluations on the test panel; the first and the last step always evaluate.",
        section="evaluation",
    )
    eval_tasks: int = option(400, "Tasks of the test panel: the first of the split in a fixed order; 0 takes all.")
    eval_temperature: float = option(1.0, "Sampling temperature of evaluations; 0 is greedy.")

    seed: int = option(0, "Every random draw of the run derives from it.", section="run and what it writes")
    run_dir: str = option("", "Where the run is written; empty takes the next free directory under runs/.")
    resume: bool = option(False, "Continue the run in run_dir from its latest checkpoint.")
    save_every: int = option(20, "Steps between checkpoints; the last step always saves.")
    keep_checkpoints: int = option(
        2, "Newest checkpoints that are kept, besides the one after the best training steps."
    )
    record_groups: int = option(
        4, "Groups per step whose rollouts are recorded token by token, for the report; those with a segment first."
    )
    tracker: str = option(
        "", "Also send the metrics to these, comma-separated, when installed: tensorboard, trackio, wandb."
    )

    device: str = option(
        "",
        "Torch device; empty takes the local rank's GPU where there is one, else the CPU.",
        section="devices and ranks",
    )
    parallel: str = option(
        "auto",
        "How ranks share the training state: each holds all of it, or a shard (FSDP2); auto shards it when all of it "
        "would fill a quarter of the device's memory.",
        ("auto", "replicate", "shard"),
    )
    rank_timeout: int = option(1800, "Seconds that a rank waits for another one before it takes it for lost.")
    plan: bool = option(
        False, "Print memory per GPU, slots that fit and least times of a step on known cards; train nothing."
    )
    gpus: int = option(0, "GPUs that --plan plans for; 0 takes as many as torchrun started, or 8 without torchrun.")

    @property
    def embedded(self) -> bool:
        """Whether the model is one of the embedded policies."""
        return self.model in ("tiny", "tiny-rare")

    def validate(self) -> None:
        """Raises UserError for the first field whose value cannot be run."""
        for f in dataclasses.fields(self):
            choices = choices_of(f)
            if choices and getattr(self, f.name) not in choices:
                raise UserError(f"--{dashed(f.name)} {getattr(self, f.name)!r}: choose one of {', '.join(choices)}")
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"--{dashed(name)} {value}: must be a finite number")
        for name, least in MINIMA.items():
            if getattr(self, name) < least:
                raise UserError(f"--{dashed(name)} {getattr(self, name)}: must be at least {least}")
        if self.embedded and (self.env, False) in PRESETS and (self.env, self.model) not in EMBEDDED:
            raise UserError(f"--env {self.env}: has no embedded policy {self.model}; name a directory or hub id")
        if self.embedded and (self.page_mode != "text" or self.admissible and self.env in ("alfworld", "webshop")):
            raise UserError(
                f"--model {self.model}: the embedded policy reads pages in --page-mode text, with --admissible false"
            )
        if self.budget_matched and self.credit != "grpo":
            raise UserError(
                "--budget-matched spends ProVer's continuations on plain rollouts: use it with --credit grpo"
            )
        if self.budget_run and not self.budget_matched:
            raise UserError(f"--budget-run {self.budget_run}: says how much --budget-matched spends; add that")
        if self.judge == "endpoint" and not (self.judge_url and self.judge_model):
            raise UserError(
                "--judge endpoint needs --judge-url and --judge-model: which server, and which of its models"
            )
        if self.judge_url and self.judge != "endpoint":
            raise UserError(f"--judge-url {self.judge_url}: is asked by --judge endpoint only; add that")
        if self.judge_model and self.judge not in ("endpoint", "policy"):
            raise UserError(f"--judge-model {self.judge_model}: is used by --judge endpoint and policy only")
        if self.judge_context_tokens <= self.judge_tokens and self.judge == "endpoint":
            raise UserError(
                f"--judge-context-tokens {self.judge_context_tokens}: must be above --judge-tokens {self.judge_tokens}"
            )
        if self.judge_max_failures > 1:
            raise UserError(f"--judge-max-failures {self.judge_max_failures}: is a share, at most 1")
        if 0 < self.dual_clip <= 1:
            raise UserError(f"--dual-clip {self.dual_clip}: must be above 1, or 0 for none")
        if self.sequential >= 0.5:
            raise UserError(f"--sequential {self.sequential}: must be below 0.5, where no sign is ever open")
        if self.adam_beta2 >= 1:
            raise UserError(f"--adam-beta2 {self.adam_beta2}: must be below 1")
        tracker.names_of(self.tracker)


MINIMA = {
    "group_size": 2, "continuations": 1, "groups_per_step": 1, "steps": 1, "max_turns": 1, "max_turn_tokens": 1,
    "max_observation_tokens": 1, "max_segment_turns": 1, "max_successes": 1, "minibatches": 1, "micro_batch": 1,
    "slots": 1, "topk": 1, "eval_every": 1, "save_every": 1, "keep_checkpoints": 1, "max_bad_steps": 1,
    "rank_timeout": 1, "env_timeout": 1, "gpus": 0,
    "credit_weight": 0, "kl_coef": 0, "lr": 0, "eval_temperature": 0, "eval_tasks": 0, "state_cache_mb": 0,
    "max_context_tokens": 1, "warmup_steps": 0, "adam_beta2": 0, "weight_decay": 0, "clip_low": 0, "clip_high": 0,
    "judge_temperature": 0, "judge_tokens": 1, "judge_context_tokens": 1, "judge_tool_calls": 0, "judge_timeout": 0.01,
    "judge_concurrency": 1, "judge_max_failures": 0, "record_groups": 0, "dual_clip": 0, "importance_cap": 0,
    "invalid_penalty": 0, "temperature": 0.01, "max_grad_norm": 1e-6, "sequential": 0, "shrinkage": 0,
}  # fmt: skip

EMBEDDED = {("searchqa", "tiny"), ("alfworld", "tiny"), ("alfworld", "tiny-rare"), ("webshop", "tiny")}

# The embedded policies are small enough to learn within minutes on two CPU cores; real models follow the literature.
PRESETS: dict[tuple[str, bool], dict[str, Any]] = {
    ("searchqa", True): {
        "steps": 80, "lr": 1e-4, "max_turns": 6, "max_turn_tokens": 16, "max_observation_tokens": 64,
        "max_context_tokens": 384,
    },
    ("searchqa", False): {"max_turns": 30, "activation_checkpointing": True},
    ("webshop", True): {
        "steps": 40, "lr": 2e-4, "max_turns": 10, "max_turn_tokens": 16, "max_observation_tokens": 128,
        "max_context_tokens": 640, "admissible": False,
    },
    ("webshop", False): {
        "max_turns": 15, "max_observation_tokens": 2048, "max_context_tokens": 32768, "activation_checkpointing": True,
    },
    ("alfworld", True): {
        "steps": 60, "lr": 2e-4, "max_turns": 16, "max_turn_tokens": 8, "max_observation_tokens": 64,
        "max_context_tokens": 384, "admissible": False,
    },
    ("alfworld", False): {
        "max_turns": 50, "max_observation_tokens": 1024, "max_context_tokens": 32768, "activation_checkpointing": True,
    },
}  # fmt: skip


def dashed(name: str) -> str:
    return name.replace("_", "-")


def parse_bool(text: str) -> bool:
    if text.lower() in ("true", "1", "yes", "on"):
        return True
    if text.lower() in ("false", "0", "no", "off"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is not true or false")


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UserError(f"{message} (see --help)")


def preset(arguments: list[str]) -> Config:
    """The configuration before the command line's own values: the fields' defaults, then the preset of its environment
    and model."""
    parser = Parser(add_help=False, allow_abbrev=False)
    for name in ("env", "model"):
        parser.add_argument(f"--{name}", default=getattr(Config, name))
    config = Config(**vars(parser.parse_known_args(arguments)[0]))
    return dataclasses.replace(config, **PRESETS.get((config.env, config.embedded), {}))


def parse(arguments: list[str] | None = None) -> tuple[Config, dict[str, Any]]:
    """The configuration of a command line, and the fields that were given on it.

    Fields are accepted with underscores and hyphens. Raises UserError for an unknown or malformed field.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    usual = preset(arguments)
    parser = Parser(
        description="Train an LLM agent with GRPO and ProVer. Underscores do as well as hyphens. The defaults are "
        f"those of --env {usual.env} --model {usual.model}; with another environment or model, --help shows theirs.",
        usage="%(prog)s [--field VALUE ...]",
        allow_abbrev=False,
    )
    types = get_type_hints(Config)
    for f in dataclasses.fields(Config):
        value = getattr(usual, f.name)
        default = f"default: {value!r}" if value != "" else "default: empty"
        choices = f" One of {', '.join(choices_of(f))}." if choices_of(f) else ""
        kind = {"type": parse_bool, "nargs": "?", "const": True} if types[f.name] is bool else {"type": types[f.name]}
        help = f"{f.metadata['help']}{choices} ({default})".replace("%", "%%")
        kind |= {"dest": f.name, "default": argparse.SUPPRESS, "metavar": "X"}
        if f.metadata["section"]:
            section = parser.add_argument_group(f.metadata["section"])
        section.add_argument(f"--{dashed(f.name)}", help=help, **kind)
        if "_" in f.name:
            section.add_argument(f"--{f.name}", help=argparse.SUPPRESS, **kind)
    given = vars(parser.parse_args(arguments))
    config = dataclasses.replace(usual, **given)
    config.validate()
    return config, given


def dumps(config: Config) -> str:
    return json.dumps(dataclasses.asdict(config), indent=2) + "\n"


def load(path: Path) -> Config:
    """The configuration of a run; fields that are not ours any more, or not of their type, raise UserError."""
    try:
        config = Config(**json.loads(path.read_text()))
        for name, kind in get_type_hints(Config).items():
            if not isinstance(getattr(config, name), (int, float) if kind is float else kind):
                raise TypeError(f"{name} is no {kind.__name__}")
        return config
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path}: not a configuration of this version ({error})") from None
