"""The command line is the dataclass; bad values are one clear line."""

import dataclasses
import json
import re

import pytest

from prover_mini.config import PRESETS, Config, dashed, dumps, load, parse
from prover_mini.errors import UserError

PUBLIC = """env model credit judge steps groups_per_step group_size continuations credit_weight max_segment_turns
max_successes max_turns temperature lr clip_low clip_high kl_coef aggregation advantage_std budget_matched seed device
dtype run_dir resume eval_every save_every data corpus retriever_url judge_url judge_model""".split()


def test_public_fields_are_there_with_a_sentence_each():
    fields = {f.name: f for f in dataclasses.fields(Config)}
    assert set(PUBLIC) <= set(fields)
    assert all(f.metadata["help"].endswith(".") for f in fields.values())


def test_hyphens_underscores_and_flags():
    config, given = parse(
        ["--group-size", "4", "--max_turns", "7", "--advantage-std", "--lr", "1e-3", "--resume", "false"]
    )
    assert (config.group_size, config.max_turns, config.advantage_std, config.lr, config.resume) == (
        4,
        7,
        True,
        1e-3,
        False,
    )
    assert set(given) == {"group_size", "max_turns", "advantage_std", "lr", "resume"}


def test_presets_yield_to_the_command_line():
    preset = PRESETS["searchqa", True]
    config, _ = parse([])
    assert all(getattr(config, name) == value for name, value in preset.items())
    assert parse(["--steps", "3"])[0].steps == 3
    assert parse(["--model", "some/model"])[0].max_turns == 30


def test_help_has_every_field_in_one_of_its_parts(capsys):
    with pytest.raises(SystemExit) as exit:
        parse(["--help"])
    assert exit.value.code == 0
    parts = re.split(r"^(\w[^\n]*):$", capsys.readouterr().out, flags=re.MULTILINE)
    titles, texts = parts[1::2], parts[2::2]
    sections = {t: re.findall(r"^  --(\S+) \[?X", text, re.MULTILINE) for t, text in zip(titles, texts)}
    assert sections.pop("options") == []
    listed = [name for names in sections.values() for name in names]
    assert sorted(listed) == sorted(dashed(f.name) for f in dataclasses.fields(Config))
    assert {"judge-url", "judge-tokens"} <= set(sections["judge"]) and "lr" in sections["update"]
    assert len(sections) == 8 and all(len(names) >= 3 for names in sections.values())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--group-size", "1"], "--group-size 1: must be at least 2"),
        (["--continuations", "0"], "--continuations 0: must be at least 1"),
        (["--credit", "magic"], "--credit 'magic': choose one of grpo, prover, judge_reward"),
        (["--temperature", "0"], "--temperature 0.0"),
        (["--temperature", "nan"], "--temperature nan: must be a finite number"),
        (["--lr", "inf"], "--lr inf: must be a finite number"),
        (["--max-grad-norm", "0"], "--max-grad-norm 0.0: must be at least"),
        (["--clip-low", "-1"], "--clip-low -1.0: must be at least 0"),
        (["--dual-clip", "0.5"], "--dual-clip 0.5: must be above 1"),
        (["--adam-beta2", "1"], "--adam-beta2 1.0: must be below 1"),
        (["--max-context-tokens", "0"], "--max-context-tokens 0: must be at least 1"),
        (["--budget-matched"], "--budget-matched"),
        (["--judge", "oracle"], "--judge 'oracle': choose one of divergence, random, policy, endpoint"),
        (["--judge", "endpoint", "--judge-url", "http://a"], "--judge endpoint needs --judge-url and --judge-model"),
        (["--judge", "endpoint", "--judge-model", "m"], "--judge endpoint needs --judge-url and --judge-model"),
        (["--judge-url", "http://a"], "--judge-url http://a: is asked by --judge endpoint only"),
        (["--judge-model", "m"], "--judge-model m: is used by --judge endpoint and policy only"),
        (["--judge-max-failures", "1.5"], "--judge-max-failures 1.5: is a share"),
        (["--judge-timeout", "0"], "--judge-timeout 0.0: must be at least"),
        (["--judge", "endpoint", "--judge-url", "http://a", "--judge-model", "m", "--judge-tokens", "40000"],
         "--judge-context-tokens 32768: must be above --judge-tokens 40000"),
        (["--budget-run", "runs/other"], "--budget-run runs/other"),
        (["--env", "webshop", "--model", "tiny-rare"], "--env webshop: has no embedded policy tiny-rare"),
        (["--stpes", "3"], "unrecognized arguments: --stpes 3"),
        (["--steps", "many"], "steps"),
        (["--resume", "perhaps"], "resume"),
        (["--group", "4"], "unrecognized"),
    ],
)
def test_bad_fields_are_named(arguments, message):
    with pytest.raises(UserError, match=".") as error:
        parse(arguments)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_round_trip_and_foreign_files(tmp_path):
    config, _ = parse(["--seed", "5"])
    (tmp_path / "config.json").write_text(dumps(config))
    assert load(tmp_path / "config.json") == config
    (tmp_path / "other.json").write_text(json.dumps({"colour": "blue"}))
    (tmp_path / "cut.json").write_text('{"env": "sea')
    (tmp_path / "typed.json").write_text(json.dumps({"steps": "many"}))
    for name in ("other.json", "cut.json", "typed.json", "missing.json"):
        with pytest.raises(UserError, match=name):
            load(tmp_path / name)
