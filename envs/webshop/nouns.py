"""The words of a product name that say what the product is: what the reward compares of two names.

WebShop takes the tokens that a spaCy model tags NOUN or PROPN. In a title-case name that is nearly every word,
adjectives too, and often a sign such as ® or |. The default here needs no model: all words but stop words, numbers
and participles behind a hyphen ("plant-based"), and three signs. Hyphens split words. A tagger is any function from a
name to a list of lower-cased words, repeats kept.
"""

from __future__ import annotations

from collections.abc import Callable

import regex

NounTagger = Callable[[str], list[str]]

WORD = regex.compile(r"[®|°]|-[a-z]+ed\b|[\p{L}\p{M}\p{N}][\p{L}\p{M}\p{N}.]*(?:['’](?!s\b)\p{L}+)?")
NUMBER = regex.compile(r"[\p{N}.,]+")
STOP_WORDS = frozenset("""
    a about above after all also an and any are as at be been before below both but by can could do does each for from
    had has have he her here his how i if in into is it its may more most my no nor not of off on one or other our out
    over own per please s same she should so some such than that the their them then there these they this those
    through to too under until up very was we were what when where which while who why will with would you your
    two three four five six seven eight nine ten eleven twelve
""".split())


def content_words(name: str) -> list[str]:
    """The words of a name as described above, in order."""
    words = (word.strip(".").lower() for word in WORD.findall(name) if word[0] != "-")
    return [word for word in words if word and word not in STOP_WORDS and not NUMBER.fullmatch(word)]
