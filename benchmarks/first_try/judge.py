"""Compares reports with the truths of the first try."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from first_try.recipes import (
    BATCHES,
    FOLDER,
    History,
    Profile,
    histories,
    history_folder,
    profile_folder,
    profiles,
    table,
)
from first_try.truth import duration_ms

Report = dict[str, Any]
_ROOT = FOLDER.parents[1]


@dataclass(frozen=True, slots=True)
class ProfileVerdict:
    """Whether the first finding on a profile is what an expert would name."""

    profile: Profile
    causes: tuple[str, ...]
    """What an expert would name, in the words of truths.toml."""
    reason: str
    said: str
    """The first finding: rule and title, or what is said instead."""
    named: frozenset[str]
    """The causes that it names."""

    @property
    def is_right(self) -> bool:
        """Whether one of the expert's causes is named."""
        return not self.named.isdisjoint(self.causes)


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """How the predicted savings compare with what a change really saved."""

    history: History
    counts: bool
    reason: str
    gain: float
    """Share of the time before the change."""
    predicted: tuple[float, float, float] | None
    """Low, expected and high share of the first finding that names the cause of the change."""
    bound: float | None
    """The high end of all savings together, as a share; None if the report does not limit it."""

    @property
    def is_in_range(self) -> bool:
        """Whether the gain lies between the low and the high end."""
        return self.predicted is not None and self.predicted[0] <= self.gain <= self.predicted[2]

    @property
    def exceeds_bound(self) -> bool:
        """Whether more was gained than all findings together think possible."""
        return self.bound is not None and self.gain > self.bound


def judge_profiles(directory: Path, batch: str = "first") -> list[ProfileVerdict]:
    """Judge the first finding on every profile of a batch."""
    truths = {row["name"]: row for row in table(BATCHES[batch][1])["profile"]}
    names = table("causes.toml")["rules"]
    verdicts = []
    for profile in profiles(batch):
        truth = truths[profile.name]
        report = _report(profile_folder(directory, profile), directory, f"profiles/{profile.name}")
        said, named = first_causes(report, names)
        verdicts.append(
            ProfileVerdict(profile, tuple(truth["causes"]), truth["reason"], said, named)
        )
    return verdicts


def judge_histories(directory: Path, half: str) -> list[HistoryVerdict]:
    """Compare predicted savings and gains of one half of histories.toml."""
    truths = {row["name"]: row for row in table("truths.toml")["history"]}
    names = table("causes.toml")["rules"]
    verdicts = []
    for history in histories():
        if history.half != half:
            continue
        truth = truths[history.name]
        before, after = (
            duration_ms(history_folder(directory, side), truth["measure"])
            for side in (history.before, history.after)
        )
        folder = history_folder(directory, history.before)
        report = _report(folder, directory, f"histories/{history.name}")
        predicted, bound = predicted_shares(report, truth["change"], names)
        verdicts.append(
            HistoryVerdict(
                history, truth["counts"], truth["reason"], 1 - after / before, predicted, bound
            )
        )
    return verdicts


def _report(folder: Path, directory: Path, name: str) -> Report:
    """The report on a folder; it is analyzed once, and the report is kept beside the profiles."""
    target = directory / "reports" / f"{name}.json"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tb_perfadvisor", "analyze", str(folder.resolve())]
        options = ["--format", "json", "--no-cache", "--workers", "1"]
        subprocess.run([*command, *options, "-o", str(target.resolve())], check=False, cwd=_ROOT)
    content = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}
    reports: list[Report] = content.get("reports", [])
    return reports[0] if reports else {}


def first_causes(report: Report, names: dict[str, list[str]]) -> tuple[str, frozenset[str]]:
    """What a report says first, and which causes of truths.toml that names.

    A finding of low severity, or none, also says that nothing of weight is wrong; with a warning
    about the recording it says that the recording does not tell.
    """
    if not report:
        return "the file was rejected", frozenset()
    warned = any(note["severity"] == "warning" for note in report["notes"])
    named = {"warm-up"} if report["is_start_up"] else set[str]()
    first = report["first"]
    finding = report["findings"][first["index"]] if first else None
    if finding is None or finding["severity"] == "low":
        named |= {"healthy"} | ({"recording"} if warned else set())
    if finding is None:
        return f"no finding ({report['headline']})", frozenset(named)
    for rule in (finding["rule_id"], finding["refines"]):
        named |= set(names.get(rule, ()))
    return f"`{finding['rule_id']}`, {finding['title']}", frozenset(named)


def predicted_shares(
    report: Report, change: str, names: dict[str, list[str]]
) -> tuple[tuple[float, float, float] | None, float | None]:
    """Low, expected and high share for a change, and the high share of everything together."""
    if not report:
        return None, None
    window_ns = report["overview"]["step_time_ns"] or report["overview"]["window_ns"]
    combined = report["combined_saving"]
    bound = combined["high_ns"] / window_ns if combined else None
    for finding in report["findings"]:
        saving = finding["saving"]
        has_range = saving and saving["share_high"] is not None
        if has_range and change in names.get(finding["rule_id"], ()):
            shares = (saving["share_low"], saving["share_expected"], saving["share_high"])
            return (float(shares[0]), float(shares[1]), float(shares[2])), bound
    return None, bound
