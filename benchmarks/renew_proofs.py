"""Renews the ledgers of `perfadvisor try`, from which a section of docs/accuracy.md is made.

python benchmarks/judge_programs.py prepare tried/programs CLONES   # make up the data
python benchmarks/renew_proofs.py programs CLONES    # what is found, and measured again
python benchmarks/renew_proofs.py no-ops CLONES      # changes that do nothing
python scripts/proofs.py                             # write the section

CLONES is a folder with git clones of the repositories in `first_programs/tried/programs.toml`, at
the commits of the list, named `owner+name`. Run it on a machine that does nothing else. `programs`
records each program and tries every change that its report suggests; then it measures each of these
again, by runs that know nothing of `try`, and prints both. `no-ops` tries a comment, a docstring
and a renamed variable in each program, and prints how long it took until there was a verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from first_programs.recipes import Recipe, recipes
from first_programs.side_by_side import environment, gains
from no_op_changes import no_op_patches

_FOLDER = Path(__file__).parent
_LIST = "tried/programs"
_LEDGERS = {"programs": "proofs.jsonl", "no-ops": "no_op_proofs.jsonl"}
_PAIRS = 5
"""Of runs that measure a change again: ten runs."""
_SECONDS = 40.0


def main() -> None:
    """Renew a ledger."""
    given = _arguments()
    ledger = _FOLDER / _LEDGERS[given.what]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PERFADVISOR_DATA_DIR"] = folder
        for recipe in recipes(_LIST):
            if given.only and recipe.name not in given.only:
                continue
            if given.what == "programs":
                _try_program(recipe, given)
            else:
                _try_no_ops(recipe, given, Path(folder))
            written = Path(folder, "proofs.jsonl")
            if written.exists():
                with ledger.open("ab") as file:
                    file.write(written.read_bytes())
                written.unlink()


def _try_program(recipe: Recipe, given: argparse.Namespace) -> None:
    """Try what is suggested for a program, and measure it again."""
    for row in _tried(recipe, given, []):
        verdict = row["proof"]["verdict"]
        said = {"program": recipe.name, "change": row["change"], "verdict": verdict}
        if verdict in ("faster", "slower", "no difference", "undecided"):
            try:
                again: object = _again(recipe, given, row["patch"])
            except RuntimeError as error:  # too few steps, such as while it compiles
                again = str(error)
            said |= {"measured": row["proof"].get("measured"), "again": again}
        print(json.dumps(said), flush=True)


def _again(recipe: Recipe, given: argparse.Namespace, patch: str) -> list[float]:
    """The shares of the step that a patch saves, one for each pair of interleaved runs."""
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder, name) for name in ("before", "after")]
        for copy in copies:
            clone = given.clones / recipe.repository.replace("/", "+")
            shutil.copytree(clone, copy, ignore=shutil.ignore_patterns(".git"))
        before, after = (copy / recipe.directory for copy in copies)
        subprocess.run(
            ["git", "apply", "-"],
            cwd=after,
            input=patch.encode(),
            env={**os.environ, "GIT_CEILING_DIRECTORIES": folder},
            check=True,
        )
        return gains(
            before,
            after,
            recipe.command,
            marker=recipe.marker,
            core=given.core,
            seconds=_SECONDS,
            pairs=_PAIRS,
        )


def _try_no_ops(recipe: Recipe, given: argparse.Namespace, folder: Path) -> None:
    """Try changes that do nothing in a program."""
    name = recipe.command[1]
    code = (recipe.folder(given.clones) / name).read_text("utf-8")
    for what, patch in no_op_patches(code, name).items():
        file = folder / "change.diff"
        file.write_text(patch, "utf-8")
        began_s = time.monotonic()
        for row in _tried(recipe, given, ["--patch", str(file)]):
            took_s = round(time.monotonic() - began_s)
            said = {"program": recipe.name, "change": what, "took_s": took_s, "proof": row["proof"]}
            print(json.dumps(said), flush=True)


def _tried(recipe: Recipe, given: argparse.Namespace, options: Sequence[str]) -> Any:
    """What `perfadvisor try` says of a program; nothing if it refuses."""
    program = [sys.executable, *recipe.command[1:]]
    ours = [sys.executable, "-m", "tb_perfadvisor", "try", "--yes", "--format", "json"]
    done = subprocess.run(
        [*ours, "--budget", f"{given.budget:g}m", *options, "--", *program],
        cwd=recipe.folder(given.clones),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{recipe.name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return []
    return json.loads(done.stdout)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=_LEDGERS)
    parser.add_argument("clones", type=Path, help="folder of git clones, `owner+name`")
    parser.add_argument("--only", nargs="*", default=(), help="programs of the list")
    parser.add_argument("--budget", type=float, default=5.0, help="minutes for each change")
    parser.add_argument("--core", type=int, default=0, help="where changes are measured again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
