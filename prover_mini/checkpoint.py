"""Checkpoints: written aside, renamed when complete, `latest` moved last; nothing is pickled.

    checkpoints/step_000010/model/               HF layout: what AutoModelForCausalLM and inference servers load
    checkpoints/step_000010/optimizer.safetensors    AdamW's two moments per parameter; float32 masters
    checkpoints/step_000010/state.json           step, AdamW's step count, sizes of all files

There is no generator state to keep: every random draw of the run is a function of its place (seeds.py), and the tasks
of a step are a function of the step.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from prover_mini.errors import UserError
from prover_mini.files import step_name, write_text
from prover_mini.update import Learner

MOMENTS = ("exp_avg", "exp_avg_sq")


def save(run_dir: Path, step: int, learner: Learner, tokenizer, keep: int) -> None:
    """Saves weights, optimizer and step, then points `latest` at them and deletes all but the newest `keep`."""
    root = run_dir / "checkpoints"
    final, aside = root / step_name(step), root / (step_name(step) + ".tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    learner.model.save_pretrained(aside / "model")
    tokenizer.save_pretrained(aside / "model")
    tensors, count = {}, 0
    for name, parameter, master in zip(learner.names, learner.parameters, learner.masters):
        if parameter.dtype != master.dtype:
            tensors[f"master/{name}"] = master
        state = learner.optimizer.state.get(master)
        if state:
            count = int(state["step"])
            tensors |= {f"{moment}/{name}": state[moment].contiguous() for moment in MOMENTS}
    save_file(tensors, aside / "optimizer.safetensors")
    sizes = {str(f.relative_to(aside)): f.stat().st_size for f in sorted(aside.rglob("*")) if f.is_file()}
    write_text(aside / "state.json", json.dumps({"step": step, "optimizer_steps": count, "files": sizes}, indent=1))
    for path in aside.rglob("*"):
        sync(path)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(aside, final)
    sync(root)
    write_text(run_dir / "latest", step_name(step) + "\n")
    for old in sorted(root.glob("step_??????"))[:-keep]:
        shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def latest(run_dir: Path) -> tuple[Path, dict] | None:
    """The newest checkpoint and its state, checked to be whole; None where the run has none yet.

    Raises UserError for a checkpoint with a missing or shortened file.
    """
    pointer = run_dir / "latest"
    if not pointer.exists():
        return None
    path = run_dir / "checkpoints" / pointer.read_text(errors="replace").strip()
    try:
        state = json.loads((path / "state.json").read_text())
        files = state["files"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: the checkpoint is damaged (state.json); {remedy(run_dir, path)}") from None
    for name, size in files:
        if not (path / name).is_file() or (path / name).stat().st_size != size:
            raise UserError(f"{path}: the checkpoint is damaged ({name}); {remedy(run_dir, path)}")
    return path, state


def remedy(run_dir: Path, damaged: Path) -> str:
    others = [p.name for p in sorted((run_dir / "checkpoints").glob("step_??????")) if p.name != damaged.name]
    if others:
        return f"write {others[-1]} into {run_dir / 'latest'} to go on from there"
    return "start the run anew in another directory"


def restore_optimizer(path: Path, state: dict, learner: Learner) -> None:
    """Puts AdamW's moments and the float32 masters back, bit for bit."""
    try:
        tensors = load_file(path / "optimizer.safetensors", device=str(learner.device))
        for name, master in zip(learner.names, learner.masters):
            if f"master/{name}" in tensors:
                master.copy_(tensors[f"master/{name}"])
            if f"{MOMENTS[0]}/{name}" in tensors:
                moments = {moment: tensors[f"{moment}/{name}"] for moment in MOMENTS}
                learner.optimizer.state[master] = {"step": torch.tensor(float(state["optimizer_steps"])), **moments}
    except Exception as error:
        raise UserError(f"{path}: the optimizer state cannot be read ({error})") from None
