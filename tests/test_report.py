"""The report without a browser: what is read, what is kept, and that no text can become part of the page."""

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from prover_mini.files import read_metrics
from prover_mini.report.__main__ import main
from prover_mini.report.collect import Group, collect, curves
from prover_mini.report.keep import keep, pack

HOSTILE = "</script><script>hacked()</script></textarea><img src=x onerror=hacked()><!--\u2028 &lt; \ud83d"


def segment(first: int, last: int, pre: list | None, post: list | None) -> dict:
    delta = sum(post) / len(post) - sum(pre) / len(pre) if pre else None
    accepted = None if delta is None else delta > 0
    return {
        "first_turn": first,
        "last_turn": last,
        "reason": "because",
        "pre": pre,
        "post": post,
        "delta": delta,
        "accepted": accepted,
    }


def record(group: int, sample: int, success: bool, **fields) -> dict:
    turns = [
        {
            "observation": f"saw {n}",
            "action": f"did {n}",
            "valid": True,
            "token_span": [10 * n, 10 * n + 4],
            "credit": 0.0,
        }
        for n in range(3)
    ]
    return {
        "task_id": f"task-{group}", "kind": "easy", "group": group, "sample": sample, "reward": float(success),
        "success": success, "score": 0.0, "truncated": False, "error": None, "turns": turns,
        "advantage": 0.5 - (not success), "segment": None, **fields,
    }  # fmt: skip


def metrics_row(step: int, verified: int = 1, accepted: int = 1) -> dict:
    return {
        "step": step, "success_rate": step / 10, "prover/verified": verified, "prover/accepted": accepted,
        "prover/null_rate": 0.25, "prover/proposed": verified, "prover/eligible": verified, "judge/calls": verified,
        "tokens/rollout": 100, "tokens/continuation": 10 * step, "tokens/extra_rollout": 0, "time/rollout": 2.0,
        "time/judge": 0.25, "time/verify": 0.5, "time/train": 1.0, "time/eval": 0.25,
        "time/total": 4.0, "time/cpu": 9.0, "mismatch_max": 10.0**-step,
    }  # fmt: skip


def write_run(path: Path, records: dict[int, list[dict]], rows: list[dict], config: dict | None = None) -> Path:
    (path / "rollouts").mkdir(parents=True)
    (path / "eval").mkdir()
    (path / "config.json").write_text(json.dumps({"env": "toy", "steps": 9, "continuations": 4, **(config or {})}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, lines in records.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (path / "rollouts" / f"step_{step:06d}.jsonl").write_text(text)
    evaluation = {
        "step": 0,
        "success_rate": 0.25,
        "n": 4,
        "ci95": [0.1, 0.6],
        "by_kind": {"easy": {"success_rate": 0.25, "n": 4}},
    }
    (path / "eval" / "step_000000.json").write_text(json.dumps(evaluation))
    return path


@pytest.fixture
def run(tmp_path) -> Path:
    """Two steps of two groups: an accepted, a rejected and an unverified segment."""
    first = [
        record(0, 0, False),
        record(0, 1, True, segment=segment(1, 1, [0, 1, 0, 0], [1, 1, 0, 1])),
        record(1, 0, False),
        record(1, 1, False),
    ]
    second = [
        record(0, 0, True, segment=segment(0, 1, [1, 1], [1, 0])),
        record(0, 1, False),
        record(1, 0, True, segment=segment(0, 0, None, None)),
        record(1, 1, False, error="broke"),
    ]
    return write_run(tmp_path / "run", {1: first, 2: second}, [metrics_row(1), metrics_row(2, 1, 0)])


class Page(HTMLParser):
    """Elements of a page, with the text of each script and style."""

    def __init__(self, path: Path):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.raw: list[tuple[str, dict, str]] = []
        self.inside = False
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.raw.append((tag, dict(attributes), ""))
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, text):
        if self.inside:
            tag, attributes, before = self.raw[-1]
            self.raw[-1] = (tag, attributes, before + text)

    def data(self, name: str):
        (text,) = [text for tag, attributes, text in self.raw if attributes.get("id") == name]
        return json.loads(text)


def test_every_record_reaches_the_page(run, capsys):
    assert main([str(run)]) == 0
    assert "8 of 8 trajectories" in capsys.readouterr().out
    page = Page(run / "report.html")
    (shown,), packed = page.data("data")["runs"], page.data("packed")
    lines = [(g["step"], g["index"], g["task"], g["outcomes"]) for g in shown["groups"]]
    assert lines == [(1, 0, "task-0", "FS"), (1, 1, "task-1", "FF"), (2, 0, "task-0", "SF"), (2, 1, "task-1", "SE")]
    for g in shown["groups"]:
        content = json.loads(zlib.decompress(base64.b64decode(packed[g["packed"]])))
        written = [
            json.loads(line) for line in (run / "rollouts" / f"step_{g['step']:06d}.jsonl").read_text().splitlines()
        ]
        assert content == {"records": [r for r in written if r["group"] == g["index"]], "proposal": None}
    assert [s for g in shown["groups"] for s in g["segments"]] == [
        {"delta": 0.5, "accepted": True, "before": [1, 4], "after": [3, 4]},
        {"delta": -0.5, "accepted": False, "before": [2, 2], "after": [1, 2]},
        {"delta": None, "accepted": None, "before": None, "after": None},
    ]
    assert shown["deltas"] == [0.5, -0.5]


def test_a_language_model_judge_is_shown_with_its_words(run):
    (run / "judge").mkdir()
    proposals = [
        {"group": 1, "outcome": "failure", "reason": "timeout", "exchanges": [{"sent": [], "answer": None}]},
        {"group": 0, "outcome": "segment", "reason": "it helps",
         "exchanges": [{"sent": [{"role": "user", "content": "?"}], "answer": "!"}]},
    ]  # fmt: skip
    for step in (1, 3):  # the judge of step 3 has spoken, its trajectories are not written yet
        text = "".join(json.dumps(p) + "\n" for p in proposals)
        (run / "judge" / f"step_{step:06d}.jsonl").write_text(text)
    assert main([str(run)]) == 0
    page = Page(run / "report.html")
    lines, packed = page.data("data")["runs"][0]["groups"], page.data("packed")
    assert [g["failed"] for g in lines] == [False, True, False, False]
    found = [json.loads(zlib.decompress(base64.b64decode(packed[g["packed"]])))["proposal"] for g in lines]
    assert found == [proposals[1], proposals[0], None, None]
    with open(run / "judge" / "step_000001.jsonl", "a") as file:
        file.write("{}\n")
    assert main([str(run)]) == 2


def test_text_from_outside_cannot_leave_its_place(tmp_path):
    """Every string of the run's files is hostile; the page has exactly the elements that it always has."""
    turn = {
        "observation": HOSTILE,
        "action": HOSTILE,
        "valid": True,
        "token_span": [0, 1],
        "tokens": [HOSTILE],
        "context": HOSTILE,
        "logprobs": [-1.0],
        "gaps": None,
    }
    hostile = record(
        0, 0, True, task_id=HOSTILE, kind=HOSTILE, turns=[turn], segment={**segment(0, 0, [0], [1]), "reason": HOSTILE}
    )
    path = write_run(tmp_path / "<b>&run", {1: [hostile]}, [metrics_row(1)], {"model": HOSTILE, "judge": HOSTILE})
    (path / "command.txt").write_text(HOSTILE, errors="replace")
    assert main([str(path), "--out", str(tmp_path / "hostile.html")]) == 0
    harmless = write_run(tmp_path / "plain", {1: [record(0, 0, True)]}, [metrics_row(1)])
    assert main([str(harmless)]) == 0
    ours, theirs = Page(tmp_path / "hostile.html"), Page(harmless / "report.html")
    assert ours.elements == theirs.elements
    (shown,) = ours.data("data")["runs"]
    assert shown["name"] == "<b>&run" and shown["groups"][0]["task"] == shown["config"]["model"] == HOSTILE
    text = (tmp_path / "hostile.html").read_text()
    assert "<title>prover-mini · &lt;b&gt;&amp;run</title>" in text
    assert not any(name.startswith("on") or name == "src" for _, attributes in ours.elements for name in attributes)


def test_only_this_style_and_program_may_run(run):
    assert main([str(run)]) == 0
    page = Page(run / "report.html")
    (policy,) = [a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    allowed = {tag: text for tag, attributes, text in page.raw if not attributes}
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        digest = base64.b64encode(hashlib.sha256(allowed[tag].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    program = allowed["script"]
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|https?://(?!www\.w3)",
        program,
    )


def group(step: int, index: int, kind: str) -> Group:
    verified = segment(0, 0, [0.0], [1.0])
    records = [record(index, sample, sample == 0 and kind != "equal") for sample in range(2)]
    records[0]["segment"] = verified if kind == "verified" else None
    return Group(step, index, records)


def test_verified_groups_are_kept_first_and_the_limit_holds():
    kinds = ["equal", "mixed", "verified", "equal"]
    groups = [group(step, index, kind) for step in range(1, 41) for index, kind in enumerate(kinds)]
    everything, where = keep(groups, 10**9)
    assert len(everything) == len(where) == 160
    assert {len(json.loads(zlib.decompress(base64.b64decode(t)))["records"]) for t in everything} == {2}
    size = max(map(len, everything))
    packed, where = keep(groups, 60 * size)
    assert sum(map(len, packed)) <= 60 * size and len(packed) >= 60
    chosen = {kind: [step for step, index in where if kinds[index] == kind] for kind in set(kinds)}
    assert sorted(chosen["verified"]) == list(range(1, 41)) and not chosen["equal"]
    assert min(chosen["mixed"]) <= 8 and max(chosen["mixed"]) >= 33  # drawn over the whole run
    assert keep(groups, 60 * size) == (packed, where)
    for place, text in enumerate(packed):
        ((step, index),) = [at for at, p in where.items() if p == place]
        assert text == pack(groups[(step - 1) * 4 + index])
    assert keep(groups, 0) == ([], {})


def test_curves_are_sums_over_the_last_steps():
    rows = [metrics_row(step, verified=step % 3, accepted=min(1, step % 3)) for step in range(1, 10)]
    found = curves(rows, 2)
    assert found["step"] == list(range(1, 10)) and found["window"] == 2
    for i in range(9):
        part = rows[max(0, i - 1) : i + 1]
        verified = sum(r["prover/verified"] for r in part)
        accepted = sum(r["prover/accepted"] for r in part)
        assert found["acceptance"][i] == (pytest.approx(accepted / verified) if verified else None)
        assert found["chance"][i] == (pytest.approx(0.25) if verified else None)
        assert found["token_overhead"][i] == pytest.approx(
            sum(r["tokens/continuation"] for r in part) / (100 * len(part))
        )
        assert found["time_overhead"][i] == pytest.approx(0.75 / 3.0)
        assert found["success_smooth"][i] == pytest.approx(sum(r["success_rate"] for r in part) / len(part))
    assert found["phases"] == {
        "rollout": [2.0] * 9,
        "judge": [0.25] * 9,
        "verify": [0.5] * 9,
        "train": [1.0] * 9,
        "eval": [0.25] * 9,
    }
    assert found["entropy"] == [None] * 9


def test_runs_of_older_versions_and_runs_that_go_on_are_read(tmp_path):
    old = record(0, 0, True, segment=segment(0, 0, [0.0], [1.0]))
    for turn in old["turns"]:
        del turn["credit"]
    del old["kind"], old["error"], old["truncated"]
    path = write_run(tmp_path / "old", {1: [old]}, [{"step": 1, "success_rate": 0.5, "time/rollout": 1.0}])
    begun = write_run(tmp_path / "begun", {}, [])
    (begun / "metrics.jsonl").unlink()
    (begun / "eval" / "step_000000.json").unlink()
    assert main([str(path), str(begun)]) == 0
    first, second = Page(path / "report.html").data("data")["runs"]
    assert first["groups"][0]["outcomes"] == "S" and first["figures"]["verified"] == 0
    assert second["groups"] == second["evaluations"] == second["curves"]["step"] == []


@pytest.mark.parametrize(
    "rest", [b"\xff\xfe\n", b"\x00\x00", '{"step": 3, "\u00e9'.encode()[:-1]], ids=["bytes", "zeros", "cut"]
)
def test_metrics_end_before_what_a_crash_left(rest, run):
    before = read_metrics(run / "metrics.jsonl")
    with open(run / "metrics.jsonl", "ab") as file:
        file.write(rest)
    assert len(before) == 2 and read_metrics(run / "metrics.jsonl") == before
    assert main([str(run)]) == 0
    assert Page(run / "report.html").data("data")["runs"][0]["curves"]["step"] == [1, 2]


def test_numbers_that_are_no_json_become_null(run):
    file = run / "rollouts" / "step_000001.jsonl"
    file.write_text(file.read_text().replace('"score": 0.0', '"score": NaN', 1))
    assert main([str(run)]) == 0
    records = collect(run)[2][0].records
    assert records[0]["score"] is None and "NaN" not in pack(Group(1, 0, records))


def damaged_line(run: Path) -> list:
    with open(run / "rollouts" / "step_000002.jsonl", "a") as file:
        file.write('{"group": 1, "task')
    return [run]


def other_json(run: Path) -> list:
    (run / "metrics.jsonl").write_text("[1]\n")
    return [run]


def other_step(run: Path) -> list:
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"step": null}\n')
    return [run]


def other_evaluation(run: Path) -> list:
    (run / "eval" / "step_000000.json").write_text("{}")
    return [run]


BAD = {
    "no run": (lambda run: [run.parent], "config.json"),
    "no directory": (lambda run: [run / "none"], "config.json"),
    "damaged line": (damaged_line, "step_000002.jsonl, line 5"),
    "other metrics": (other_json, "metrics.jsonl, line 1"),
    "other step": (other_step, "metrics.jsonl, line 2"),
    "other evaluation": (other_evaluation, "files are not what a run writes"),
    "output is a directory": (lambda run: [run, "--out", run], "--out"),
    "no such directory": (lambda run: [run, "--out", run / "none" / "x.html"], "--out"),
    "no size": (lambda run: [run, "--max-mb", "-1"], "--max-mb"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_code_2(case, run, capsys):
    arguments, named = BAD[case]
    assert main([str(a) for a in arguments(run)]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("report: ") and "\n" not in error and named in error
    assert not list(run.rglob("*.html*"))


def test_ten_thousand_trajectories_fit(tmp_path):
    """Too much to keep: the file stays small and says what it holds."""
    noise = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(100)]
    records = {}
    for step in range(1, 51):
        records[step] = [
            {"task_id": "t", "group": g, "sample": s, "success": s == 0, "reward": 0.0, "segment": None,
             "advantage": 0.0,
             "turns": [{"observation": noise[g + step], "action": noise[s], "valid": True, "token_span": [0, 1]}]}
            for g in range(25) for s in range(8)
        ]  # fmt: skip
    path = write_run(tmp_path / "run", records, [metrics_row(step) for step in records])
    assert main([str(path), "--max-mb", ".2"]) == 0
    kept = Page(path / "report.html").data("data")["runs"][0]["kept"]
    assert kept["of_trajectories"] == 10_000 and 0 < kept["trajectories"] < 10_000
    assert (path / "report.html").stat().st_size < 1e6
