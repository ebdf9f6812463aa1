"""Which groups fit into the file.

A group is packed on its own, so that the page unpacks only what is looked at. Where all of them are too large, those
with a verified segment come first, then those with mixed outcomes, then the rest; inside a class the draw is even over
the run, and the same every time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib

from prover_mini.report.collect import Group


def pack(group: Group) -> str:
    """The group's records and the judge's dialogue about it: JSON, deflated, base64."""
    text = json.dumps({"records": group.records, "proposal": group.proposal}, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def priority(group: Group) -> tuple:
    segments = group.segments
    mixed = len({bool(r["success"]) for r in group.records if not r.get("error")}) == 2
    place = hashlib.sha256(f"{group.step} {group.index}".encode()).digest()
    return not any(s["delta"] is not None for s in segments), not segments, not mixed, place


def keep(groups: list[Group], limit: int) -> tuple[list[str], dict[tuple[int, int], int]]:
    """Packed groups of at most `limit` characters together, and where those of (step, index) stand among them."""
    packed: list[str] = []
    where: dict[tuple[int, int], int] = {}
    left = limit
    for group in sorted(groups, key=priority):
        if left < limit / 200:  # full: packing what cannot fit takes long
            break
        text = pack(group)
        if len(text) <= left:
            where[group.step, group.index] = len(packed)
            packed.append(text)
            left -= len(text)
    return packed, where
