"""Builds the embedded ALFWorld games, envs/alfworld/data/{small,full}-{train,seen,test}.jsonl.gz.

    python -m scripts.build_alfworld
    python -m scripts.build_alfworld --official DIR    writes them as official game files too, below DIR/{small,full}

Small rooms have 7 to 9 receptacles, full-size ones 12 to 28. Each task type has equally many games. The games of
"seen" are new ones in rooms of "train"; no room of "test" has the furniture of a room of "train". A game is kept if
the expert wins it within the turn limit, which also proves it solvable.

With the package alfworld installed, official files hold its domain and grammar, and its own engine plays them; without
it they hold the problem and the task, which is all that is read here.
"""

from __future__ import annotations

import argparse
import gzip
import json
from importlib.util import find_spec
from pathlib import Path

from envs.alfworld.embedded import DATA, SIZES
from envs.alfworld.games import FOLDERS
from scripts.alfworld.games import embedded, games
from scripts.alfworld.household import LAMP
from scripts.alfworld.problem import Game, problem_text


def write_embedded(path: Path, named: list[tuple[str, Game]]) -> None:
    lines = [json.dumps({"id": id, **embedded(game)._asdict()}) for id, game in named]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def write_official(root: Path, id: str, game: Game, domain: str, grammar: str) -> None:
    """The files that ALFWorld's readers look for, in the folder root/id."""
    folder, text = root / id, problem_text(game)
    folder.mkdir(parents=True, exist_ok=True)
    look = game.target == LAMP
    official = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", game.sentence),
        "pddl_problem": text,
        "solvable": True,
        "walkthrough": None,
    }
    trajectory = {
        "task_type": game.type,
        "task_id": folder.name,
        "pddl_params": {
            "object_target": game.thing,
            "parent_target": "" if look else game.target,
            "toggle_target": game.target if look else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "scene": {"floor_plan": f"FloorPlan{game.room.scene}", "scene_num": game.room.scene},
        "turk_annotations": {"anns": [{"task_desc": game.sentence, "high_descs": []}]},
    }
    (folder / "game.tw-pddl").write_text(json.dumps(official))
    (folder / "initial_state.pddl").write_text(text)
    (folder / "traj_data.json").write_text(json.dumps(trajectory, indent=1))


def reference_texts() -> tuple[str, str]:
    """Domain and grammar of the installed package alfworld; without it an empty domain, and the rule of the task."""
    spec = find_spec("alfworld")
    if spec is None:
        return "", 'grammar :: """\n{"task": [{"rhs": "Your task is to: UNKNOWN GOAL."}]}\n"""\n'
    data = Path(spec.origin).parent / "data"
    return (data / "alfred.pddl").read_text(), (data / "alfred.twl2").read_text()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--official", type=Path, metavar="DIR", help="write the games as official files here, too")
    directory = parser.parse_args(arguments).official
    texts = reference_texts()
    for size in SIZES:
        for split in FOLDERS:
            named = list(games(size, split))
            path = DATA / f"{size}-{split}.jsonl.gz"
            write_embedded(path, named)
            print(f"{path.name}: {len(named)} games, {path.stat().st_size / 1e3:.0f} kB")
            for id, game in named if directory else ():
                write_official(directory / size, id, game, *texts)


if __name__ == "__main__":
    main()
