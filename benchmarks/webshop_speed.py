"""Speed of the WebShop engine: `python -m benchmarks.webshop_speed DIR [--scale PRODUCTS]`.

DIR holds the official files, recorded episodes and a meta.json with the reference's median latencies on the same
episodes (the layout of `python -m tests.replay webshop`). The recorded actions are played again; a step is timed with
everything that the policy gets: page, available actions, reward. Printed as ratios, reference median / our median.

`--scale` builds a catalogue of that many products of random words instead, and reports time, size and memory of the
index and the time of a query.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from envs.webshop import WebShop
from envs.webshop.catalogue import open_catalogue
from envs.webshop.shop import Shop
from tests.replay.webshop import read, read_lines

GOALS = {"search": 20, "click": 100}  # required ratios
VOCABULARY = 100_000


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the time in milliseconds."""
    start = time.perf_counter()
    result = function()
    return result, 1e3 * (time.perf_counter() - start)


def play(directory: Path) -> None:
    meta = read(directory / "meta.json")
    suites = {
        "human": WebShop(directory, human=True, seed=meta["seed"]),
        "synthetic": WebShop(directory, human=False, seed=meta["seed"]),
    }
    times: dict[str, list[float]] = defaultdict(list)
    for episode in read_lines(directory / "episodes.jsonl.gz"):
        suite = suites["synthetic" if episode["config"] == "synthetic" else "human"]
        env, task = suite.make_env(), suite.all_tasks[episode["goal_index"]]
        times["reset"].append(timed(lambda: env.reset(task))[1])
        for step in episode["steps"][1:]:
            before = env.snapshot()
            result, elapsed = timed(lambda: env.step(step["action"]))
            times[step["action"].partition("[")[0].strip() if result.valid else "invalid"].append(elapsed)
            times["snapshot and restore"].append(timed(lambda: env.restore(env.snapshot()))[1])
            if result.done:
                env.restore(before)
    print(f"{'':22}{'n':>6}{'median us':>11}{'reference us':>14}{'ratio':>8}")
    for name, values in sorted(times.items()):
        median, recorded = statistics.median(values), meta["latency_ms"].get(name, {}).get("median")
        ratio = f"{recorded * 1e3:14.0f}{recorded / median:8.0f}" if recorded else ""
        goal = f"   (at least {GOALS[name]})" if name in GOALS else ""
        print(f"{name:22}{len(values):6}{median * 1e3:11.1f}{ratio}{goal}")


def scale(count: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.environ["XDG_CACHE_HOME"] = home
        directory = Path(home) / "data"
        directory.mkdir()
        write_products(directory, count)
        catalogue, elapsed = timed(lambda: open_catalogue(directory))
        size = sum(path.stat().st_size for path in (Path(home) / "prover-mini").rglob("*") if path.is_file())
        print(f"{count:,} products: index built in {elapsed / 1e3:.0f} s, {size / 2**20:.0f} MiB on disk, {peak()}")
        again, elapsed = timed(lambda: open_catalogue(directory))
        print(f"opened again in {elapsed / 1e3:.1f} s")
        shop, draws = Shop(again, again.amounts[:, 0]), random.Random(1)
        words = vocabulary(draws)
        for length in (2, 5, 10):
            queries = [tuple(next(words) for _ in range(length)) for _ in range(100)]
            times = [timed(lambda: shop.catalogue.search(query))[1] for query in queries]
            print(f"query of {length:2} words: median {statistics.median(times):.2f} ms, maximum {max(times):.2f} ms")
        print(peak())


def peak() -> str:
    return f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB"


def vocabulary(draws: random.Random) -> Iterator[str]:
    """Endless random words, the n-th most frequent about 1 / n as often as the first."""
    names = ["".join(letters) for letters in itertools.islice(itertools.product("aeilnorst", repeat=6), VOCABULARY)]
    draws.shuffle(names)
    weights = list(itertools.accumulate(1 / (i + 10) for i in range(VOCABULARY)))
    while True:
        yield from draws.choices(names, cum_weights=weights, k=1000)


def write_products(directory: Path, count: int) -> None:
    draws = random.Random(0)
    words = vocabulary(draws)

    def text(length: int) -> str:
        return " ".join(itertools.islice(words, length))

    with (directory / "items_shuffle.json").open("w") as file:
        for row in range(count):
            product = {
                "asin": f"B{row:09d}",
                "name": text(15),
                "full_description": text(50),
                "small_description": [text(15) for _ in range(3)],
                "category": f"category {row % 5}",
                "query": text(2),
                "product_category": f"{text(1)} › {text(1)}",
                "pricing": f"${draws.uniform(1, 300):.2f}",
                "customization_options": {"size": [{"value": text(1)} for _ in range(4)]},
            }
            file.write(("[" if row == 0 else ",\n") + json.dumps(product))
        file.write("]")
    (directory / "items_ins_v2.json").write_text("{}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webshop_speed", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--scale", type=int, metavar="PRODUCTS")
    arguments = parser.parse_args()
    if arguments.scale:
        scale(arguments.scale)
    elif arguments.directory:
        play(arguments.directory)
    else:
        parser.error("give a directory of recordings, or --scale")
