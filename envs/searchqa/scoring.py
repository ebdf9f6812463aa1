"""Scores of short answers: exact match, substring match, token F1, as open-domain question answering uses them.

    normalize(s) = lower case -> no ASCII punctuation -> no articles (a, an, the) -> single blanks
    EM           = 1 if normalize(prediction) equals normalize(gold) for any gold answer
    F1           = 2 P R / (P + R) over the bag of normalised words, the best over the gold answers

Punctuation goes before articles, so "1.5" equals "15", "a-ha" equals "aha" and "The The" becomes "".

Source: the SQuAD evaluation (Rajpurkar et al. 2016, arXiv:1606.05250); as the reward in Search-R1 (arXiv:2503.09516).
"""

from __future__ import annotations

import re
import string
from collections import Counter

ARTICLES = re.compile(r"\b(a|an|the)\b")
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    bare = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, golden: str | list[str]) -> bool:
    """Whether the prediction equals a gold answer after normalisation."""
    normal = normalize(prediction)
    return any(normalize(gold) == normal for gold in _as_list(golden))


def sub_exact_match(prediction: str, golden: str | list[str]) -> bool:
    """Whether a gold answer is a substring of the prediction, both normalised. An empty gold answer fits anything."""
    normal = normalize(prediction)
    return any(normalize(gold) in normal for gold in _as_list(golden))


def f1(prediction: str, golden: str | list[str]) -> float:
    """The best F1 of bags of words over the gold answers, in [0, 1]; two empty bags score 1."""
    words = Counter(normalize(prediction).split())
    return max((_bag_f1(words, Counter(normalize(gold).split())) for gold in _as_list(golden)), default=0.0)


def extract_answer(text: str, minimum_blocks: int = 1) -> str | None:
    """The content of the last `<answer>` block, stripped; None where there are fewer than `minimum_blocks`.

    Search-R1 scans prompt and reply together, and its prompt holds one block as an example: it needs 2. Give this
    function text that the policy wrote, and 1 is right.
    """
    blocks = ANSWER.findall(text)
    return blocks[-1].strip() if len(blocks) >= max(minimum_blocks, 1) else None


def _as_list(golden: str | list[str]) -> list[str]:
    return [golden] if isinstance(golden, str) else golden


def _bag_f1(words: Counter[str], gold: Counter[str]) -> float:
    if not words or not gold:
        return float(words == gold)
    common = (words & gold).total()
    return 2 * common / (words.total() + gold.total())
