"""The official WebShop files: products, their attributes, and instructions written by people.

    items_shuffle.json     [{"asin", "name", "category", "query", "product_category", "pricing", "full_description",
                             "small_description": [bullet, ..], "customization_options": {group: [{"value"}, ..]}}, ..]
    items_ins_v2.json      {asin: {"attributes": [..], "instruction": text, "instruction_attributes": [..]}}
    items_human_ins.json   {asin: [{"instruction", "instruction_attributes": [..], "instruction_options": [..]}, ..]}

The first two also exist in a small version, with `_1000` before the suffix. Any of them may be packed, as .json.gz.
The products file may have gigabytes: it is decoded one product at a time. A product that breaks the format is skipped
and counted, never guessed at.

Source: Yao et al., "WebShop: Towards Scalable Real-World Web Interaction with Grounded Language Agents", 2022.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from prover_mini.errors import UserError

CHUNK = 1 << 20  # characters read at once
MAX_PRODUCT = 1 << 20  # characters of one product's texts: a longer one is broken, no page could show it
MAX_PENDING = 1 << 27  # characters of one JSON value, after which the file is taken for broken
MAX_CHOICES = 10**6  # combinations of one product's options
LONGEST_ASIN = 10
DEFAULT_PRICE = 100.0
NO_ATTRIBUTES = ("DUMMY_ATTR",)
NO_NUMBER = re.compile(r"[^\d.]")
SPACE = re.compile(r"\s*")
ENDS = ",] \t\r\n"
UNREADABLE = (ValueError, RecursionError, OSError, EOFError, zlib.error)


@dataclass(frozen=True)
class Files:
    """Paths of one data set; `human` is None where the directory has no instructions by people."""

    products: Path
    attributes: Path
    human: Path | None


@dataclass(frozen=True)
class Product:
    """`amounts`: one price, or two that a price is drawn between. `options`: groups in page order with their values.

    `instruction` and `instruction_attributes` are those of the generated goals, empty where there are none.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    query: str
    product_category: str
    amounts: tuple[float, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    instruction: str = ""
    instruction_attributes: tuple[str, ...] = ()

    @property
    def price_text(self) -> str:
        return " to ".join(f"${amount}" for amount in self.amounts)

    @property
    def search_text(self) -> str:
        """What the search engine indexes."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        return " ".join((self.title, self.description, *self.bullets[:1], options)).lower()


class Broken(Exception):
    """A product that breaks the format; the message is the reason under which it is counted."""


def find_files(directory: Path) -> Files:
    """The files of a directory: the full data where both versions are there. Raises UserError."""
    if not directory.is_dir():
        raise UserError(f"--data {directory}: no such directory")
    for size in ("", "_1000"):
        products, attributes = (_find(directory, f"{name}{size}") for name in ("items_shuffle", "items_ins_v2"))
        if products and attributes:
            return Files(products, attributes, _find(directory, "items_human_ins"))
    raise UserError(f"--data {directory}: needs items_shuffle.json and items_ins_v2.json, or both with _1000")


def _find(directory: Path, name: str) -> Path | None:
    paths = (directory / f"{name}{suffix}" for suffix in (".json", ".json.gz"))
    return next((path for path in paths if path.is_file()), None)


def unpacked(path: Path, stream: BinaryIO) -> BinaryIO:
    """The content of the file at `path`, whose bytes `stream` reads."""
    return gzip.GzipFile(fileobj=stream) if path.suffix == ".gz" else stream


def read_object(path: Path) -> dict[str, Any]:
    """A whole JSON file that holds one object. Raises UserError."""
    try:
        with path.open("rb") as stream:
            data = json.loads(unpacked(path, stream).read().decode())
    except UNREADABLE as error:
        raise UserError(f"{path} cannot be read as JSON: {_one_line(error)}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: must hold one JSON object with an entry per product")
    return data


def read_products(path: Path, stream: BinaryIO, attributes: dict[str, Any], skipped: Counter[str]) -> Iterator[Product]:
    """The products that the engine keeps, in file order; the others are counted by reason. Raises UserError."""
    seen: set[str] = set()
    for row in read_array(path, stream):
        try:
            product = clean(row, attributes, seen)
        except Broken as reason:
            skipped[str(reason)] += 1
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            skipped["missing or malformed fields"] += 1
        else:
            seen.add(product.asin)
            yield product


def read_array(path: Path, stream: BinaryIO) -> Iterator[Any]:
    """The values of a JSON array, decoded one at a time. Raises UserError."""
    try:
        yield from _values(io.TextIOWrapper(unpacked(path, stream), encoding="utf-8-sig"))
    except UNREADABLE as error:
        raise UserError(f"{path} is cut or no JSON array of products: {_one_line(error)}") from None


def _values(text: io.TextIOBase) -> Iterator[Any]:
    decode = json.JSONDecoder().raw_decode
    buffer, place, separator, chunk = "", 0, "[", CHUNK
    while True:
        try:
            start = SPACE.match(buffer, place).end()
            if buffer[start] == "]" and separator == ",":
                return
            if buffer[start] != separator:
                raise ValueError(f"there is no {separator!r} before product {buffer[start : start + 20]!r}")
            start = SPACE.match(buffer, start + 1).end()
            if buffer[start] == "]" and separator == "[":
                return
            value, end = decode(buffer, start)
            if buffer[end] not in ENDS:
                raise IndexError("a number that the buffer cuts")
        except (IndexError, json.JSONDecodeError) as error:
            more = text.read(chunk)
            if not more or len(buffer) > MAX_PENDING:
                raise ValueError(f"what follows {buffer[place : place + 40]!r} does not end") from error
            buffer, place, chunk = buffer[place:] + more, 0, 2 * chunk
        else:
            yield value
            place, separator, chunk = end, ",", CHUNK


def clean(row: dict[str, Any], attributes: dict[str, Any], seen: set[str]) -> Product:
    """The product of one entry, as the engine keeps it.

    Raises Broken, or what reading a malformed entry raises: KeyError, TypeError, ValueError, AttributeError.
    """
    asin = _text(row["asin"])
    if asin == "nan" or len(asin) > LONGEST_ASIN:
        raise Broken("no valid asin")
    if asin in seen:
        raise Broken("asin seen before")
    bullets = row["small_description"]
    extra = attributes.get(asin, {})
    product = Product(
        asin,
        _text(row["name"]),
        _text(row["full_description"]),
        tuple(map(_text, bullets)) if isinstance(bullets, list) else (_text(bullets),),
        _text(row["category"]),
        _text(row["query"]).lower().strip(),
        _text(row["product_category"]),
        parse_amounts(row.get("pricing")),
        parse_options(row.get("customization_options")),
        tuple(map(_text, extra["attributes"])) if "attributes" in extra else NO_ATTRIBUTES,
        _text(extra.get("instruction") or ""),
        tuple(map(_text, extra.get("instruction_attributes") or ())),
    )
    if len(product.search_text) + sum(map(len, product.bullets)) > MAX_PRODUCT:
        raise Broken("texts too long")
    if math.prod(len(values) for _, values in product.options) > MAX_CHOICES:
        raise Broken("too many combinations of options")
    return product


def parse_amounts(pricing: str | None) -> tuple[float, ...]:
    """The first two amounts of a price text such as "$5.15$10.11". Raises ValueError for a malformed amount."""
    amounts = [float(NO_NUMBER.sub("", part)) for part in _text(pricing or "").split("$")[1:]]
    if not all(map(math.isfinite, amounts)):
        raise ValueError("a price must be finite")
    return tuple(amounts[:2]) or (DEFAULT_PRICE,)


def parse_options(groups: dict[str, Any] | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Option groups by lower-cased name; of two equal names the later values stand in the earlier place."""
    options = {}
    for name, choices in (groups or {}).items():
        if choices is not None:
            options[name.lower()] = tuple(choice["value"].strip().replace("/", " | ").lower() for choice in choices)
    return tuple(options.items())


def encode(product: Product) -> str:
    return json.dumps(list(vars(product).values()), ensure_ascii=False)


def decode(text: str) -> Product:
    return Product(*map(_frozen, json.loads(text)))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("must be a text")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
