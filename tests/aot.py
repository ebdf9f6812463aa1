"""Ahead-of-time compilation of every shipped kernel configuration, on a machine without GPU or driver.

Triton compiles for a named target; registers come from the wheel's cuobjdump, spills from its `ptxas -v`, shared
memory from the compiler's metadata. AMD figures are read from the generated assembly.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.launch import ARCHITECTURES, TABLE, entry

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHARED_LIMIT = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}

POINTERS = {
    "advantage_B": "*fp32", "credit_BN": "*fp32", "cu_seqlens_B1": "*i64", "turn_ids_T": "*i64", "out_T": "*fp32",
    "logprob_T": "*fp32", "old_T": "*fp32", "advantage_T": "*fp32", "mask_T": "*u8", "ref_T": "*fp32",
    "weight_T": "*fp32", "gradient_T": "*fp32", "partial_PS": "*fp32", "loss": "*fp32", "out_S": "*fp32",
    "logits_NC": "*fp32", "out_NC": "*fp32", "ids_N": "*i64", "max_N": "*fp32", "sum_N": "*fp32", "weighted_N": "*fp32",
    "target_N": "*fp32", "base_N": "*fp32", "slope_N": "*fp32", "g_N": "*fp32",
    "a_log_H": "*fp32", "dt_bias_H": "*fp32", "recurrent_SHKV": "*fp32", "rows_B": "*i64", "counts_B": "*i64",
    "lengths_B": "*i64", "part_BHPE": "*fp32", "lse_BHP": "*fp32",
}  # fmt: skip
# key heads, value heads of each, key size, value size, dtypes: Qwen3.5-2B, 4B; an embedded policy; half the size
DELTA_LAYERS = (
    (16, 1, 128, 128, ("fp32", "bf16")), (16, 2, 128, 128, ("fp32", "bf16")),
    (2, 1, 16, 32, ("fp32",)), (4, 2, 64, 64, ("fp32",)),
)  # fmt: skip
# K/V heads, query heads of each, head size: Qwen3.5-2B, Qwen3-1.7B, Qwen2.5-0.5B
ATTENTION_LAYERS = ((2, 4, 256), (8, 2, 128), (2, 7, 64))
DECODE = "gated_delta_rule", "decode_attention", "decode_attention_fp32"
SCALARS = {"inverse_denominator": "fp32"}
DIVISIBLE = {"stride", "out_stride", "start"}  # by 16, as the vocabulary's chunks are


@dataclass(frozen=True)
class Job:
    """One kernel with one set of compile-time values, for one architecture."""

    name: str
    kernel: Any
    target: str
    constants: dict[str, Any]
    options: dict[str, int]
    dtypes: dict[str, str]

    @property
    def label(self) -> str:
        names = ["BLOCK", "J", "GROUP", "K", "V", "E", "ENTROPY", "LEVEL"]
        names += ["KL"] * self.constants.get("HAS_REF", False)
        shown = {name: self.constants[name] for name in names if name in self.constants}
        parts = [f"{k.lower()} {v}" for k, v in shown.items()] + [f"{k} {v}" for k, v in self.dtypes.items()]
        if "GROUP" in shown or "E" in shown:  # the tensors of the decode kernels have one dtype
            parts = [f"{k.lower()} {v}" for k, v in shown.items()] + [next(iter(self.dtypes.values()))]
        return ", ".join([*parts, f"warps {self.options['num_warps']}"])


@dataclass(frozen=True)
class Resources:
    registers: int
    spills: int
    shared: int
    double_precision: bool


def jobs(architectures: tuple[str, ...] = ARCHITECTURES) -> Iterator[Job]:
    """Every entry of the launch table with every compile-time switch that changes the code's shape."""
    for target in architectures:
        for kernel in TABLE:
            if kernel in DECODE:
                continue
            chosen = []
            for names, _, found in TABLE[kernel]:
                if target in names and found not in chosen:
                    chosen.append(found)
            for found in chosen:
                yield from _jobs(kernel, target, found)
        yield from _decode_jobs(target)
    reduce = getattr(import_module("kernels.grpo_loss"), "_sum_partials_kernel")
    for target in architectures:
        yield Job("sum_partials", reduce, target, {"PARTIALS": 16, "BLOCK": 64}, {"num_warps": 4}, {})


def _jobs(kernel: str, target: str, found: dict[str, int]) -> Iterator[Job]:
    block, options = {"BLOCK": found["BLOCK"]}, {"num_warps": found["num_warps"]}
    if kernel == "segment_advantage":
        function = import_module("kernels.segment_advantage")._segment_advantage_kernel
        yield Job(kernel, function, target, block | {"STEPS": 8}, options, {})
    elif kernel == "grpo_loss":
        function = import_module("kernels.grpo_loss")._grpo_loss_kernel
        for level, row_mean, kl in (
            ("token", False, None),
            ("token", False, "k3"),
            ("token", True, "k1"),
            ("sequence", True, "k2"),
            ("sequence_token", False, "k3"),
        ):
            yield Job(kernel, function, target, block | loss_constants(level, row_mean, kl), options, {})
    elif kernel == "rms_norm":
        function = import_module("kernels.rms_norm")._rms_norm_kernel
        for dtype in ("fp32", "bf16"):
            named = dict.fromkeys(("x_ND", "weight_D", "y_ND"), dtype)
            yield Job(kernel, function, target, block | {"EPS": 1e-6, "OFFSET": 1.0}, options, named)
    else:
        module = import_module("kernels.linear_logprob")
        for entropy in (False, True):
            constants = block | {"INVERSE_TEMPERATURE": 1.0 / 0.7, "ENTROPY": entropy}
            for dtype in ("fp32", "bf16"):
                yield Job(
                    "online_softmax", module._online_softmax_kernel, target, constants, options, {"logits_NC": dtype}
                )
            for dtypes in (("fp32", "bf16"), ("bf16", "bf16"), ("fp32", "fp32")):
                named = dict(zip(("logits_NC", "out_NC"), dtypes))
                yield Job("softmax_gradient", module._softmax_gradient_kernel, target, constants, options, named)


def _decode_jobs(target: str) -> Iterator[Job]:
    """The kernels whose code depends on a layer's shape, in the shapes of real models."""
    module = import_module("kernels.gated_delta_rule")
    inputs = "qkv_BC", "z_BHV", "b_BH", "a_BH", "conv_C1W", "norm_V", "conv_SWC", "out_BHV"
    for J, group, K, V, dtypes in DELTA_LAYERS:
        constants = {"EPS": 1e-6, "J": J, "GROUP": group, "K": K, "V": V, "W": 4}
        constants |= {"BLOCK_K": K, "BLOCK_V": V, "BLOCK_W": 4}
        options = entry("gated_delta_rule", K * V, target)
        for dtype in dtypes:
            named = dict.fromkeys(inputs, dtype)
            yield Job("gated_delta_rule", module._gated_delta_kernel, target, constants, options, named)
    module = import_module("kernels.decode_attention")
    for J, group, E in ATTENTION_LAYERS:
        constants = {"E": E, "BLOCK_E": E, "SPLIT": module.SPLIT}
        for dtype, table in (("fp32", "decode_attention_fp32"), ("bf16", "decode_attention")):
            options = dict(entry(table, E, target))
            part = constants | {"J": J, "GROUP": group, "SCALE": 0.1, "BLOCK": options.pop("BLOCK"), "BLOCK_G": 16}
            named = dict.fromkeys(("q_BHE", "key_SJTE", "value_SJTE"), dtype)
            yield Job("attention_part", module._attention_part_kernel, target, part, options, named)
        merge, options = constants | {"H": J * group}, {"num_warps": 1}
        yield Job("merge_parts", module._merge_parts_kernel, target, merge, options, {"out_BHE": "bf16"})


def loss_constants(level: str, row_mean: bool, kl: str | None) -> dict[str, Any]:
    constants = {
        "LEVEL": level, "ROW_MEAN": row_mean, "HAS_REF": kl is not None, "HAS_WEIGHT": kl is not None,
        "LOG_LOW": -20.0, "LOG_HIGH": 20.0, "CLIP_LOW": 0.2, "CLIP_HIGH": 0.28, "DUAL_CLIP": 3.0,
        "KL": kl or "k3", "KL_COEF": 0.1 if kl else 0.0, "KL_MAX": 10.0, "PARTIALS": 16,
    }  # fmt: skip
    return constants if kl else constants | {"ref_T": None, "weight_T": None}


def compile_job(job: Job) -> Resources:
    """Compiles one job; raises what the compiler raises."""
    names = job.kernel.arg_names
    signature = {
        name: "constexpr" if name in job.constants
        else f"*{job.dtypes[name]}" if name in job.dtypes
        else POINTERS.get(name) or SCALARS.get(name, "i32")
        for name in names
    }  # fmt: skip
    # the hints that the run time derives from aligned pointers and sizes
    aligned = [i for i, name in enumerate(names) if signature[name].startswith("*") or name in DIVISIBLE]
    attributes = {(i,): [["tt.divisibility", 16]] for i in aligned}
    on_amd = job.target.startswith("gfx")
    target = GPUTarget("hip", job.target, 64) if on_amd else GPUTarget("cuda", int(job.target[3:]), 32)
    source = ASTSource(fn=job.kernel, signature=signature, constexprs=job.constants, attrs=attributes)
    binary = triton.compile(source, target=target, options=dict(job.options))
    if on_amd:
        code = binary.asm["amdgcn"]
        spills = _number(r"\.vgpr_spill_count:\s+(\d+)", code) + _number(r"\.sgpr_spill_count:\s+(\d+)", code)
        return Resources(_number(r"\.vgpr_count:\s+(\d+)", code), spills, binary.metadata.shared, False)
    code = binary.asm["ptx"]
    # Triton itself asks for .f64 nowhere; one Python float typed as double would show here
    return Resources(_registers(binary.asm["cubin"]), _spills(code), binary.metadata.shared, ".f64" in code)


def _number(pattern: str, text: str) -> int:
    return int(re.search(pattern, text).group(1))


def _registers(cubin: bytes) -> int:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        return _number(r"REG:(\d+)", subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def _spills(ptx: str) -> int:
    """Bytes of spill stores and loads, from ptxas itself."""
    architecture = re.search(r"\.target\s+(sm_\w+)", ptx).group(1)
    for tool in ("ptxas", "ptxas-blackwell"):
        if not (TOOLS / tool).exists():
            continue
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "kernel.ptx")
            Path(path).write_text(ptx)
            command = [str(TOOLS / tool), "-v", f"--gpu-name={architecture}", path, "-o", path + ".cubin"]
            log = subprocess.run(command, capture_output=True, text=True).stderr
        found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
        if found:
            return int(found.group(1)) + int(found.group(2))
    raise RuntimeError(f"no ptxas of this wheel takes its own PTX for {architecture}: {log[:200]}")
