"""One token for any set of slots in a few fixed shapes, which a GPU replays as CUDA graphs.

A decode step of a small model is hundreds of short kernels: launched one by one from Python they cost more than they
compute. Its shapes are therefore fixed but for the number of rows, which is rounded up to a power of two: a step reads
all weights whatever the number of rows, and rows beyond the asked ones are slots that idle, whose states and K/V the
kernels do not read. Lengths, slots and tokens are values in one small tensor, not shapes. So one graph per power of two
serves every step, and the K/V needs no pages and no buckets.

A graph holds addresses. Slots never move; weights do not when an optimizer writes them in place, but do when a sharded
model gathers them anew: their addresses are compared at every step, and graphs are made again where one has changed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from prover_mini.forward import Chunk, Memory, Tables, forward, place


class Decoder:
    """Decode steps on the slots of `memory`; `graphs` replays them, which needs a GPU.

    Attributes: captures, how many graphs were made so far.
    """

    def __init__(self, model: PreTrainedModel, memory: Memory, tables: Tables, graphs: bool):
        self.model, self.memory, self.tables, self.graphs = model, memory, tables, graphs
        self.slots = len(memory.hidden_SD)
        self.captures = 0
        self._input = torch.zeros(4 * self.slots, dtype=torch.long, device=memory.hidden_SD.device)
        self._captured: dict[int, torch.cuda.CUDAGraph] = {}
        self._captured_at: list[int] = []
        self._weights = [
            (module._parameters, name)
            for module in model.model.modules()
            for name, weight in module._parameters.items()
            if weight is not None
        ]

    def __call__(self, rows: list[int], tokens: list[int], lengths: list[int]) -> None:
        """Consumes tokens[i] in slot rows[i]; `lengths` are what all slots hold before it."""
        size = self.size(len(rows))
        busy = set(rows)
        idle = [slot for slot in range(self.slots) if slot not in busy][: size - len(rows)]
        slots, pads = rows + idle, [0] * len(idle)
        values = torch.tensor([tokens + pads, slots, [lengths[slot] for slot in slots], [1] * len(rows) + pads])
        if self.graphs:
            self._make_graph(size, values)
        self._write(values)
        if self.graphs:
            self._captured[size].replay()
        else:
            self.step(size)

    def size(self, rows: int) -> int:
        """Rows of the step that is run for so many."""
        return min(1 << (rows - 1).bit_length(), self.slots)

    def step(self, size: int) -> None:
        """The step itself, on the values of its input; no shape in it depends on them."""
        ids_B, rows_B, starts_B, counts_B = self._input[: 4 * size].view(4, size)
        lengths_B = (starts_B + 1) * counts_B
        where = place(self.tables, rows_B, starts_B[:, None])
        chunk = Chunk(ids_B[:, None], rows_B, counts_B, **where, lengths_B=lengths_B)
        forward(self.model, self.memory, chunk)

    def _write(self, values: Tensor) -> None:
        self._input[: values.numel()].copy_(upload(values.flatten(), self._input.device))

    def _make_graph(self, size: int, values: Tensor) -> None:
        """Sees to it that there is a valid graph of this size. While it is made, the rows of `values` idle."""
        addresses = [weights[name].data_ptr() for weights, name in self._weights]
        if addresses != self._captured_at:
            self._captured.clear()
        if size not in self._captured:
            asleep = values.clone()
            asleep[3] = 0
            self._write(asleep)
            pool = next((graph.pool() for graph in self._captured.values()), None)
            self._captured[size] = capture(lambda: self.step(size), pool)
            self._captured_at = addresses
            self.captures += 1


def upload(values: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, for which nothing that the device still does is waited for."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def capture(run: Callable[[], None], pool) -> torch.cuda.CUDAGraph:
    """The graph of what `run` launches. It is called twice, and first executed, which compiles its kernels.

    Graphs that share a memory pool must not run at the same time.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may use the GPU
        run()
    return graph
