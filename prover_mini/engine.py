"""Rollout engine: a fixed number of slots, each an independent token stream with its exact model state.

A trainer knows where its rollouts branch, so forks and snapshots are explicit here: no prefix cache, no block size,
exact at any token. What a slot holds after n tokens: K/V of n tokens per attention layer, convolution window and
recurrent state per Gated DeltaNet layer, and the hidden state from which the next token is sampled.

K/V is only ever appended to, so all turn boundaries of one rollout can share one copy of it (`seal`); the other
states are overwritten at each token, so a boundary that may be returned to needs a clone of them then (`mark`).
Every state belongs to one version of the weights and cannot be used after `weights_changed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from kernels.launch import fused
from prover_mini.decode import Decoder, upload
from prover_mini.errors import UserError, first_line
from prover_mini.forward import Chunk, check_supported, forward, make_memory, make_tables, place
from prover_mini.sampling import draw

BATCH_TOKENS = 8192  # padded tokens in one forward of `extend`, which bounds its activations
BUSY_SHARE = 0.75  # above it, decoding a span of slots with idle rows is cheaper than gathering the busy rows


class StaleState(RuntimeError):
    """A slot or state was computed with weights that have changed since."""


@dataclass(frozen=True)
class Mark:
    """A moment of a slot, without its K/V."""

    weight_version: int
    length: int
    conv_LWC: Tensor
    recurrent_LHKV: Tensor
    hidden_D: Tensor

    @property
    def nbytes(self) -> int:
        return self.conv_LWC.nbytes + self.recurrent_LHKV.nbytes + self.hidden_D.nbytes


@dataclass(frozen=True)
class State:
    """A moment of a slot, complete. The K/V is shared by the states sealed together; `mark.length` of it is valid."""

    mark: Mark
    key_AJTE: Tensor
    value_AJTE: Tensor

    @property
    def weight_version(self) -> int:
        return self.mark.weight_version

    @property
    def length(self) -> int:
        return self.mark.length

    @property
    def nbytes(self) -> int:
        """Bytes that this handle keeps alive, the shared K/V included."""
        return self.mark.nbytes + self.key_AJTE.nbytes + self.value_AJTE.nbytes


class Engine:
    """S slots of `max_tokens` tokens on the weights of `model`, which stay where they are and are read live.

    Build it while the model's weights have the dtype and device that rollouts use. Rows are slot numbers, distinct
    within a call (except the sources of `fork`). Errors: `UserError` for a model that is not supported, `ValueError`
    for a chunk that does not fit or an empty slot to sample from, `StaleState` for weights changed in between,
    `FloatingPointError` for logits that are not finite.

    Attributes: lengths, tokens consumed per slot; weight_version; tokens_forwarded, real tokens so far.
    """

    @torch.inference_mode()
    def __init__(self, model: PreTrainedModel, slots: int, max_tokens: int):
        check_supported(model)
        try:
            self._memory = make_memory(model, slots, max_tokens)
        except RuntimeError as error:
            sizes = f"--slots {slots} x --max-context-tokens {max_tokens}"
            raise UserError(f"{sizes}: lower one of them ({first_line(error)})") from None
        self.model = model
        self.slots = slots
        self.max_tokens = max_tokens
        self.lengths = [0] * slots
        self.weight_version = 0
        self.tokens_forwarded = 0
        self._stale: set[int] = set()
        self._tables = make_tables(model, self._memory)
        self._range = torch.arange(max_tokens + 1, device=self.device)
        self._decoder = None  # a CPU is faster in the shapes of the moment
        if fused(self._memory.hidden_SD):
            self._decoder = Decoder(model, self._memory, self._tables, graphs=self.device.type == "cuda")

    @property
    def device(self) -> torch.device:
        return self._memory.hidden_SD.device

    @torch.inference_mode()
    def clear(self, rows: list[int]) -> None:
        """Empties slots."""
        index = self._index(rows)
        self._memory.conv_LSWC[:, index] = 0
        self._memory.recurrent_LSHKV[:, index] = 0
        self._stale.difference_update(rows)
        for row in rows:
            self.lengths[row] = 0

    @torch.inference_mode()
    def extend(self, rows: list[int], chunks: list[list[int]]) -> None:
        """Consumes chunks[i] in slot rows[i]. Lengths may differ; an empty chunk changes nothing."""
        self._check(rows, list(map(len, chunks)))
        for batch in _batches([len(chunk) for chunk in chunks]):
            batch.sort(key=rows.__getitem__)
            batch_rows, batch_chunks = [rows[i] for i in batch], [chunks[i] for i in batch]
            counts = [len(chunk) for chunk in batch_chunks]
            longest = max(counts)
            ids_BT = torch.tensor([chunk + [0] * (longest - len(chunk)) for chunk in batch_chunks])
            self._forward(batch_rows, ids_BT.to(self.device), counts if min(counts) < longest else None)
            self._advance(batch_rows, counts)

    @torch.inference_mode()
    def decode(self, rows: list[int], tokens: list[int]) -> None:
        """Consumes one token per listed row."""
        self._check(rows, [1] * len(rows))
        if not rows:
            return
        if self._decoder:
            self._decoder(rows, tokens, self.lengths)
        else:
            self._decode(rows, tokens)
        self._advance(rows, [1] * len(rows))

    @torch.inference_mode()
    def sample(self, rows: list[int], uniforms: np.ndarray, temperature: float) -> tuple[list[int], list[float]]:
        """Draws the next token of each row by inverting its distribution function at the row's own uniform.

        Args:
            uniforms: [n] float64 in [0, 1).
            temperature: of the logits; 0 takes the most likely token.
        Returns:
            tokens, and their log-probs under the full distribution at that temperature (at 1 when it is 0).
        """
        self._check(rows, [0] * len(rows))
        if empty := [row for row in rows if not self.lengths[row]]:
            raise ValueError(f"slot {empty[0]} is empty: extend it before sampling from it")
        if not rows:
            return [], []
        uniforms_B1 = upload(torch.from_numpy(uniforms), self.device)[:, None]
        logits_BV = self.model.lm_head(self._memory.hidden_SD[self._index(rows)]).float()
        tokens_B1, logprobs_B1 = draw(logits_BV, uniforms_B1, temperature)
        # one wait for the device; float64 holds every token number exactly
        tokens, logprobs = torch.cat((tokens_B1, logprobs_B1), 1).T.tolist()
        if not math.isfinite(sum(logprobs)):
            bad = next(row for row, logprob in zip(rows, logprobs) if not math.isfinite(logprob))
            raise FloatingPointError(f"slot {bad}: the model's logits are not finite; lower --lr, or start anew")
        return list(map(int, tokens)), logprobs

    @torch.inference_mode()
    def fork(self, sources: list[int], targets: list[int]) -> None:
        """Makes slot targets[i] an independent copy of slot sources[i]."""
        self._check(sources, [0] * len(sources))
        if set(sources) & set(targets) or len(set(targets)) < len(targets):
            raise ValueError("the targets of a fork must be distinct, and none of them a source")
        source, target, memory = self._index(sources), self._index(targets), self._memory
        longest = max((self.lengths[row] for row in sources), default=0)
        for buffer_ASJTE in (memory.key_ASJTE, memory.value_ASJTE):
            for layer_SJTE in buffer_ASJTE:
                layer_SJTE[target, :, :longest] = layer_SJTE[source, :, :longest]
        for buffer_LS in (memory.conv_LSWC, memory.recurrent_LSHKV):
            buffer_LS[:, target] = buffer_LS[:, source]
        memory.hidden_SD[target] = memory.hidden_SD[source]
        self._stale.difference_update(targets)
        for old, new in zip(sources, targets, strict=True):
            self.lengths[new] = self.lengths[old]

    @torch.inference_mode()
    def mark(self, rows: list[int]) -> list[Mark]:
        """Remembers the current moment of each row, at the cost of its states without K/V."""
        self._check(rows, [0] * len(rows))
        memory = self._memory
        return [
            Mark(self.weight_version, self.lengths[row], memory.conv_LSWC[:, row].clone(),
                 memory.recurrent_LSHKV[:, row].clone(), memory.hidden_SD[row].clone())
            for row in rows
        ]

    @torch.inference_mode()
    def seal(self, row: int, marks: list[Mark]) -> list[State]:
        """Completes marks of what the slot holds now (its own, or its fork source's) with one copy of its K/V."""
        self._check([row], [0])
        longest = max((mark.length for mark in marks), default=0)
        if any(mark.weight_version != self.weight_version for mark in marks):
            raise StaleState("a mark was taken before the weights changed")
        if longest > self.lengths[row]:
            raise ValueError(f"a mark at {longest} tokens is not of slot {row}, which holds {self.lengths[row]}")
        memory = self._memory
        key_AJTE = memory.key_ASJTE[:, row, :, :longest].clone()
        value_AJTE = memory.value_ASJTE[:, row, :, :longest].clone()
        return [State(mark, key_AJTE, value_AJTE) for mark in marks]

    def snapshot(self, row: int) -> State:
        """The current moment of a slot."""
        return self.seal(row, self.mark([row]))[0]

    @torch.inference_mode()
    def restore(self, states: list[State], rows: list[int]) -> None:
        """Puts states[i] into slot rows[i]; a state may be restored any number of times."""
        if any(state.weight_version != self.weight_version for state in states):
            raise StaleState("a state was taken before the weights changed: it must be computed anew")
        memory = self._memory
        for state, row in zip(states, rows, strict=True):
            memory.key_ASJTE[:, row, :, : state.length] = state.key_AJTE[:, :, : state.length]
            memory.value_ASJTE[:, row, :, : state.length] = state.value_AJTE[:, :, : state.length]
            memory.conv_LSWC[:, row] = state.mark.conv_LWC
            memory.recurrent_LSHKV[:, row] = state.mark.recurrent_LHKV
            memory.hidden_SD[row] = state.mark.hidden_D
            self.lengths[row] = state.length
        self._stale.difference_update(rows)

    def weights_changed(self) -> None:
        """To be called by whoever updates the weights: slots in use, marks and states from before become unusable."""
        self.weight_version += 1
        self._stale.update(row for row, length in enumerate(self.lengths) if length)

    def _check(self, rows: list[int], counts: list[int]) -> None:
        if not self._stale.isdisjoint(rows):
            row = min(self._stale.intersection(rows))
            raise StaleState(f"slot {row} was computed before the weights changed: clear or restore it first")
        if len(set(rows)) < len(rows) and any(counts):
            raise ValueError("rows must be distinct")
        for row, count in zip(rows, counts, strict=True):
            if self.lengths[row] + count > self.max_tokens:
                raise ValueError(f"slot {row} holds {self.lengths[row]} tokens: {count} more exceed {self.max_tokens}")

    def _index(self, rows: list[int]) -> slice | Tensor:
        if rows and rows == list(range(rows[0], rows[0] + len(rows))):
            return slice(rows[0], rows[0] + len(rows))
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def _decode(self, rows: list[int], tokens: list[int]) -> None:
        ids_B1 = torch.tensor(tokens, device=self.device)[:, None]
        first, span = min(rows), max(rows) - min(rows) + 1
        if len(rows) >= BUSY_SHARE * span:
            counts = [0] * span
            for row in rows:
                counts[row - first] = 1
            places = torch.tensor(rows, device=self.device) - first
            ids_B1 = ids_B1.new_zeros(span, 1).index_copy_(0, places, ids_B1)
            self._forward(list(range(first, first + span)), ids_B1, counts if len(rows) < span else None)
        else:
            self._forward(rows, ids_B1, None)

    def _forward(self, rows: list[int], ids_BT: Tensor, counts: list[int] | None) -> None:
        """Runs a chunk; `counts` None means that every token is real."""
        T, index = ids_BT.shape[1], self._index(rows)
        starts = [self.lengths[row] for row in rows]
        positions_BT = torch.tensor(starts, device=self.device)[:, None] + self._range[:T]
        if max(starts) + T > self.max_tokens:  # only pads reach beyond
            positions_BT.clamp_(max=self.max_tokens)
        keys, mask = 0, None
        if any(starts):
            keys = max(map(sum, zip(starts, counts or [T] * len(rows))))
            if T > 1 or min(starts) + 1 < keys:
                mask = torch.zeros(len(rows), 1, T, keys, dtype=self._memory.key_ASJTE.dtype, device=self.device)
                mask.masked_fill_(self._range[:keys] > positions_BT[:, None, :, None], -torch.inf)
        counts_B = None if counts is None else torch.tensor(counts, device=self.device)
        where = place(self._tables, index, positions_BT)
        chunk = Chunk(ids_BT, index, counts_B, **where, keys=keys, mask_B1TN=mask)
        forward(self.model, self._memory, chunk)

    def _advance(self, rows: list[int], counts: list[int]) -> None:
        for row, count in zip(rows, counts):
            self.lengths[row] += count
        self.tokens_forwarded += sum(counts)


def _batches(counts: list[int]) -> Iterator[list[int]]:
    """Groups chunks of similar length: indices of non-empty chunks, at least half of each batch being real tokens."""
    batch: list[int] = []
    for i in sorted((i for i, count in enumerate(counts) if count), key=lambda i: -counts[i]):
        if batch and (2 * counts[i] < counts[batch[0]] or (len(batch) + 1) * counts[batch[0]] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@torch.no_grad()
def self_check(engine: Engine) -> None:
    """Compares the engine with the model's own forward on a few random ids; empties the slots it uses.

    Raises `UserError` when the log-probs differ by more than rounding explains (root mean square over the vocabulary,
    relative to their standard deviation). Call it at start-up, with slots 0 and 1 free.
    """
    tolerance = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}[engine._memory.hidden_SD.dtype]
    counted, model = engine.tokens_forwarded, engine.model
    rng = np.random.default_rng(0)
    texts = [rng.integers(model.config.vocab_size, size=size).tolist() for size in (23, 9)]
    texts = [text[: engine.max_tokens] for text in texts[: engine.slots]]
    rows = list(range(len(texts)))
    want_BV = torch.stack([model(torch.tensor([text], device=engine.device)).logits[0, -1] for text in texts])
    for cuts in ([0] * len(rows), [len(text) // 3 for text in texts]):
        engine.clear(rows)
        engine.extend(rows, [text[:cut] for text, cut in zip(texts, cuts)])
        engine.extend(rows, [text[cut:-1] for text, cut in zip(texts, cuts)])
        engine.decode(rows, [text[-1] for text in texts])
        got_BV = model.lm_head(engine._memory.hidden_SD[: len(rows)])
        want, got = want_BV.float().log_softmax(-1), got_BV.float().log_softmax(-1)
        error = ((got - want).square().mean().sqrt() / want.std()).item()
        if not error <= tolerance:
            raise UserError(
                f"{type(model).__name__}: the rollout engine's log-probs differ from the model's own by {error:.2g} "
                f"(tolerance {tolerance:g}): install the transformers version in requirements.txt"
            )
    engine.clear(rows)
    engine.tokens_forwarded = counted
