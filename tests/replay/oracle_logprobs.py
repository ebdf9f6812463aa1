"""Log-probs, entropy, logsumexp and all gradients against a float64 reference, from hidden states and from logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kernels import linear_logprob, logits_logprob
from tests.replay.report import Report, Tolerance


def replay(data: Any, arrays: dict[str, np.ndarray], report: Report, fused: bool) -> None:
    dtype = torch.float32 if fused else torch.float64
    for case in data["cases"]:
        stored = {k.split("/")[1]: v for k, v in arrays.items() if k.startswith(case["id"] + "/")}
        tolerance = Tolerance()
        if fused:
            # logits of +-1e4 have steps of 1e-3 in float32
            error = 5 * case["float32_plain_max_abs_err_logprob"]
            tolerance = Tolerance(1e-4, max(error, 1e-6))
        name = f"{case['id']} {case['kind']} V={case['V']}"
        values = linear_values(stored, case["temperature"], dtype)
        if fused:
            # dweight multiplies the error of a probability by the hidden state
            wider = Tolerance(1e-4, tolerance.atol * max(1.0, float(np.abs(stored["hidden"]).max())))
            values |= {label: (*pair, wider) for label, pair in values.items() if label.startswith("dweight")}
        report.case(f"{name} linear", values, tolerance)
        if "dlogits_lp" in stored:
            report.case(f"{name} logits", logits_values(stored, case["temperature"], dtype), tolerance)


def linear_values(stored: dict[str, np.ndarray], temperature: float, dtype: torch.dtype) -> dict:
    values = {}
    for key in ("lp", "lp_ent"):
        hidden_ND = torch.tensor(stored["hidden"], dtype=dtype, requires_grad=True)
        weight_VD = torch.tensor(stored["weight"], dtype=dtype, requires_grad=True)
        ids_N = torch.tensor(stored["ids"])
        out = linear_logprob(hidden_ND, weight_VD, ids_N, temperature, entropy=True, logsumexp=True)
        values |= _outputs(out, stored)
        _objective(out, stored, key).backward()
        rows = stored.get("weight_rows", np.arange(len(weight_VD)))
        dweight_VD = weight_VD.grad.double().numpy()
        values[f"dhidden_{key}"] = (hidden_ND.grad.numpy(), stored[f"dhidden_{key}"])
        values[f"dweight_{key}"] = (dweight_VD[rows], stored[f"dweight_{key}"])
        values[f"dweight_{key} column sums"] = (dweight_VD.sum(0), stored[f"dweight_{key}_colsum"])
        total = np.abs(dweight_VD).sum()
        values[f"dweight_{key} absolute sum"] = (total, float(stored[f"dweight_{key}_abs_rowsum_total"]))
    return values


def logits_values(stored: dict[str, np.ndarray], temperature: float, dtype: torch.dtype) -> dict:
    values = {}
    logits = stored["hidden"].astype(np.float64) @ stored["weight"].astype(np.float64).T
    for key in ("lp", "lp_ent"):
        logits_NV = torch.tensor(logits, dtype=dtype, requires_grad=True)
        out = logits_logprob(logits_NV, torch.tensor(stored["ids"]), temperature, entropy=True, logsumexp=True)
        values |= _outputs(out, stored)
        _objective(out, stored, key).backward()
        values[f"dlogits_{key}"] = (logits_NV.grad.numpy(), stored[f"dlogits_{key}"])
    return values


def _outputs(out: Any, stored: dict[str, np.ndarray]) -> dict:
    return {
        "logprob": (out.logprob_N.detach().numpy(), stored["logprob"]),
        "entropy": (out.entropy_N.detach().numpy(), stored["entropy"]),
        "logsumexp": (out.logsumexp_N.detach().numpy(), stored["logsumexp"]),
    }


def _objective(out: Any, stored: dict[str, np.ndarray], key: str) -> torch.Tensor:
    total = (torch.tensor(stored["g_logprob"], dtype=out.logprob_N.dtype) * out.logprob_N).sum()
    if key == "lp_ent":
        total = total + (torch.tensor(stored["g_entropy"], dtype=out.logprob_N.dtype) * out.entropy_N).sum()
    return total
