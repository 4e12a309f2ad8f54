"""Advice on other people's programs, judged against truths that were written down before.

python benchmarks/judge_programs.py prepare BATCH CLONES      # make up the programs' data
python benchmarks/judge_programs.py judge BATCH CLONES DIR    # record and analyze, once
python benchmarks/judge_programs.py gain BATCH CLONES PROGRAM PATCH   # what a change brings
python benchmarks/judge_programs.py show BATCH --judged TEXT  # a section for docs/accuracy.md
python benchmarks/judge_programs.py pool                      # all judged batches together

BATCH names a frozen list in `first_programs/`, such as `gpu`. CLONES is a folder with git clones of
its repositories at the commits of the list, named `owner+name`; `.` for programs of our own.
`judge` prints a line of JSON for each program; what follows from it is written into
BATCH_verdicts.toml by hand. `gain` runs a program with and without a patch, side by side on one
core.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from first_programs.data import GENERATORS
from first_programs.page import pooled, section
from first_programs.recipes import Recipe, judged_before, programs, recipes
from first_programs.side_by_side import environment, gains

_LIMIT_S = 60
"""After a minute, a program is interrupted: those of the list train for longer than they need."""


def main() -> None:
    """Run one of the commands."""
    given = _arguments()
    # A shell ignores Ctrl-C in what it starts in the background, and that is inherited.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if given.command == "prepare":
        for recipe in recipes(given.batch):
            for generator, target in recipe.data.items():
                GENERATORS[generator](recipe.folder(given.clones) / target)
    if given.command == "judge":
        left_out = {each.name for each in programs(given.batch) if each.left_out}
        for recipe in recipes(given.batch):
            if recipe.name not in left_out and recipe.name not in given.skip:
                print(json.dumps(_judge(recipe, given)), flush=True)
    if given.command == "gain":
        print(json.dumps(_gains(given)))
    if given.command == "show":
        print("\n".join(section(programs(given.batch), given.judged)))
    if given.command == "pool":
        print("\n".join(pooled([judged_before()])))


def _gains(given: argparse.Namespace) -> list[float]:
    """The shares of the step that a patch saves in a program, one for each pair of runs."""
    (recipe,) = (each for each in recipes(given.batch) if each.name == given.program)
    clone = given.clones / recipe.repository.replace("/", "+")
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, name) for name in ("before", "after")]
        for copy in copies:
            shutil.copytree(clone, copy, ignore=shutil.ignore_patterns(".git"))
        changed = ["git", "apply", str(given.patch.resolve())]
        subprocess.run(changed, cwd=copies[1] / recipe.directory, check=True)
        before, after = (copy / recipe.directory for copy in copies)
        return gains(
            before,
            after,
            recipe.command,
            marker=recipe.marker,
            core=given.core,
            seconds=given.seconds,
            pairs=2,
        )


def _judge(recipe: Recipe, given: argparse.Namespace) -> dict[str, Any]:
    """What is said of a program, and the patches that are suggested for it."""
    folder, recording = recipe.folder(given.clones), given.directory / recipe.name
    said: dict[str, Any] = {"name": recipe.name}
    if not recording.exists():
        said["run"] = _advisor(folder, "run", "--logdir", recording, "--", *recipe.command)[1]
    status, _, printed = _advisor(folder, "analyze", recording, "--format", "json", "--no-cache")
    said["recorded"] = status == 0
    if status != 0:
        return said
    reports = json.loads(printed)["reports"]
    said["reports"] = [_first(report) for report in reports]
    said["patches"] = _advisor(folder, "suggest", recording, "--repo", ".")[2]
    return said


def _first(report: dict[str, Any]) -> dict[str, Any] | None:
    """The finding to begin with, in short."""
    if report["first"] is None:
        return None
    finding = report["findings"][report["first"]["index"]]
    shown = ("rule_id", "title", "severity", "saving", "remedies")
    return {name: finding[name] for name in shown}


def _advisor(folder: Path, *arguments: object) -> tuple[int, str, str]:
    """The exit status of a command of ours, the end of its messages, and what it printed.

    What takes too long is interrupted as by Ctrl-C, after which `run` keeps what it recorded.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "tb_perfadvisor", *map(str, arguments)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            printed, said = process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            printed, said = process.communicate()
    return process.returncode, said[-2000:], printed


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("pool")
    for name in ("prepare", "judge", "gain", "show"):
        command = commands.add_parser(name)
        command.add_argument("batch", help="a frozen list, such as `gpu`")
        if name == "show":
            command.add_argument("--judged", required=True, help="when, and which version")
            continue
        command.add_argument("clones", type=Path, help="folder of git clones, `owner+name`")
        if name == "judge":
            command.add_argument("directory", type=Path, help="where to keep the recordings")
            command.add_argument("--skip", nargs="*", default=(), help="programs judged before")
        if name == "gain":
            command.add_argument("program", help="a program of the list")
            command.add_argument("patch", type=Path, help="relative to the program's directory")
            command.add_argument("--core", type=int, default=0, help="where both versions run")
            command.add_argument("--seconds", type=float, default=30.0, help="for each pair")
    return parser.parse_args()


if __name__ == "__main__":
    main()
