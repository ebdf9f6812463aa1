"""Other shops of the generator under the names of the embedded one: what the embedded policy learns to shop in.

A product of such a shop has an asin of the embedded shop, dealt at random, and nothing else of the product that bears
it there. So every asin is seen, and nothing about a product of the embedded shop can be learned.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from unittest import mock

from envs.webshop import EMBEDDED, WebShop
from scripts.build_webshop import SEED, catalogue


@lru_cache(maxsize=1)
def asins() -> tuple[str, ...]:
    """Those of the embedded shop, sorted."""
    return tuple(sorted(json.loads(gzip.decompress((EMBEDDED / "items_ins_v2.json.gz").read_bytes()))))


def renamed(seed: int) -> dict[str, object]:
    """The three official files of another shop, its asins those of the embedded one."""
    if seed == SEED:
        raise ValueError(f"seed {seed} makes the embedded shop itself")
    files = catalogue(seed)
    dealt = random.Random(seed).sample(asins(), len(asins()))
    new_name = dict(zip(files["items_ins_v2.json"], dealt))
    files["items_shuffle.json"] = [
        {**product, "asin": new_name[product["asin"]]} for product in files["items_shuffle.json"]
    ]
    for name in ("items_ins_v2.json", "items_human_ins.json"):
        files[name] = {new_name[asin]: entry for asin, entry in files[name].items()}
    for asin, wishes in files["items_human_ins.json"].items():
        for wish in wishes:
            wish["asin"] = asin
    return files


@contextmanager
def other_shop(seed: int) -> Iterator[WebShop]:
    """The shop of `renamed`, to be played inside the context; it leaves nothing in the cache."""
    with tempfile.TemporaryDirectory() as directory, mock.patch.dict(os.environ, XDG_CACHE_HOME=directory):
        for name, content in renamed(seed).items():
            Path(directory, name).write_text(json.dumps(content, ensure_ascii=False))
        yield WebShop(Path(directory), admissible=False)
