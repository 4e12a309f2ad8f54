"""Reads the frozen list of a batch, what is true of its programs, and what was said of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Truth:
    """What profiling by hand and trying changes found, before any verdict was opened."""

    causes: tuple[str, ...]
    """What limits it, in the words of the file; either is right. `healthy` below 5 %."""
    change: str
    """The change that brought most."""
    gain: float | None
    """Share of the step that it saves; None if nobody measured it."""
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was said of a program, and what following it brought."""

    recorded: bool
    """Whether `perfadvisor run` recorded it at once."""
    said: str
    """The rule and the title of the first finding; empty for none."""
    severity: str
    names: tuple[str, ...]
    """The causes that it names."""
    predicted: tuple[float, float, float] | None
    gain: float | None
    """What the first finding's advice brought, as a share of the step; None if not applied."""
    noise: float
    """By how much the pairs of that measurement differ from their mean, at most."""
    patch: str
    """What became of the first mechanical fix: `helped`, `in vain`, `slower`, `failed`, or empty
    where no patch was made."""
    note: str

    @property
    def is_in_range(self) -> bool | None:
        """Whether the gain lies between the low and the high end, give or take the noise."""
        if self.gain is None or self.predicted is None:
            return None
        low, _, high = self.predicted
        return low - self.noise <= self.gain <= high + self.noise

    @property
    def is_slower(self) -> bool:
        """Whether the advice made the program slower by more than the noise."""
        return self.gain is not None and self.gain < -max(self.noise, 0.01)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a program runs."""

    name: str
    repository: str
    directory: str
    """Within the repository."""
    command: tuple[str, ...]
    data: dict[str, str]
    """Where the files of each generator go, relative to the directory."""
    marker: str
    """What ends a step."""

    def folder(self, clones: Path) -> Path:
        """Where the program is started."""
        return clones / self.repository.replace("/", "+") / self.directory


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a batch."""

    name: str
    framework: str
    """As in the heading of a column: `PyTorch`, `TensorFlow and Keras`, `JAX`."""
    repository: str
    """`owner/name`, or `.` for programs of our own."""
    left_out: str
    """Why it is not judged; empty if it is."""
    truth: Truth | None
    verdict: Verdict | None

    @property
    def is_right(self) -> bool:
        """Whether the first finding names the cause; of a healthy program, whether none is high."""
        if self.truth is None or self.verdict is None:
            return False
        if "healthy" in self.truth.causes and self.verdict.severity != "high":
            return True
        return not set(self.verdict.names).isdisjoint(self.truth.causes)


def programs(batch: str) -> list[Program]:
    """The programs of a batch, in the order of the list.

    Args:
        batch: `gpu`: the name of its files.
    """
    truths, verdicts = (_rows(f"{batch}_{what}.toml") for what in ("truths", "verdicts"))
    return [
        Program(
            name=row["name"],
            framework=collection["framework"],
            repository=collection["repository"],
            left_out=truths.get(row["name"], {}).get("left_out", ""),
            truth=_truth(truths.get(row["name"], {})),
            verdict=_verdict(verdicts.get(row["name"])),
        )
        for collection in _table(f"{batch}.toml")["collection"]
        for row in collection["program"]
    ]


def recipes(batch: str) -> list[Recipe]:
    """How the programs of a batch run, in the order of the list."""
    return [
        Recipe(
            name=row["name"],
            repository=collection["repository"],
            directory=row["directory"],
            command=tuple(row["command"].split()),
            data=row.get("data", {}),
            marker=row["marker"],
        )
        for collection in _table(f"{batch}.toml")["collection"]
        for row in collection["program"]
    ]


def judged_before() -> list[Program]:
    """The programs of all batches that have been judged, as `judged/` keeps them."""
    return [
        Program(
            name=row["name"],
            framework=collection["framework"],
            repository=collection["repository"],
            left_out=row.get("left_out", ""),
            truth=_truth(row),
            verdict=_verdict(row if "causes" in row else None),
        )
        for name in ("public", "small")
        for collection in _table(f"judged/{name}.toml")["collection"]
        for row in collection["programs"]
    ]


def judged(batch: Sequence[Program]) -> list[Program]:
    """Those with a truth and a verdict."""
    return [each for each in batch if each.truth is not None and each.verdict is not None]


def _truth(row: dict[str, Any]) -> Truth | None:
    if "causes" not in row:
        return None
    best_gain = row.get("best_gain")
    return Truth(tuple(row["causes"]), row["change"], best_gain, row.get("reason", ""))


def _verdict(row: dict[str, Any] | None) -> Verdict | None:
    if row is None:
        return None
    predicted = row.get("predicted")
    return Verdict(
        recorded=row["recorded"],
        said=row.get("said", ""),
        severity=row.get("severity", ""),
        names=tuple(row.get("names", ())),
        predicted=None if predicted is None else (predicted[0], predicted[1], predicted[2]),
        gain=row.get("gain"),
        noise=row.get("noise", 0.0),
        patch=row.get("patch", ""),
        note=row.get("note", ""),
    )


def _rows(name: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in _table(name).get("program", [])}


def _table(name: str) -> dict[str, Any]:
    path = FOLDER / name
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
