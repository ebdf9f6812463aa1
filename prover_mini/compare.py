"""Methods on equal terms: what ProVer buys over GRPO on a task, and what it costs.

    python -m prover_mini.compare --env searchqa --methods grpo budget prover random --seeds 5 --jobs 2
    python -m prover_mini.compare --env searchqa --methods grpo "k2:--continuations 2 --credit-weight 4" --seeds 3
    python -m prover_mini.compare --env searchqa --alignment             gradients at a fixed policy, about a minute

Every flag of train.py passes through to all cells. A cell is one method with one seed: an ordinary run of train.py in a
directory of its own, with the tasks, the start and the number of updates of all others. Finished cells are skipped,
broken ones are resumed, so the same command continues a study, and one with more seeds extends it. Methods:

    grpo           no credit
    budget         GRPO with the tokens of the `prover` cell's continuations spent on extra rollouts, step by step
    prover         the method, with the judge of --judge
    random         the method with random segments
    judge_reward   the judge's segments are credited without verification
    NAME:FLAGS     anything else: flags of train.py under a name of your own

The study's directory holds table.md, results.json and curves.svg (study.py), or alignment.md and alignment.json
(alignment.py), the cells, and what each printed under logs/.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import importlib.util
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in train.py, and before torch is loaded

from prover_mini import config as configuration
from prover_mini import distributed
from prover_mini.config import Config, Parser, dashed, parse
from prover_mini.errors import UserError
from prover_mini.files import next_free, read_metrics, step_name
from prover_mini.run import EXTENDABLE
from prover_mini.study import report, report_alignment

TRAIN = Path(__file__).parent.parent / "train.py"  # what a cell runs without --train
METHODS = {
    "grpo": ["--credit", "grpo"],
    "budget": ["--credit", "grpo", "--budget-matched"],
    "prover": ["--credit", "prover"],
    "random": ["--credit", "prover", "--judge", "random", "--judge-url", "", "--judge-model", ""],
    "judge_reward": ["--credit", "judge_reward"],
}
OWN = ("seed", "run_dir", "resume", "budget_run")  # what a cell's place in the study decides


@dataclass(frozen=True)
class Cell:
    """One method with one seed. `needs` is the cell that must be finished first."""

    method: str
    seed: int
    path: Path
    arguments: list[str]
    needs: tuple[str, int] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.method, self.seed

    @property
    def name(self) -> str:
        return f"{self.method}-{self.seed}"


def main() -> int:
    """Runs the command line; 2 with one line on stderr for input that cannot be used, 1 when a cell has failed."""
    try:
        args, common = arguments()
        usual = ["prover", "random", "judge_reward"] if args.alignment else METHODS
        methods = named(args.methods or usual)
        return align(args, common, methods) if args.alignment else compare(args, common, methods)
    except (UserError, OSError, FloatingPointError) as error:
        print(f"compare: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        distributed.stop()


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Our own arguments, and those of train.py."""
    parser = Parser(
        prog="python -m prover_mini.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--methods", nargs="+",
        help="Methods, by name or as NAME:FLAGS. (default: all named ones; --alignment: prover random judge_reward)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=5, help="How many: seed 0, 1, ..., one cell each. (default: 5)")
    parser.add_argument("--jobs", type=int, default=1, help="Cells that run side by side; 0 only reports. (default: 1)")
    parser.add_argument("--ranks", type=int, default=1, help="Processes of each cell, by torchrun. (default: 1)")
    parser.add_argument(
        "--train", metavar="FILE",
        help="A script of yours that adds judges, methods or environments and calls train.main.",
    )  # fmt: skip
    parser.add_argument(
        "--out", help="The study's directory. (default: runs/compare-ENV, or the next free runs/alignment-ENV-NUMBER)"
    )
    parser.add_argument("--dry-run", action="store_true", help="Print what would run, and write nothing.")
    parser.add_argument("--alignment", action="store_true", help="Compare gradients at a fixed policy instead of runs.")
    parser.add_argument("--batches", type=int, default=16, help="--alignment: batches that are drawn. (default: 16)")
    parser.add_argument(
        "--weights", type=float, nargs="+", default=[1.0, 4.0],
        help="--alignment: factors on each method's credit. (default: 1 4)",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint", help="--alignment: a run or one of its checkpoints, whose policy and configuration are used."
    )
    args, common = parser.parse_known_args()
    if args.train:
        load_script(Path(args.train))
    least = {"seeds": 1, "jobs": 0, "ranks": 1, "batches": 4}
    for name, value in least.items():
        if getattr(args, name) < value:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least {value}")
    if not all(0 <= weight < math.inf for weight in args.weights):
        raise UserError(f"--weights {' '.join(map(str, args.weights))}: must be finite and at least 0")
    if args.checkpoint and not args.alignment:
        raise UserError(f"--checkpoint {args.checkpoint}: is where an alignment starts; add --alignment")
    _, given = parse(common)
    for name in OWN:
        if name in given and not (args.alignment and name == "seed"):
            raise UserError(f"--{dashed(name)}: every cell has its own; leave it out")
    return args, common


def load_script(path: Path) -> None:
    """Imports what a script registers, without running it."""
    spec = importlib.util.spec_from_file_location("compared", path)
    if not (path.is_file() and spec and spec.loader):
        raise UserError(f"--train {path}: no such Python file")
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:  # the user's own code
        raise UserError(f"--train {path}: cannot be imported ({type(error).__name__}: {error})") from None


def named(methods) -> dict[str, list[str]]:
    """Name -> flags of train.py."""
    out: dict[str, list[str]] = {}
    for text in methods:
        name, colon, flags = text.partition(":")
        if not name or not name.replace("_", "").replace("-", "").replace(".", "").isalnum() or name.startswith("."):
            raise UserError(f"--methods {text!r}: a method's name is letters, digits, '_', '-' and '.'")
        if not colon and name not in METHODS:
            known = ", ".join(METHODS)
            raise UserError(f"--methods {name}: choose from {known}, or give flags as '{name}:--flag value'")
        if name in out:
            raise UserError(f"--methods: {name} comes twice")
        try:
            out[name] = shlex.split(flags) if colon else METHODS[name]
        except ValueError as error:
            raise UserError(f"--methods {text!r}: {error}") from None
        if given := set(parse(out[name])[1]).intersection(OWN):
            raise UserError(f"--methods {text!r}: leave out --{dashed(given.pop())}; every cell has its own")
    return out


# a study of runs ---------------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, common: list[str], methods: dict[str, list[str]]) -> int:
    if "RANK" in os.environ:
        raise UserError("start the comparison without torchrun; --ranks says how many processes each cell gets")
    env = parse(common)[0].env
    out = Path(args.out or f"runs/compare-{env}")
    cells = plan(out, common, methods, args.seeds)
    states = {cell.key: state(cell) for cell in cells}
    if args.dry_run:
        for cell in cells:
            shown = {"finished": "# finished: ", "broken": ""}.get(states[cell.key], "")
            print(shown + shlex.join(command(cell, args, resume=states[cell.key] == "broken")))
        return 0
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            running = "another comparison, or a cell that one has left behind, is still running"
            raise UserError(f"{out}: {running}") from None
        todo = [cell for cell in cells if states[cell.key] != "finished"] if args.jobs else []
        print(f"{out}: {len(cells)} cells, {len(cells) - len(todo)} finished" if args.jobs else f"{out}: report only")
        failed = Runner(out, args, lock.fileno(), states).run(todo) if todo else 0
    finished = {cell.key: cell.path for cell in cells if state(cell) == "finished"}
    if not finished:
        raise UserError(f"{out}: no cell is finished; see {out}/logs")
    report(out, finished, shlex.join(sys.orig_argv))
    return 1 if failed else 0


def plan(out: Path, common: list[str], methods: dict[str, list[str]], seeds: int) -> list[Cell]:
    """All cells, seed by seed, those that others need first. Raises UserError for flags that cannot be run."""
    if "budget" in methods and "prover" not in methods:
        raise UserError("--methods budget: spends what the prover cells spend; add prover")
    cells = []
    for seed in range(seeds):
        for method in sorted(methods, key=lambda name: name == "budget"):
            path = out / f"{method}-{seed}"
            flags = [*common, *methods[method], "--seed", str(seed), "--run-dir", str(path)]
            needs = ("prover", seed) if method == "budget" else None
            if needs:
                flags += ["--budget-run", str(out / f"prover-{seed}")]
            if parse(flags)[0].plan:
                raise UserError("--plan: trains nothing that could be compared; give it to train.py")
            cells.append(Cell(method, seed, path, flags, needs))
    return cells


def state(cell: Cell) -> str:
    """"new", "broken" or "finished". Raises UserError for a directory with another run in it."""
    if not (cell.path / "config.json").exists():
        return "new"
    saved, wanted = configuration.load(cell.path / "config.json"), parse(cell.arguments)[0]
    for f in dataclasses.fields(Config):
        was, now = getattr(saved, f.name), getattr(wanted, f.name)
        longer = f.name == "steps" and was > now
        if longer or was != now and f.name not in EXTENDABLE and f.name not in ("run_dir", "resume", "budget_run"):
            flag = f"--{dashed(f.name)}"
            raise UserError(f"{cell.path}: was run with {flag} {was}, not {now}; name another study with --out")
    rows, latest, last = read_metrics(cell.path / "metrics.jsonl"), cell.path / "latest", step_name(wanted.steps)
    whole = rows and rows[-1]["step"] >= wanted.steps and (cell.path / "eval" / f"{last}.json").exists()
    return "finished" if whole and latest.exists() and latest.read_text(errors="replace").strip() == last else "broken"


def command(cell: Cell, args: argparse.Namespace, resume: bool) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
    program = [*(launcher if args.ranks > 1 else []), args.train or str(TRAIN)]
    return [sys.executable, *program, *cell.arguments, *(["--resume"] if resume else [])]


class Runner:
    """Runs cells as processes of train.py, some side by side.

    The processes hold the study's lock too: one that outlives this program keeps another from resuming its run.
    """

    def __init__(self, out: Path, args: argparse.Namespace, lock: int, states: dict[tuple[str, int], str]):
        self.out, self.args, self.lock, self.states = out, args, lock, states
        self.running: set[subprocess.Popen] = set()
        self.done, self.total, self.stopped = 0, 0, threading.Event()

    def run(self, cells: list[Cell]) -> int:
        """Runs all; returns how many failed."""
        (self.out / "logs").mkdir(exist_ok=True)
        self.total, futures = len(cells), {}
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        with ThreadPoolExecutor(self.args.jobs) as pool:
            try:
                for cell in cells:  # in order, so what a cell needs has begun before it
                    futures[cell.key] = pool.submit(self.cell, cell, futures.get(cell.needs))
                return sum(not future.result() for future in futures.values())
            finally:
                self.stopped.set()
                for process in list(self.running):
                    process.terminate()
                signal.signal(signal.SIGTERM, before)

    def cell(self, cell: Cell, needed: Future | None) -> bool:
        if self.stopped.is_set():
            return False
        log = self.out / "logs" / f"{cell.name}.txt"
        begun = time.perf_counter()
        if needed and not needed.result():
            return self.finish(cell, "left out: the cell that it needs has failed", False)
        with open(log, "a") as file:
            process = subprocess.Popen(
                command(cell, self.args, self.states[cell.key] == "broken"),
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, pass_fds=[self.lock],
            )  # fmt: skip
            self.running.add(process)
            if self.stopped.is_set():  # between the look above and the start
                process.terminate()
            code = process.wait()
            self.running.discard(process)
        if code == 0:
            return self.finish(cell, f"finished in {time.perf_counter() - begun:.0f} s", True)
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return self.finish(cell, f"failed with code {code}: {said[-1] if said else 'nothing said'} (see {log})", False)

    def finish(self, cell: Cell, text: str, success: bool) -> bool:
        self.done += 1
        if not self.stopped.is_set():
            print(f"[{self.done}/{self.total}] {cell.name} {text}", flush=True)
        return success


# gradients at a fixed policy ---------------------------------------------------------------------------------------


def align(args: argparse.Namespace, common: list[str], methods: dict[str, list[str]]) -> int:
    from prover_mini import alignment

    start, policy = of_checkpoint(Path(args.checkpoint)) if args.checkpoint else ([], "")
    base, _ = parse([*start, *common])
    configs = {name: parse([*start, *common, *flags])[0] for name, flags in methods.items()}
    alignment.check(base, configs)
    out = Path(args.out) if args.out else next_free(f"runs/alignment-{base.env}")
    if args.dry_run:
        print(f"{out}: {args.batches} batches of {base.groups_per_step} x {base.group_size}; " + ", ".join(configs))
        return 0
    begun, cpu = time.perf_counter(), time.process_time()

    def say(text: str) -> None:
        if distributed.main():
            print(text, flush=True)

    measured = alignment.measure(base, configs, args.batches, say, policy)
    geometry = alignment.Geometry(measured.plain, measured.added)
    rows = alignment.results(measured, geometry, args.weights)
    if distributed.main():
        how = {
            "command": shlex.join(sys.orig_argv),
            "policy": policy or base.model,
            "batches": args.batches,
            "wall_seconds": time.perf_counter() - begun,
            "cpu_seconds": time.process_time() - cpu,
        }
        report_alignment(out, rows, base, configs, how, geometry.products())
    return 0


def of_checkpoint(path: Path) -> tuple[list[str], str]:
    """Flags of a run's configuration, and the weights of its newest checkpoint or of the one that is named."""
    from prover_mini import checkpoint

    run = path if (path / "config.json").exists() else path.parent.parent
    if not (run / "config.json").exists():
        raise UserError(f"--checkpoint {path}: neither a run's directory nor one of its checkpoints/step_*")
    if path == run:
        found = checkpoint.latest(run)
        if not found:
            raise UserError(f"--checkpoint {path}: this run has no checkpoint yet")
        path = found[0]
    saved = dataclasses.asdict(configuration.load(run / "config.json"))
    kept = {name: value for name, value in saved.items() if name not in OWN and name != "budget_matched"}
    return [f"--{dashed(name)}={value}" for name, value in kept.items()], str(path / "model")


if __name__ == "__main__":
    sys.exit(main())
