"""Policy losses and importance weights against verl, verl-agent and TRL.

Where they differ, arguments of `grpo_loss` say which definition is meant: verl clamps the log ratio to +-20 (GSPO: at
most 10) and k3 to 10, the others clamp nothing; TRL differentiates GSPO through the mean, verl per token; TRL's delta
is a dual clip. TRL's clip shares at the sequence level are means over rows and are not compared.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from kernels import grpo_loss
from prover_mini.importance import importance_weight
from tests.replay.report import Report, Tolerance

OPEN = (-math.inf, math.inf)
AGGREGATION = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "seq_mean_token_mean",
    "seq-mean-token-sum": "constant",
    "seq-mean-token-sum-norm": "constant",
}


def replay(data: Any, arrays: dict[str, np.ndarray], report: Report, fused: bool) -> None:
    batches = {batch["id"]: batch for batch in data["batches"]}
    for case in data["cases"]:
        batch = batches[case["batch"]]
        inputs = {k.split("/")[1]: v for k, v in arrays.items() if k.startswith(batch["id"] + "/")}
        reason, options = translate(case, inputs)
        if reason:
            left_out = report.not_built if reason.startswith("not: ") else report.other_definition
            left_out[reason.removeprefix("not: ")] += 1
            continue
        inputs["expected_grad"] = arrays[f"{case['id']}/grad"]
        values = compare(case, inputs, options, torch.float32 if fused else torch.float64)
        if values is None:
            report.other_definition["verl-agent's mean over rows is NaN when a row has no policy token"] += 1
            continue
        wild = batch["kind"] in ("wild", "huge")
        tolerance = Tolerance(1e-3 if wild else 1e-4, 1e-5 if wild else 1e-6) if fused else Tolerance()
        if fused:
            # what float64 still holds may be infinite in float32
            values = {label: (got, np.asarray(expected, dtype=np.float32)) for label, (got, expected) in values.items()}
        report.case(f"{case['id']} {case['source']} {case['fn']} {batch['kind']}", values, tolerance)


def translate(case: dict, inputs: dict[str, np.ndarray]) -> tuple[str, dict]:
    """(why it is left out or "", the arguments of `grpo_loss` that express the case)."""
    config, mask = case["config"], inputs["mask"]
    if case["fn"] == "cispo" or config.get("loss_type") == "cispo":
        return "not: CISPO", {}
    if case["source"] == "trl":
        return _translate_trl(config, mask)
    if config.get("kl") == "abs":
        return "not: KL estimator abs", {}
    if not (config.get("kl") or "k1").isalnum():
        return f"not: KL estimator {config['kl']}", {}
    aggregation = "seq-mean-token-mean" if case["fn"] == "gspo" else config["agg"]
    options = {
        "aggregation": AGGREGATION[aggregation],
        "denominator": _verl_denominator(aggregation, config, mask, case["source"] == "verl-agent"),
        "advantage": "advantages",
        "weighted": config.get("use_is_weights", False),
        "clip_low": config.get("clip_low", 0.2),
        "clip_high": config.get("clip_high", 0.2),
        "dual_clip": config.get("clip_c"),
        "kl": config.get("kl") or "k3",
        "kl_coef": config.get("kl_coef", 0.0),
    }
    if case["source"] == "verl-agent":
        options["log_ratio_range"] = OPEN
    if case["fn"] == "gspo":
        options |= {"level": "sequence_token", "dual_clip": None, "log_ratio_range": (-math.inf, 10.0)}
    if case["fn"] == "kl_penalty":
        options |= {"advantage": None, "kl_coef": 1.0}
    return "", options


def _translate_trl(config: dict, mask: np.ndarray) -> tuple[str, dict]:
    delta, rows = config.get("delta"), len(mask)
    if delta is not None and delta < 1 + config["epsilon_high"]:
        return "TRL's delta below the upper clip also caps positive advantages", {}
    if config.get("use_bias_correction_kl"):
        return "not: KL weighted by the ratio", {}
    denominators = {
        "grpo": rows,
        "bnpo": max(mask.sum(), 1),
        "dr_grpo": rows * config["max_completion_length"],
        "dapo": config["num_items_in_batch"],
    }
    kind = config["loss_type"]
    if kind not in denominators:
        return f"not: TRL loss type {kind}", {}
    return "", {
        "aggregation": "seq_mean_token_mean" if kind == "grpo" else "token_mean",
        "denominator": denominators[kind],
        "advantage": "row_adv" if config["adv_shape"] == "B" else "advantages",
        "weighted": config.get("use_is", False),
        "clip_low": config["epsilon_low"],
        "clip_high": config["epsilon_high"],
        "dual_clip": delta,
        "level": config["importance_sampling_level"],
        "log_ratio_range": OPEN,
        "kl_coef": config.get("beta", 0.0),
        "kl_max": math.inf,
    }


def _verl_denominator(aggregation: str, config: dict, mask: np.ndarray, all_rows: bool) -> float:
    scale = config.get("dp_size") or 1
    if aggregation == "token-mean":
        return (config.get("batch_num_tokens") or mask.sum()) / scale
    if aggregation == "seq-mean-token-sum-norm":
        return config.get("loss_scale_factor") or mask.shape[1]
    rows = len(mask) if all_rows else (mask.sum(1) > 0).sum()
    return (config.get("global_batch_size") or rows) / scale


def compare(case: dict, inputs: dict[str, np.ndarray], options: dict, dtype: torch.dtype) -> dict | None:
    """(got, expected) of loss, gradient and statistics; None where the expected loss is NaN by definition."""
    mask = inputs["mask"] > 0
    expected_loss, nothing = float(case["loss"]), not mask.any()
    if math.isnan(expected_loss) and not nothing:
        return None

    def packed(name: str) -> torch.Tensor:
        values = inputs[name]
        values = np.broadcast_to(values[:, None], mask.shape) if values.ndim == 1 else values
        return torch.tensor(values.reshape(-1), dtype=dtype)

    options = dict(options)
    advantage, weighted = options.pop("advantage"), options.pop("weighted")
    options["denominator"] = float(options["denominator"] or 1)
    logprob_T = packed("logprob").requires_grad_()
    loss, stats = grpo_loss(
        logprob_T,
        packed("old_logprob"),
        packed(advantage) if advantage else torch.zeros(mask.size, dtype=dtype),
        torch.arange(len(mask) + 1) * mask.shape[1],
        torch.tensor(mask.reshape(-1)),
        ref_logprob_T=packed("ref_logprob") if options.get("kl_coef") else None,
        weight_T=packed("is_weights") if weighted else None,
        **options,
    )
    loss.backward()
    gradient = logprob_T.grad.view(mask.shape).numpy()
    if nothing:
        return {"loss": (loss.item(), 0.0), "grad": (gradient, np.zeros(mask.shape))}
    values = {"loss": (loss.item(), expected_loss), "grad": (gradient, inputs["expected_grad"])}
    tokens, metrics = stats.tokens.item(), case["metrics"]
    found = {
        "pg_clipfrac": (stats.clipped_low + stats.clipped_high).item() / tokens,
        "pg_clipfrac_lower": stats.clipped_dual.item() / tokens,
        "ppo_kl": stats.old_kl_sum.item() / tokens,
    }
    if options.get("level", "token") == "token":
        found |= {
            "clip_ratio/low_mean": stats.clipped_low.item() / tokens,
            "clip_ratio/high_mean": stats.clipped_high.item() / tokens,
            "clip_ratio/region_mean": (stats.clipped_low + stats.clipped_high).item() / tokens,
        }
    return values | {name: (found[name], float(metrics[name])) for name in found if name in metrics}


def replay_weights(data: Any, arrays: dict[str, np.ndarray], report: Report) -> None:
    """Truncated and masked importance weights of TRL; a sequence weight is compared on every policy token."""
    for case in data["cases"]:
        old, sampled = (arrays[f"{case['batch']}/{name}"] for name in ("old_logprob", "sampling_logprob"))
        mask = arrays[f"{case['batch']}/completion_mask"] > 0
        if case["use_tool_mask"]:
            mask = mask & (arrays[f"{case['batch']}/tool_mask"] > 0)
        weight_T = importance_weight(
            torch.tensor(old.reshape(-1)),
            torch.tensor(sampled.reshape(-1)),
            torch.tensor(mask.reshape(-1)),
            torch.arange(len(mask) + 1) * mask.shape[1],
            case["mode"],
            case["clip_min"],
            case["clip_max"],
        )
        expected = np.broadcast_to(arrays[f"{case['id']}/ratio"], mask.shape)
        report.case(f"{case['id']} {case['mode']}", {"weight": (weight_T.view(mask.shape).numpy(), expected)})
