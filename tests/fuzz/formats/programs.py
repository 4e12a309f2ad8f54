"""The code of programs, for which patches are made."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from random import Random

from msgspec.structs import replace

from tb_perfadvisor import analyze
from tb_perfadvisor.contract import model
from tb_perfadvisor.report.report import Report
from tb_perfadvisor.sources import Repository, with_sources
from tb_perfadvisor.suggest import suggest
from tb_perfadvisor.suggest.suggestions import FIXES
from tests.fuzz.command_checks import check_tools
from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.invariants import BrokenError

_ROOT = Path(__file__).parents[3]
_SLOW = _ROOT / "demo_logs" / "pytorch_input_slow"
_PROGRAMS = sorted((_ROOT / "tests" / "suggest" / "programs").glob("*.py"))
# What fixes get from a finding.
_VALUES = {"workers": 4, "steps": 50, "bucket_mb": 40}
_MOST_CHANGES = 4


def _choose(random: Random) -> Files:
    chosen = random.choice(_PROGRAMS)
    return (SeedFile("train.py", chosen.read_bytes(), _change),)


def _change(data: bytes, random: Random) -> bytes:
    """The program with lines left out, repeated, moved or indented, or with other words."""
    lines = data.split(b"\n")
    for _ in range(random.randint(1, _MOST_CHANGES)):
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(5):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(other, lines[at])
            case 2:
                lines[at] = b"    " + lines[at]
            case 3:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                words = lines[at].split(b" ")
                place = random.randrange(len(words))
                words[place] = random.choice(
                    (b"", b"*args", b"**kw", b"None", b"lambda: 0", b"x\t", b"\xc3\xa9", b"(")
                )
                lines[at] = b" ".join(words)
    return random.choice((b"\n", b"\n", b"\r\n", b"\r")).join(lines)


@cache
def _report() -> Report:
    report = analyze(_SLOW)
    remedy = model.Remedy(
        text="",
        snippet=None,
        language="python",
        framework="",
        reference=None,
        fixes=[fix.id for fix in FIXES],
        values=_VALUES,
    )
    place = model.Place(file="train.py", line=12, function="run")
    finding = replace(report.findings[0], remedies=[remedy], places=[place])
    return replace(report, findings=[finding], first=None)


def _check(root: Path, *, exports: bool) -> int:
    repository = Repository(root)
    with_sources(_report(), repository)
    suggestions = suggest(_report(), repository)
    for suggestion in suggestions:
        if (suggestion.outcome == "patch") != bool(suggestion.patch):
            raise BrokenError(f"{suggestion.outcome} with the patch {suggestion.patch!r}")
        if suggestion.patch and exports:
            done = subprocess.run(
                ["git", "apply", "--check", "-"],
                cwd=root, input=suggestion.patch.encode(), capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode:
                raise BrokenError(f"git does not take the patch: {done.stderr.decode()}")
    if exports:
        check_tools(_SLOW, root)
    return len(suggestions)


PROGRAMS = Format("programs", _choose, check=_check, may_be_packed=False)
