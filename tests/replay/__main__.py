"""`python -m tests.replay NAME DIR [options]`: runs the replay module of that name over a directory of recordings.

A replay is a module of this package with `main(arguments) -> int`: exit status 0 only when nothing differs.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from prover_mini.errors import UserError

NAMES = [name for name in ("alfworld", "oracles", "webshop") if (Path(__file__).parent / f"{name}.py").exists()]


def main() -> int:
    name, arguments = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if name not in NAMES:
        print(f"usage: python -m tests.replay {{{','.join(NAMES)}}} DIR", file=sys.stderr)
        return 2
    try:
        return importlib.import_module(f"tests.replay.{name}").main(arguments)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
