"""Text to index terms: a plain analyser, and the English one of Lucene that WebShop's search engine uses.

Lucene's chain: words after Unicode's word boundaries (UAX #29) -> cut at 255 -> possessive 's off -> lower case ->
33 stop words out -> Porter's stemmer with the later changes of its author. A word is a run of letters and digits,
or of Katakana, which underscores join; one Han or Hiragana character; a run of Thai, Lao, Khmer or Burmese; or an
emoji. Inside a run `:` `.` `'` join letters and `,` `;` `.` `'` join digits.

Source: Unicode Standard Annex #29, rules WB4 to WB13; Apache Lucene 9, StandardTokenizer and EnglishAnalyzer;
Porter, "An algorithm for suffix stripping", 1980.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

import regex

Analyser = Callable[[str], list[str]]
MAX_WORD = 255
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)

TAIL = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"  # accents and joiners stay with what is before them
LETTER = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{TAIL}"
DIGIT = rf"\p{{WB=Numeric}}{TAIL}"
LETTER_JOINT = rf"[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{TAIL}"
DIGIT_JOINT = rf"[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{TAIL}"
LETTERS = rf"(?:{LETTER})++(?:{LETTER_JOINT}(?:{LETTER})++)*+"
DIGITS = rf"(?:{DIGIT})++(?:{DIGIT_JOINT}(?:{DIGIT})++)*+"
RUN = rf"(?:(?:{LETTERS}|{DIGITS})++|(?:\p{{WB=Katakana}}{TAIL})++)"
UNDERSCORE = rf"\p{{WB=ExtendNumLet}}{TAIL}"
IDEOGRAPH = rf"[\p{{Han}}\p{{Hiragana}}]{TAIL}"
PICTURE = rf"\p{{Extended_Pictographic}}{TAIL}"
EMOJI = rf"\p{{Regional_Indicator}}{{2}}|[#*0-9]\ufe0f?\u20e3|{PICTURE}(?:(?<=\u200d){PICTURE})*+"
COMMON = r"[A-Za-z]++(?=[ ,\n-])"  # most words, found three times as fast as by the general rule, which agrees
WORD = regex.compile(
    rf"{COMMON}|{EMOJI}|(?:{UNDERSCORE})*+{RUN}(?:(?:{UNDERSCORE})++{RUN})*+(?:{UNDERSCORE})*+"
    rf"|{IDEOGRAPH}|\p{{Line_Break=Complex_Context}}++"
)
POSSESSIVE = regex.compile(r"['\u2019\uff07][sS]$")
# Lucene maps each character by itself; `str.lower` looks at the neighbours of a sigma and makes two of a dotted I.
ONE_TO_ONE = {ord("İ"): "i", ord("Σ"): "σ"}


def plain(text: str) -> list[str]:
    """Lower-cased runs of letters, digits and underscores."""
    return regex.findall(r"\w+", text.lower())


def english(text: str) -> list[str]:
    """The terms of Lucene's EnglishAnalyzer, in order, repeats kept."""
    terms = (_term(word) for word in _words(text))
    return [term for term in terms if term]


def _words(text: str) -> list[str]:
    words = WORD.findall(text)
    if max(map(len, words), default=0) <= MAX_WORD:
        return words
    return [word[i : i + MAX_WORD] for word in words for i in range(0, len(word), MAX_WORD)]


@lru_cache(maxsize=1 << 18)
def _term(word: str) -> str:
    """The term of a word, empty for a stop word."""
    word = POSSESSIVE.sub("", word).translate(ONE_TO_ONE).lower()
    return "" if word in STOP_WORDS else _stemmer().stem(word, to_lowercase=False)


@cache
def _stemmer():
    from nltk.stem.porter import PorterStemmer  # slow to import: only for those who stem

    return PorterStemmer(PorterStemmer.MARTIN_EXTENSIONS)
