"""Exact-match scoring of short answers against Search-R1, verl and verl-agent.

Search-R1 extracts from two <answer> blocks on, because its text holds the prompt's example; the others from one.
A response scores 1 for a match, format_score when something was extracted, else 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.searchqa.scoring import exact_match, extract_answer, normalize, sub_exact_match
from tests.replay.report import Report

MINIMUM_BLOCKS = {"search_r1": 2, "verl": 1, "verl_agent": 1}
FORMAT_SCORE = 0.1


def replay(data: Any, arrays: dict[str, np.ndarray], report: Report) -> None:
    for n, pair in enumerate(data["pairs"]):
        prediction, golden = pair["prediction"], pair["golden"]
        gold_list = [golden] if isinstance(golden, str) else golden
        values = {
            "norm_prediction": (normalize(prediction), pair["norm_prediction"]),
            "norm_golden": (tuple(map(normalize, gold_list)), tuple(pair["norm_golden"])),
            "em": (int(exact_match(prediction, golden)), pair["em"]),
            "subem": (int(sub_exact_match(prediction, golden)), pair["subem"]),
        }
        report.case(f"pair {n}", values)
    for n, response in enumerate(data["responses"]):
        for source, minimum in MINIMUM_BLOCKS.items():
            expected = response[source]
            answer = extract_answer(response["response"], minimum)
            values = {
                "extract": (answer, expected["extract"]),
                "subem": (score(answer, response["golden"], sub_exact_match), float(expected["subem"])),
            }
            if source == "verl" and expected["em"] == 0.25:
                report.other_definition["verl quarters an exact match above ten answer tags"] += 1
            else:
                values["em"] = (score(answer, response["golden"], exact_match), float(expected["em"]))
            report.case(f"response {n} {source}", values)


def score(answer: str | None, golden: list[str], match: Any) -> float:
    if answer is None:
        return 0.0
    return 1.0 if match(answer, golden) else FORMAT_SCORE
