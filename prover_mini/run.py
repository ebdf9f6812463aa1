"""The run directory and what a person sees of a run.

    runs/NAME/config.json, command.txt, git.txt      what was run; launch.txt, by which torchrun
    runs/NAME/metrics.jsonl                          one object per step
    runs/NAME/rollouts/step_000010.jsonl             one object per trajectory
    runs/NAME/judge/step_000010.jsonl                one object per proposal, with all that was asked and answered
    runs/NAME/eval/step_000010.json                  one evaluation of the panel
    runs/NAME/checkpoints/, latest, best             checkpoint.py

Only rank 0 writes and prints. On a terminal the phase is shown as a bar; elsewhere there is one plain line per step.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from prover_mini import config as configuration
from prover_mini import distributed
from prover_mini.config import Config, dashed
from prover_mini.credit import Credit, batch
from prover_mini.errors import SharedError, UserError
from prover_mini.files import finite, lost_lines, next_free, read_metrics, step_name, write_text
from prover_mini.summary import closing_table
from prover_mini.tracker import Tracker, names_of
from prover_mini.trajectory import Group

EXTENDABLE = {
    "steps",
    "eval_every",
    "save_every",
    "keep_checkpoints",
    "device",
    "slots",
    "micro_batch",
    "state_cache_mb",
    "tracker",
    "record_groups",
    "rank_timeout",
    "env_timeout",
    "parallel",
    "activation_checkpointing",
    "judge_url",
    "judge_timeout",
    "judge_concurrency",
    "judge_max_failures",
}


EVALUATED = ("success_rate", "n", "ci95")  # what a metrics line says of an evaluation


def open_run(config: Config, given: dict) -> tuple[Path, Config]:
    """The run directory and the configuration to run, decided by rank 0 for every rank; nothing is written yet.

    Raises UserError for a directory that holds another run, and for a resumed run whose fields would change.
    """
    answer = None
    restarted = any(distributed.gather(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"))
    if distributed.main():
        try:
            if restarted and not config.resume and (begun := begun_by_this_launch(config)):
                config.run_dir, config.resume = str(begun), True
            answer = reopen(config, given) if config.resume else choose(config)
        except UserError as error:
            answer = error
    answer = distributed.broadcast(answer)
    if isinstance(answer, UserError):
        raise answer
    return answer


def launch() -> str:
    """Names the torchrun that started this process, the same after each of its restarts."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"process {os.getppid()} on {socket.gethostname()}" if name == "none" else f"torchrun {name}"


def begun_by_this_launch(config: Config) -> Path | None:
    """The run to go on with when torchrun has restarted the ranks (`--max-restarts`)."""
    for path in [Path(config.run_dir)] if config.run_dir else Path("runs").glob("*"):
        file = path / "launch.txt"
        if file.is_file() and file.read_text().strip() == launch():
            return path
    return None


def choose(config: Config) -> tuple[Path, Config]:
    if config.run_dir:
        path = Path(config.run_dir)
        if path.exists() and not path.is_dir():
            raise UserError(f"--run-dir {path}: is a file; name a directory")
        if path.exists() and any(path.iterdir()):
            raise UserError(f"--run-dir {path}: already holds a run; add --resume to continue it, or name another")
        return path, config
    path = next_free(f"runs/{config.env}-{config.credit}")
    config.run_dir = str(path)
    return path, config


def reopen(config: Config, given: dict) -> tuple[Path, Config]:
    if not config.run_dir:
        raise UserError("--resume needs --run-dir: the run to continue")
    path = Path(config.run_dir)
    if not (path / "config.json").is_file():
        raise UserError(f"--run-dir {path}: holds no run to resume (no config.json)")
    saved = configuration.load(path / "config.json")
    for name, value in given.items():
        if name in EXTENDABLE:
            setattr(saved, name, value)
        elif name not in ("run_dir", "resume") and value != getattr(saved, name):
            was = getattr(saved, name)
            raise UserError(
                f"--{dashed(name)} {value}: this run was started with {was!r}, which a resume cannot change"
            )
    saved.run_dir, saved.resume = config.run_dir, True
    saved.validate()
    return path, saved


def git_state() -> str:
    """Commit and whether the tree was changed; empty outside a checkout."""
    try:
        here = Path(__file__).parent
        commands = (["git", "rev-parse", "HEAD"], ["git", "status", "--porcelain"])
        outputs = [subprocess.run(c, cwd=here, capture_output=True, text=True, timeout=10).stdout for c in commands]
        return "".join(outputs)
    except (OSError, subprocess.TimeoutExpired):
        return ""


def verdict_line(trajectories: list[dict]) -> str:
    """The verified segment with the largest delta of a step, such as "turn 2 of train-0895: 2/8 -> 6/8"; "" for none.

    Args:
        trajectories: the step's records.
    """
    verified = [t for t in trajectories if t["segment"] and t["segment"]["delta"] is not None]
    if not verified:
        return ""
    best = max(verified, key=lambda t: t["segment"]["delta"])
    s = best["segment"]
    first, last = s["first_turn"], s["last_turn"]
    turns = f"turn {first}" if first == last else f"turns {first}-{last}"
    before, after = (f"{sum(r > 0 for r in s[side])}/{len(s[side])}" for side in ("pre", "post"))
    return f"{turns} of {best['task_id']}: {before} -> {after}"


class Run:
    """Writes one run's files and reports its progress; on other ranks than 0 it does nothing.

    What was written after step `done`, the step of the checkpoint that is resumed (0: none), is dropped: it will be
    written again. Metrics of steps up to it that are not there any more cannot be: a line says which.
    """

    def __init__(self, path: Path, config: Config, done: int):
        self.path, self.config = path, config
        self.active = distributed.main()
        self.console = Console(highlight=False, soft_wrap=True)
        self.times: dict[str, float] = {}
        self.bad_steps = 0  # in a row, up to now
        self.step = done
        self.bar = None
        self.trackers: list[Tracker] = []
        if self.active:
            for name in names_of(config.tracker):
                self.trackers.append(Tracker(name, path, config, done, self.say))
            self._prepare(done)
        if self.active and self.console.is_terminal:
            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.steps_bar = self.bar.add_task("steps", total=config.steps)
            self.phase_bar = self.bar.add_task("", total=None)
            self.bar.start()
            atexit.register(self.bar.stop)  # gives the terminal its cursor back, however the run ends

    def _prepare(self, done: int) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self.config.resume:
                (self.path / "config.json").touch(exist_ok=False)
            write_text(self.path / "config.json", configuration.dumps(self.config))
        except FileExistsError:
            raise UserError(f"--run-dir {self.path}: another run has just taken it; start again") from None
        except OSError as error:
            raise UserError(f"--run-dir {self.path}: cannot be written ({error.strerror})") from None
        with open(self.path / "command.txt", "a") as file:
            file.write(shlex.join([sys.executable, *sys.argv]) + "\n")
        write_text(self.path / "launch.txt", launch() + "\n")
        write_text(self.path / "git.txt", git_state())
        rows = [row for row in read_metrics(self.path / "metrics.jsonl") if row["step"] <= done]
        write_text(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if lost := lost_lines(self.path / "metrics.jsonl", rows, done):
            self.say(f"warning: {lost}; the run goes on without them")
        for file in [f for folder in ("rollouts", "judge", "eval") for f in self.path.glob(f"{folder}/step_*")]:
            if file.stem > step_name(done):
                file.unlink()
        for file in self.path.glob("eval/step_*.json"):  # the closing table reads them, when the run is over
            try:
                json.loads(file.read_text())
            except ValueError as error:
                raise UserError(f"{file}: is damaged ({error}); move it away, then resume again") from None
        for checkpoint in self.path.glob("checkpoints/step_*"):
            if checkpoint.name > step_name(done):
                shutil.rmtree(checkpoint)
        best = self.path / "best"
        if best.exists() and best.read_text(errors="replace").strip() > step_name(done):
            best.unlink()

    @contextmanager
    def phase(self, name: str, step: int | None = None):
        """Times a phase of the step; times of one name add up until `take_times`. `step` begins a new step.

        "cpu" is the CPU time of all phases but evaluations, which every method has and no method needs.
        """
        self.step = self.step if step is None else step
        if self.bar:
            self.bar.remove_task(self.phase_bar)  # a new one: an update cannot forget the last phase's total and time
            self.phase_bar = self.bar.add_task(f"step {self.step}: {name}", total=None)
        start, cpu, idle = time.perf_counter(), time.process_time(), distributed.idle_seconds()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - start
            self.times["idle"] = self.times.get("idle", 0.0) + distributed.idle_seconds() - idle
            if name != "eval":
                self.times["cpu"] = self.times.get("cpu", 0.0) + time.process_time() - cpu

    def take_times(self) -> dict[str, float]:
        times, self.times = self.times, {}
        return times

    def episodes(self, label: str, done: int, total: int) -> None:
        """Progress inside a phase, in episodes."""
        if self.bar:
            self.bar.update(self.phase_bar, completed=done, total=total)

    def say(self, text: str) -> None:
        if self.active:
            self.console.print(text, markup=False)

    def log(self, row: dict, trajectories: list[dict], evaluation: dict | None) -> None:
        """Writes one step: its metrics last, so that a metrics line always has the other files behind it."""
        if evaluation:
            self.evaluation(row["step"], evaluation)
            row |= {f"eval/{name}": evaluation[name] for name in EVALUATED}
        if not self.active:
            return
        name = f"rollouts/{step_name(row['step'])}.jsonl"
        self.write(name, "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in trajectories))
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps({name: finite(value) for name, value in row.items()}, allow_nan=False) + "\n")
        for tracker in self.trackers:
            tracker.log(row, row["step"])
        if self.bar:
            self.bar.update(self.steps_bar, completed=row["step"])
        proposed, verified = row["prover/proposed"], row["prover/verified"]
        accepted = f"{row['prover/accepted']}/{verified} segments accepted"
        credited = accepted if verified else f"{proposed} segments proposed"
        self.say(
            f"step {row['step']:4d}/{self.config.steps}  success {row['success_rate']:.3f}  "
            + (f"{credited}  " if proposed else "")
            + (f"{verdict}  " if (verdict := verdict_line(trajectories)) else "")
            + (f"judge failed {row['judge/failures']} of {row['judge/calls']}  " if row["judge/failures"] else "")
            + (f"{row['env/error_rate']:.1%} of episodes failed by errors  " if row["env/error_rate"] else "")
            + ("out of memory, repeated with half the micro-batch  " if row["update/out_of_memory"] else "")
            + f"loss {row['loss/policy']:+.4f}  grad {row['grad_norm']:.3f}  {row['time/total']:.1f} s"
        )

    def check(self, row: dict, groups: list[Group], credit: Credit) -> None:
        """Looks at a logged step: keeps the batch of one that was skipped, for inspection. Raises SharedError when
        `max_bad_steps` in a row taught nothing, because of a loss or gradient that was not finite or of errors in
        every episode. One or two such steps are a server that restarts, or bad luck."""
        skipped, failed = not row["update/applied"], row["env/error_rate"] == 1
        self.bad_steps = self.bad_steps + 1 if skipped or failed else 0
        if skipped:
            self.keep_batch(row["step"], groups, credit)
        if self.bad_steps >= self.config.max_bad_steps:
            if skipped:
                reason = f"had a non-finite loss or gradient; see {self.path}/skipped"
            else:
                errors = (t.error for g in groups for t in g.trajectories)
                reason = f"had errors in every episode, the last with {next(errors, 'one that another rank shows')}"
            raise SharedError(f"{self.bad_steps} steps in a row taught nothing, step {row['step']} {reason}")

    def stopped(self, step: int) -> None:
        """Says how to go on after a stop between steps."""
        self.close()
        done = f"after step {step} of {self.config.steps}, saved"
        self.say(f"stopped by SIGTERM {done}; go on with --run-dir {self.path} --resume")

    def judged(self, step: int, proposals: list[dict] | None) -> None:
        """Writes what a judge was asked and answered, of all ranks, before anything is made of it.

        None: it asks nobody.
        """
        if proposals is None:
            return
        everywhere = sorted((p for part in distributed.gather(proposals) for p in part), key=lambda p: p["group"])
        if everywhere:
            self.write(f"judge/{step_name(step)}.jsonl", "".join(json.dumps(p) + "\n" for p in everywhere))

    def keep_batch(self, step: int, groups: list[Group], credit: Credit) -> None:
        """The exact tokens and advantages of a step that was skipped, for inspection (rank 0's part)."""
        rows = [
            {
                "task_id": t.task.id,
                "ids": t.ids,
                "turn_ids": t.turn_ids,
                "logprobs": t.logprobs,
                "advantage": a,
                "credit": c,
            }
            for t, a, c in zip(batch(groups), credit.advantage_B.tolist(), credit.credit_BN.tolist())
        ]
        self.write(f"skipped/{step_name(step)}.json", json.dumps(rows))

    def write(self, name: str, text: str) -> None:
        if self.active:
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path / name, text)

    def evaluation(self, step: int, result: dict) -> None:
        self.write(f"eval/{step_name(step)}.json", json.dumps({"step": step, **result}, indent=1) + "\n")
        if step == 0:  # later ones are part of their step's metrics
            for tracker in self.trackers:
                tracker.log({f"eval/{name}": result[name] for name in EVALUATED}, step)
        low, high = result["ci95"]
        kinds = ", ".join(f"{kind} {r['success_rate']:.2f}" for kind, r in result["by_kind"].items())
        self.say(
            f"test panel {result['panel']} after step {step}: success {result['success_rate']:.3f} "
            f"[{low:.3f}, {high:.3f}], n {result['n']} ({kinds})"
            + (f", {result['errors']} more failed by errors" if result["errors"] else "")
        )

    def close(self) -> None:
        if self.bar:
            self.bar.stop()
        for tracker in self.trackers:
            tracker.close()

    def summary(self) -> None:
        self.close()
        if self.active:
            self.console.print(closing_table(self.path, read_metrics(self.path / "metrics.jsonl"), self.config))
            python = os.path.relpath(sys.executable) if sys.prefix.startswith(os.getcwd()) else "python"
            command = f"{python} -m prover_mini.report {shlex.quote(str(self.path))}"
            self.say(f"every step and trajectory as a page: {command}")
