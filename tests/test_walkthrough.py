"""The walk-through tells what the code does today, and its filler is not fooled by an outdated block."""

import pytest

from docs import walkthrough


def test_the_page_is_up_to_date():
    text = walkthrough.TEXT.read_text()
    assert walkthrough.filled(text) == text


def test_every_output_is_in_the_page():
    named = {block[2] for block in walkthrough.BLOCK.findall(walkthrough.TEXT.read_text()) if block[1] == "output"}
    assert named == set(walkthrough.OUTPUTS)


@pytest.mark.parametrize("block", ["<!-- output: stream -->", "<!-- code: prover_mini/credit.py eligible -->"])
def test_a_changed_block_is_made_anew(block):
    text = walkthrough.TEXT.read_text()
    start = text.index("\n", text.index("```", text.index(block))) + 1
    changed = text[:start] + "something else\n" + text[start:]
    assert walkthrough.filled(changed) == text


def test_excerpts_leave_docstrings_out_and_keep_the_rest():
    excerpt = walkthrough.source("docs/walkthrough.py", "lines")
    assert excerpt.startswith("def lines(*rows: str) -> str:\n    return ")
    excerpt = walkthrough.source("prover_mini/trajectory.py", "Trajectory.act")
    assert excerpt.startswith("def act(self") and '"""' not in excerpt and excerpt.count("\n") == 4


def test_the_group_tells_the_story_that_the_page_tells():
    s = walkthrough.step()
    assert len(s.group.successes) == 2 and s.verdict.segment.first_turn == s.verdict.segment.last_turn == 0
    assert s.verdict.delta > 0.5
