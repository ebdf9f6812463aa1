"""The report of a fresh run in a browser: it draws, clicks lead to the run's own numbers, hostile text stays text."""

import json
import shutil
from pathlib import Path

import pytest

import train
from prover_mini.report.__main__ import main
from tests.chromium import PROGRAM, Browser

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium (Debian package chromium)")

FIELDS = (
    "--env searchqa --steps 3 --groups-per-step 8 --eval-tasks 24 --eval-every 3 --record-groups 2 --run-dir".split()
)
HOSTILE = '</textarea><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u202e\ud83d'
IN_SIGHT = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("report") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["train.py", *FIELDS, str(path)])
        assert train.main() == 0
    assert main([str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture(autouse=True)
def without_complaint(request):
    """No test may leave an error in the console, or ask for anything but the file."""
    if PROGRAM is None:
        yield
        return
    browser = request.getfixturevalue("browser")
    browser.complaints.clear()
    browser.requests.clear()
    yield
    browser.value("1")  # what was said until now has arrived
    assert browser.complaints == []
    files = [url.partition("#")[0] for url in browser.requests if url != "about:blank"]
    assert all(url.startswith("file:///") and url.endswith(".html") for url in files)


def opened(
    browser: Browser, path: Path, width: int = 1200, height: int = 900, dark: bool = False, at: str = ""
) -> None:
    browser.resize(width, height, dark)
    browser.open(path, at)
    browser.wait("document.querySelector('.trajectory') && document.querySelector('.plot svg')")


def records(run: Path, step: int) -> list[dict]:
    return [json.loads(line) for line in (run / "rollouts" / f"step_{step:06d}.jsonl").read_text().splitlines()]


def with_a_verdict(run: Path) -> list[tuple[int, dict]]:
    found = [(step, r) for step in (1, 2, 3) for r in records(run, step) if r["segment"] and r["segment"]["pre"]]
    assert found
    return found


def curve(browser: Browser, title: str) -> list[list[list[float]]]:
    """The drawn points of each line of a chart, in pixels."""
    lines = browser.value(
        f"[...document.querySelectorAll('figure')].find(f => f.querySelector('h3').textContent === {json.dumps(title)})"
        ".querySelectorAll('path.curve').values().map(p => p.getAttribute('d')).toArray()"
    )
    return [[[float(x) for x in point.split()] for point in d[1:].split("L")] for d in lines]


def test_curves_are_drawn_from_the_metrics(run, browser):
    opened(browser, run / "report.html")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    panel, training = curve(browser, "Success")
    successes = [json.loads((run / "eval" / f"step_{s:06d}.json").read_text())["success_rate"] for s in (0, 3)]
    for points, values in ((panel, successes), (training, [row["success_rate"] for row in rows])):
        assert len(points) == len(values)
        slopes = [(points[0][1] - y) / (v - values[0]) for (_, y), v in zip(points, values) if v != values[0]]
        assert slopes and max(slopes) - min(slopes) < 0.05 * abs(slopes[0])  # pixels are a linear picture of the values
    for title in ("Acceptance beside chance", "Cost of verification", "Trainer against sampler"):
        assert all(len(points) == 3 for points in curve(browser, title))
    assert browser.value("document.querySelectorAll('.charts .layer').length") >= 9
    deltas = [r["segment"]["delta"] for _, r in with_a_verdict(run)]
    assert browser.value("document.querySelectorAll('.bar').length") == len(set(deltas))


def test_a_pivotal_segment_is_found_by_clicking(run, browser):
    opened(browser, run / "report.html")
    for step, record in with_a_verdict(run):
        segment = record["segment"]
        browser.click(f'.item[data-step="{step}"][data-group="{record["group"]}"]')
        browser.wait(f"document.querySelector('#group h3').textContent === {json.dumps(record['task_id'])}")
        holder = f'.trajectory[data-sample="{record["sample"]}"]'
        pivotal = browser.value(
            f"[...document.querySelectorAll('{holder} .turn.pivotal')].map(e => Number(e.dataset.turn))"
        )
        assert pivotal == list(range(segment["first_turn"], segment["last_turn"] + 1))
        assert float(browser.value(f"document.querySelector('{holder} .delta').dataset.delta")) == segment["delta"]
        assert segment["reason"] in browser.value(f"document.querySelector('{holder} .reason').textContent")
        shown = browser.value(
            f"[...document.querySelectorAll('{holder} .fork')]"
            ".map(f => [...f.querySelectorAll('i')].map(i => i.className))"
        )
        assert shown == [["yes" if r > 0 else "no" for r in segment[side]] for side in ("pre", "post")]
    assert f"step={step}&group={record['group']}" in browser.value("location.hash")
    opened(browser, run / "report.html", at=browser.value("location.hash"))
    assert browser.value("document.querySelector('#group h3').textContent") == record["task_id"]


def test_tokens_show_advantage_mask_and_gap(run, browser):
    step, record = next(
        (s, r) for s, r in with_a_verdict(run) if "tokens" in r["turns"][0] and r["segment"]["delta"] > 0
    )
    opened(browser, run / "report.html", at=f"#run=0&step={step}&group={record['group']}")
    browser.wait(f"document.querySelector('#group h3').textContent === {json.dumps(record['task_id'])}")
    n = record["segment"]["first_turn"]
    turn, place = record["turns"][n], f'.trajectory[data-sample="{record["sample"]}"] .turn[data-turn="{n}"]'
    texts = browser.value(f"[...document.querySelectorAll('{place} .token')].map(t => t.textContent)")
    assert texts == [text or "·" for text in turn["tokens"]]
    browser.hover(f"{place} .token:nth-child(2)")
    said = browser.value("document.getElementById('tip').innerText").replace("\u2212", "-")
    assert f"+{record['advantage'] + turn['credit']:.3f}" in said and f"+{turn['credit']:.3f}" in said
    assert f"{turn['logprobs'][1]:.4f}" in said
    shown = said.split("trainer – sampler")[1].strip().split()[0]
    assert float(shown) == pytest.approx(turn["gaps"][1])

    def tinted(sample: int) -> str:
        place = f'.row[data-sample="{sample}"] .cell'
        return browser.value(f"getComputedStyle(document.querySelector('{place}')).backgroundColor")

    failure = next(r for r in records(run, step) if r["group"] == record["group"] and not r["success"])
    assert tinted(failure["sample"]) != tinted(record["sample"])
    browser.click(".toggle input")
    mask = browser.value(f"document.querySelector('{place} .observation').firstChild.data")
    assert turn["context"].startswith(mask) and len(mask) > 10
    grey = browser.value("getComputedStyle(document.querySelector('.observation')).color")
    assert grey == browser.value("getComputedStyle(document.querySelector('.quiet')).color")


def test_filters_pages_and_rows(run, browser):
    opened(browser, run / "report.html")
    everything = [r for step in (1, 2, 3) for r in records(run, step)]

    def choose(label: str, value: str) -> int:
        browser.value(
            "(() => { const s = [...document.querySelectorAll('.controls label')]"
            f".find(l => l.innerText.startsWith('{label}')).querySelector('select'); "
            f"s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()"
        )
        return browser.value("document.querySelectorAll('.item').length")

    assert choose("show", "all") == 24
    assert choose("step", "2") == 8
    assert choose("step", "") == 24
    assert choose("show", "accepted") == sum(bool(r["segment"] and r["segment"]["accepted"]) for r in everything)
    assert choose("show", "rejected") == sum(
        bool(r["segment"] and r["segment"]["accepted"] is False) for r in everything
    )
    choose("show", "all")
    task = everything[-1]["task_id"]
    browser.value(
        f"(() => {{ const box = document.querySelector('.search input'); box.value = {json.dumps(task.upper())}; "
        "box.dispatchEvent(new Event('input')); })()"
    )
    tasks = browser.value("[...document.querySelectorAll('.item .task')].map(e => e.textContent)")
    assert tasks and set(tasks) == {task}
    browser.click(".item")
    browser.wait(f"document.querySelector('#group h3').textContent === {json.dumps(task)}")
    browser.click('.row[data-sample="7"] .sample')
    assert browser.value("Boolean(document.querySelector('.trajectory[data-sample=\"7\"]'))")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_needs_no_sideways_scrolling(run, browser, dark):
    opened(browser, run / "report.html", 360, 740, dark)
    browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    browser.wait("document.querySelectorAll('.more .plot svg').length > 3")
    assert browser.value(IN_SIGHT)
    assert browser.value(
        "[...document.querySelectorAll('main *')]"
        ".every(e => e.closest('.scroll') || e.getBoundingClientRect().right <= innerWidth)"
    )
    page = browser.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (max(page) < 60) if dark else (min(page) > 200)
    browser.click(".item")
    assert browser.value("document.querySelectorAll('.trajectory').length") == 1


def test_hostile_text_is_shown_as_text(run, browser, tmp_path):
    path = tmp_path / "hostile"
    shutil.copytree(run, path, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
    step, chosen = with_a_verdict(run)[0]
    lines = records(path, step)
    for r in (r for r in lines if r["group"] == chosen["group"]):
        r["task_id"] = r["kind"] = HOSTILE
        for turn in r["turns"]:
            turn["observation"] = turn["context"] = turn["action"] = HOSTILE
            if "tokens" in turn:
                turn["tokens"] = [HOSTILE] * len(turn["tokens"])
        if r["segment"]:
            r["segment"]["reason"] = HOSTILE
        else:
            r["error"] = HOSTILE
    (path / "rollouts" / f"step_{step:06d}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in lines))
    (path / "judge").mkdir()
    sent = [{"role": "user", "content": HOSTILE}, {"role": "tool", "content": None, "x": HOSTILE}]
    proposal = {
        "group": chosen["group"], "outcome": "failure", "reason": HOSTILE, "prompt_tokens": 3, "reply_tokens": 2,
        "seconds": 0.5, "exchanges": [{"sent": sent, "answer": HOSTILE}],
    }  # fmt: skip
    (path / "judge" / f"step_{step:06d}.jsonl").write_text(json.dumps(proposal) + "\n")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "model": HOSTILE, HOSTILE: HOSTILE}))
    (path / "command.txt").write_text(HOSTILE, errors="replace")
    assert main([str(path)]) == 0
    for width in (1200, 360):
        opened(browser, path / "report.html", width, 900, at=f"#run=0&step={step}&group={chosen['group']}")
        browser.value("document.querySelectorAll('details').forEach(d => { d.open = true; })")
        for place in (
            "#group h3",
            ".statement",
            ".observation",
            ".action .token, .action",
            ".reason",
            ".lead",
            ".command",
        ):
            text = browser.value(f"document.querySelector({json.dumps(place)}).textContent")
            assert HOSTILE[:-2] in text, place
        assert browser.value("document.querySelectorAll('.dialogue .message').length") == 3
        browser.hover(".token, .cell")
        assert browser.value("typeof window.hacked") == "undefined"
        assert browser.value("document.querySelectorAll('img, iframe, textarea').length") == 0
        assert browser.value("document.querySelectorAll('script').length") == 3
        assert browser.value(IN_SIGHT)


def test_runs_side_by_side(run, browser, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(run, other, ignore=shutil.ignore_patterns("checkpoints", "report.html"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "judge": "random"}))
    rollouts = other / "rollouts" / "step_000001.jsonl"
    rollouts.write_text(rollouts.read_text().replace('"task_id": "', '"task_id": "other '))
    assert main([str(run), str(other), "--out", str(tmp_path / "two.html")]) == 0
    opened(browser, tmp_path / "two.html")
    table = browser.value("document.querySelector('.comparison').innerText")
    assert "--judge" in table and "divergence" in table and "random" in table and "--seed" not in table
    assert len(curve(browser, "Success")) == 4
    browser.value(
        "(() => { const s = document.querySelector('.controls select'); "
        "s.value = '1'; s.dispatchEvent(new Event('change')); })()"
    )
    browser.wait("document.querySelector('.item .task').textContent.startsWith('other ')")
    opened(browser, tmp_path / "two.html", 360, 740)
    assert browser.value(IN_SIGHT)
