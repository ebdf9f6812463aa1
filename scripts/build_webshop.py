"""Builds the embedded shop, envs/webshop/data/*.json.gz, in the official formats from the word lists below.

    python scripts/build_webshop.py [DIRECTORY [SEED]]        another seed makes another shop of the same words

Five departments of twelve kinds of things; a kind comes in five series, a series in four versions:

    title       brand, series, attribute, kind: "Zelnor Alto waterproof rain jacket"; the same for all four versions
    features    a second attribute, which the search engine indexes, and a third, which it does not
    options     one or two groups; a product offers half of a group's values
    versions    one as drawn, one with another third attribute, one with other options, one that is dearer and has
                another second attribute

So a page of results holds products that look alike, and what tells them apart stands on their own pages. Each product
has three instructions that name one to three of its attributes and some of its options. Names are short, and a value or
an attribute is one word, for the sake of small policies. Brands and series are invented; no text comes from a shop.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

OUTPUT = Path(__file__).parent.parent / "envs" / "webshop" / "data"
SEED = 7
SERIES_PER_KIND = 5
BRANDS_PER_KIND = 3
ATTRIBUTES_PER_KIND = 7
INSTRUCTIONS = 3
PRICES = [9.99 + 5 * step for step in range(20)]
USUAL_PRICES = 11  # a product costs one of the first so many, and its dearer version
DEARER = (4, 8)  # at least and at most so many steps more

BRANDS = """
    Ablixo Bostel Brindel Cavrin Dralto Fenlu Glimro Hespri Irvano Jorvel Kestri Lumrek Moxrin Nubrel Ordal Pelvo
    Quarvi Rostiq Sundro Tarvo Varnix Wexmor Yalden Zelnor
""".split()
SERIES = "Alto Brio Cresta Delta Echo Fjord Gala Helix Iris Jade Koda Lyra".split()

COLORS = "black white navy red green yellow purple orange".split()
GROUPS = {
    "color": COLORS,
    "size": "slim small medium large tall".split(),
    "width": "narrow regular wide".split(),
    "scent": "lavender coconut citrus jasmine cedar honey".split(),
    "pack": "single double family bulk".split(),
    "model": "basic lite plus pro max".split(),
    "flavor": "vanilla cinnamon maple ginger cherry lemon mango berry".split(),
}


@dataclass(frozen=True)
class Department:
    """`kinds`: the option groups of each kind of thing."""

    heading: str
    attributes: list[str]
    kinds: dict[str, tuple[str, ...]]


def kinds(groups: str, names: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(", "), tuple(groups.split()))


DEPARTMENTS = {
    "fashion": Department(
        "Clothing",
        "breathable fleece handmade lightweight padded recycled reversible seamless stretchy washable waterproof "
        "windproof".split(),
        kinds("color size", "rain jacket, yoga pants, denim shirt, swim shorts, evening dress, knit sweater")
        | kinds("color width", "running shoes, leather belt")
        | kinds("color", "beach hat, winter gloves, travel scarf, wool socks"),
    ),
    "beauty": Department(
        "Beauty & Care",
        "botanical brightening cooling exfoliating gentle hydrating hypoallergenic mineral nourishing refillable "
        "soothing vegan".split(),
        kinds("scent pack", "hand soap, lip balm, bath salts, shaving foam")
        | kinds("scent", "face cream, hair oil, body lotion, eye serum")
        | kinds("color pack", "nail polish, makeup brush")
        | kinds("color", "sleep mask, pocket mirror"),
    ),
    "electronics": Department(
        "Electronics",
        "adjustable bluetooth compact dimmable foldable magnetic portable rechargeable shockproof silent solar "
        "wireless".split(),
        kinds("color model", "game controller, voice recorder, ear buds, power bank, phone charger")
        | kinds("model", "memory card, smart plug")
        | kinds("color", "desk lamp, wall clock, shower speaker, laptop stand, camera tripod"),
    ),
    "garden": Department(
        "Home & Garden",
        "absorbent bamboo ceramic expandable frostproof insulated nonslip reusable rustproof stackable sturdy "
        "woven".split(),
        kinds("color size", "flower pot, storage basket, throw pillow, picnic blanket, window curtain")
        | kinds("color", "kitchen towel, coat rack, bird feeder, door mat")
        | kinds("size", "garden hose, fire pit, cutting board"),
    ),
    "grocery": Department(
        "Grocery",
        "crunchy fermented glazed keto kosher organic roasted smoked spicy sprouted unsweetened wholegrain".split(),
        kinds("flavor pack", "herbal tea, ground coffee, trail mix, fruit snacks, protein bars, jelly beans")
        | kinds("flavor", "peanut butter, oat granola, pancake syrup, rice crackers")
        | kinds("pack", "tomato soup, corn chips"),
    ),
}

OPENINGS = ("i need", "i want", "i am looking for", "find me", "show me", "please get me", "i would like to buy")
WISHES = (
    "{opening} {attributes} {kind}{options}",
    "{opening} {kind} that should be {attributes}{options}",
    "{opening} {kind}{options}, and it must be {attributes}",
)


@dataclass(frozen=True)
class Draft:
    """A product before it has an asin. `attributes`: in the title, in the first bullet, in the second."""

    department: str
    kind: str
    name: str
    attributes: tuple[str, str, str]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    price: int

    @property
    def title(self) -> str:
        return f"{self.name} {self.attributes[0]} {self.kind}"


def drafts(draws: random.Random) -> Iterator[Draft]:
    """All versions of all series of all kinds."""
    for name, department in DEPARTMENTS.items():
        for kind, groups in department.kinds.items():
            pool = draws.sample(department.attributes, ATTRIBUTES_PER_KIND)
            brands = draws.sample(BRANDS, BRANDS_PER_KIND)
            firsts, series = draws.sample(pool, SERIES_PER_KIND), draws.sample(SERIES, SERIES_PER_KIND)
            for first, word in zip(firsts, series):
                others = [attribute for attribute in pool if attribute != first]
                yield from versions(draws, name, kind, f"{draws.choice(brands)} {word}", first, others, groups)


def versions(
    draws: random.Random, department: str, kind: str, name: str, first: str, others: list[str], groups: tuple[str, ...]
) -> Iterator[Draft]:
    second, third, other_second, other_third = draws.sample(others, 4)
    options = changed = offered(draws, groups)
    while changed == options:
        changed = offered(draws, groups)
    price = draws.randrange(USUAL_PRICES)
    base = Draft(department, kind, name, (first, second, third), options, price)
    yield base
    yield replace(base, attributes=(first, second, other_third))
    yield replace(base, options=changed)
    yield replace(base, attributes=(first, other_second, third), price=price + draws.randint(*DEARER))


def offered(draws: random.Random, groups: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Half of each group's values, rounded up, in the group's order."""
    chosen = []
    for group in groups:
        values = GROUPS[group]
        some = draws.sample(values, (len(values) + 1) // 2)
        chosen.append((group, tuple(value for value in values if value in some)))
    return tuple(chosen)


def product_entry(draft: Draft, asin: str) -> dict:
    heading = DEPARTMENTS[draft.department].heading
    return {
        "asin": asin,
        "name": draft.title,
        "category": draft.department,
        "query": draft.kind,
        "product_category": f"{heading} › {draft.kind.title()}",
        "pricing": f"${PRICES[draft.price]:.2f}",
        "full_description": f"{draft.attributes[0].capitalize()} {draft.kind} by {draft.name.split()[0]}.",
        "small_description": list(draft.attributes[1:]),
        "customization_options": {
            group: [{"value": value, "image": None} for value in values] for group, values in draft.options
        },
    }


def attribute_entry(draft: Draft) -> dict:
    wanted = draft.attributes[:2]
    return {
        "attributes": list(draft.attributes),
        "instruction": f"Find me {', '.join(wanted)} {draft.kind}",
        "instruction_attributes": list(wanted),
    }


def instruction_entries(draws: random.Random, draft: Draft, asin: str) -> list[dict]:
    """Different wishes for one product, two of them with all its options. The third attribute is only asked for beside
    the first: no search finds it alone."""
    first, second, third = draft.attributes
    wishes = [(first,), (second,), (first, second), (first, third), (first, second, third)]
    choices = [[(), *((group, value) for value in values)] for group, values in draft.options]
    combinations = [
        (attributes, options)
        for attributes, options in itertools.product(wishes, itertools.product(*choices))
        if any(options)
    ]
    wanted = draws.sample([combination for combination in combinations if all(combination[1])], 2)
    wanted += draws.sample([combination for combination in combinations if combination not in wanted], INSTRUCTIONS - 2)
    return [wish_entry(draws, draft, asin, *combination) for combination in wanted]


def wish_entry(
    draws: random.Random, draft: Draft, asin: str, attributes: tuple[str, ...], options: tuple[tuple[str, str], ...]
) -> dict:
    options = [option for option in options if option]
    values, pairs = [value for _, value in options], [f"{group} {value}" for group, value in options]
    chosen = draws.choice((" in " + listed(values), ", " + listed(pairs)))
    text = draws.choice(WISHES).format(
        opening=draws.choice(OPENINGS),
        attributes=listed(draws.sample(attributes, len(attributes))),
        kind=draft.kind,
        options=chosen,
    )
    return {
        "asin": asin,
        "instruction": text,
        "attributes": list(draft.attributes),
        "options": [f"{group}: {value}" for group, value in options],
        "instruction_attributes": list(attributes),
        "instruction_options": values,
    }


def listed(words: list[str]) -> str:
    """The words as "a", "a and b" or "a, b and c"."""
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def new_asins(draws: random.Random, count: int) -> list[str]:
    asins: dict[str, None] = {}
    while len(asins) < count:
        asins["B0" + "".join(draws.choices(string.ascii_uppercase + string.digits, k=8))] = None
    return list(asins)


def catalogue(seed: int) -> dict[str, object]:
    """The contents of the three official files, by file name."""
    draws = random.Random(seed)
    products = list(drafts(draws))
    draws.shuffle(products)
    made = list(zip(products, new_asins(draws, len(products))))
    return {
        "items_shuffle.json": [product_entry(draft, asin) for draft, asin in made],
        "items_ins_v2.json": {asin: attribute_entry(draft) for draft, asin in made},
        "items_human_ins.json": {asin: instruction_entries(draws, draft, asin) for draft, asin in made},
    }


def write(directory: Path, seed: int) -> list[Path]:
    """Packs the files into an existing directory; the same bytes at every run."""
    paths = []
    for name, content in catalogue(seed).items():
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        paths.append(directory / f"{name}.gz")
        paths[-1].write_bytes(gzip.compress(text.encode(), mtime=0))
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds the embedded shop.")
    parser.add_argument("directory", nargs="?", type=Path, default=OUTPUT)
    parser.add_argument("seed", nargs="?", type=int, default=SEED)
    arguments = parser.parse_args()
    for path in write(arguments.directory, arguments.seed):
        print(f"{path} {path.stat().st_size / 1e3:.0f} kB")
