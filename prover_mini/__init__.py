"""prover_mini: GRPO and ProVer for LLM agents, in a size that one person can read."""

import os
from importlib import metadata

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

try:
    metadata.version("kernels")
except metadata.PackageNotFoundError:
    pass
else:  # the hub's `kernels` package is installed: transformers would import this project's kernels/ in its place
    from transformers.utils import import_utils

    import_utils.is_kernels_available = lambda *arguments, **options: False
