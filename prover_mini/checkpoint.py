"""Checkpoints: written aside, renamed when complete, `latest` moved last; nothing is pickled.

    checkpoints/step_000010/model/               HF layout: what AutoModelForCausalLM and inference servers load
    checkpoints/step_000010/optimizer*.safetensors   AdamW's two moments per parameter; float32 masters
    checkpoints/step_000010/state.json           step, AdamW's step count, success in training, sizes of all files,
                                                 tokens per trajectory of each kind of task, by which ranks share groups

Ranks that hold shards write them side by side, each into a file of its own with the row at which each shard begins, so
any number of ranks, with or without shards, reads any checkpoint. There is no generator state to keep: every random
draw of the run is a function of its place (seeds.py), and the tasks of a step are a function of the step.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prover_mini import distributed
from prover_mini.errors import SharedError, UserError
from prover_mini.files import step_name, write_text
from prover_mini.parallel import Part
from prover_mini.update import Learner

MOMENTS = ("exp_avg", "exp_avg_sq")


def save(
    run_dir: Path,
    step: int,
    learner: Learner,
    tokenizer,
    keep: int,
    success: float = 0.0,
    tokens_by_kind: dict[str, float] | None = None,
) -> None:
    """Saves weights, optimizer and step, then points `latest` at them and deletes all but the newest `keep` and the one
    with the highest `success`, to which `best` points.

    All ranks call it; ranks that hold shards need a run directory that all of them see. `success` must not come from
    the test panel: the best checkpoint would then be selected on it.

    Raises SharedError on all ranks when one cannot write, as on a full disk; the checkpoint before stays the latest.
    """
    root = run_dir / "checkpoints"
    final, aside = root / step_name(step), root / (step_name(step) + ".tmp")
    state = {"step": step, "success": success, "tokens_by_kind": tokens_by_kind or {}}
    try:
        distributed.first(lambda: make_empty(aside) if distributed.main() else None)
        distributed.together(lambda: write_part(aside, learner, tokenizer))
        distributed.first(lambda: complete(run_dir, aside, final, learner, state, keep) if distributed.main() else None)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise SharedError(
            f"{final}: the checkpoint cannot be written ({error}); make room, and go on with "
            f"--run-dir {run_dir} --resume"
        ) from None


def make_empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def write_part(aside: Path, learner: Learner, tokenizer) -> None:
    """What this rank has to write: rank 0 the model, every rank the masters and moments that it holds."""
    weights = learner.weights
    if not weights.sharded and not distributed.main():
        return
    if not aside.is_dir():
        rank = distributed.rank()
        raise UserError(f"{aside}: rank {rank} does not see it; shards need a run directory that all ranks share")
    if distributed.main():
        tensors = {name: p.detach() for name, p in weights.model.named_parameters()}
        # the library would give the text model of an image and text model the names of the latter again
        weights.model.save_pretrained(aside / "model", state_dict=tensors, save_original_format=False)
        tokenizer.save_pretrained(aside / "model")
    tensors = {}
    for part in weights.parts:
        if part.written and len(part.master):
            if part.rounded:
                tensors[f"master/{part.name}"] = part.master
            state = learner.optimizer.state.get(part.master)
            if state:
                tensors |= {f"{moment}/{part.name}": state[moment].contiguous() for moment in MOMENTS}
    suffix = f"-{distributed.rank() + 1:05d}-of-{distributed.world():05d}" if weights.sharded else ""
    first_rows = json.dumps({part.name: part.first_row for part in weights.parts if part.first_row})
    save_file(tensors, aside / f"optimizer{suffix}.safetensors", metadata={"first_rows": first_rows})
    sync(aside / f"optimizer{suffix}.safetensors")


def complete(run_dir: Path, aside: Path, final: Path, learner: Learner, state: dict, keep: int) -> None:
    """Adds state.json, gives the checkpoint its name when all of it is on disk, points to it, deletes older ones."""
    steps = max((int(moments["step"]) for moments in learner.optimizer.state.values()), default=0)
    sizes = {str(f.relative_to(aside)): f.stat().st_size for f in sorted(aside.rglob("*")) if f.is_file()}
    write_text(aside / "state.json", json.dumps({**state, "optimizer_steps": steps, "files": sizes}, indent=1))
    for path in aside.rglob("*"):
        sync(path)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(aside, final)
    sync(final.parent)
    write_text(run_dir / "latest", final.name + "\n")
    checkpoints = sorted(final.parent.glob("step_??????"))
    best = max(checkpoints, key=lambda path: (success_of(path), path.name))  # of equals the newest
    write_text(run_dir / "best", best.name + "\n")
    for old in checkpoints[:-keep]:
        if old != best:
            shutil.rmtree(old, ignore_errors=True)


def success_of(path: Path) -> float:
    try:
        return read_state(path)["success"]
    except (OSError, ValueError, KeyError):  # damaged: never the best
        return -1.0


def read_state(path: Path) -> dict:
    return json.loads((path / "state.json").read_text())


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
        state = read_state(path)
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
    """Puts AdamW's moments and the float32 masters back, bit for bit, whatever ranks wrote and read them."""
    try:
        saved = Rows(path)
        for part in learner.weights.parts:
            if f"master/{part.name}" in saved.pieces:
                part.master.copy_(saved.read(f"master/{part.name}", part))
            if f"{MOMENTS[0]}/{part.name}" in saved.pieces:
                moments = {m: saved.read(f"{m}/{part.name}", part).to(learner.device) for m in MOMENTS}
                steps = torch.tensor(float(state["optimizer_steps"]))
                learner.optimizer.state[part.master] = {"step": steps, **moments}
    except Exception as error:
        raise UserError(f"{path}: the optimizer state cannot be read ({error})") from None


class Rows:
    """The tensors in a checkpoint's optimizer files: their rows lie in one file or follow each other in several."""

    def __init__(self, path: Path):
        self.pieces: dict[str, list] = defaultdict(list)  # (first row, rows, slice of a file), in order
        for file in sorted(path.glob("optimizer*.safetensors")):
            tensors = safe_open(file, "pt")
            first_rows = json.loads((tensors.metadata() or {}).get("first_rows", "{}"))
            for key in tensors.keys():
                piece = tensors.get_slice(key)
                first = first_rows.get(key.partition("/")[2], 0)
                self.pieces[key].append((first, piece.get_shape()[0], piece))

    def read(self, key: str, part: Part) -> Tensor:
        """The rows that `part` holds."""
        first, end = part.first_row, part.first_row + len(part.master)
        found = [
            piece[max(first - start, 0) : min(end - start, rows)]
            for start, rows, piece in self.pieces[key]
            if start < end and first < start + rows
        ]
        tensor = torch.cat(found) if found else part.master.cpu()[:0]
        if tensor.shape != part.master.shape:
            raise ValueError(f"{key} has {len(tensor)} of {len(part.master)} rows; a file is missing")
        return tensor
