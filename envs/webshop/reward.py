"""How well a purchase meets a goal.

    reward = r_type * (attributes met + options met + [price <= limit]) / (attributes + options + 1)

An attribute is met if it is like one of the product's attributes (token set ratio above 85), or stands in the title,
the bullets or the description. An option is met if it is like a chosen one, after both are reduced to a basic colour
where they contain one. r_type compares the products' kinds:

    title_score = distinct nouns of the goal's name that the product's name has too / nouns of the goal's name
                  (repeats counted below only; 0.2 where the goal's name has none)
    r_type = 0 if title_score = 0, .1 if title_score < .1, else 1 if the queries are equal, the categories share two
             parts or title_score > .2, else .5

Source: web_agent_site/engine/goal.py and normalize.py of WebShop (Yao et al., 2022; MIT licence), whose ratio is that
of the thefuzz package: RapidFuzz's, rounded to an integer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz import fuzz, utils

from envs.webshop.files import Product
from envs.webshop.goals import Goal, Option
from envs.webshop.nouns import NounTagger

ALIKE = 85
LATIN_1 = dict.fromkeys(range(0x80, 0x100))
COLOURS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
    ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
""".split()


@dataclass(frozen=True)
class Reward:
    """`total` in [0, 1] and its parts; `r_option` is None for a goal without options."""

    total: float
    r_type: float
    query_match: bool
    category_match: bool
    title_score: float
    r_att: float
    r_option: float | None
    r_price: bool
    w_att: float
    w_option: float
    w_price: float


def purchase_reward(goal: Goal, product: Product, price: float, chosen: Iterable[str], nouns: NounTagger) -> Reward:
    """The reward for buying `product` at `price` with the option values `chosen`."""
    query_match = product.query == goal.query
    category_match = len(_parts(product.product_category) & _parts(goal.product_category)) >= 2
    title_score = name_score(goal.name, product.title, nouns)
    r_type = type_reward(query_match or category_match, title_score)
    attributes, options = len(goal.attributes), len(goal.options)
    attributes_met = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    options_met = count_options(goal.options, chosen)
    affordable = price <= goal.price_limit
    parts = attributes + options + 1
    return Reward(
        total=(attributes_met + options_met + affordable) / parts * r_type,
        r_type=r_type,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        r_att=attributes_met / attributes,
        r_option=options_met / options if options else None,
        r_price=affordable,
        w_att=attributes / parts,
        w_option=options / parts,
        w_price=1 / parts,
    )


def type_reward(match: bool, title_score: float) -> float:
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if match or title_score > 0.2 else 0.5


def name_score(goal_name: str, name: str, nouns: NounTagger) -> float:
    wanted = nouns(goal_name)
    return len(set(wanted) & set(nouns(name))) / len(wanted) if wanted else 0.2


def has_attribute(product: Product, attribute: str) -> bool:
    if any(alike(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullets), product.description)
    return any(attribute in text.lower() for text in texts)


def count_options(wanted: Iterable[Option], chosen: Iterable[str]) -> int:
    chosen = [reduce_colour(value) for value in chosen]
    return sum(any(alike(value, option) for value in chosen) for option in map(reduce_colour, wanted))


@lru_cache(maxsize=1 << 16)
def reduce_colour(option: Option) -> str:
    """The first colour that the value contains, or that a member of a (name, value) pair equals; else its text."""
    return next((colour for colour in COLOURS if colour in option), str(option))


@lru_cache(maxsize=1 << 16)
def alike(a: str, b: str) -> bool:
    return round(fuzz.token_set_ratio(_cleaned(a), _cleaned(b))) > ALIKE


def _cleaned(text: str) -> str:
    return utils.default_process(text.translate(LATIN_1))


def _parts(category: str) -> set[str]:
    return {part.strip() for part in category.split("›")}
