"""From the findings of a report to patches: one for each finding that has a mechanical fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Literal

import msgspec

from tb_perfadvisor.contract import model
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.report.formats.wording import branches_of
from tb_perfadvisor.sources import Repository, files_of_program, places_in
from tb_perfadvisor.suggest.code import Code, Edit, Fix, is_python
from tb_perfadvisor.suggest.fixes import (
    compiled_steps,
    tfdata,
    torch_computing,
    torch_loading,
    torch_optimizing,
    trainers,
)

FIXES = (
    *torch_loading.FIXES,
    *torch_optimizing.FIXES,
    *torch_computing.FIXES,
    *trainers.FIXES,
    *tfdata.FIXES,
    *compiled_steps.FIXES,
)
FIX_BY_ID = MappingProxyType({fix.id: fix for fix in FIXES})
MAX_PLACES = 5
_NO_NEWLINE = "\n\\ No newline at end of file\n"
_TRAINING = regex(r"train", re.IGNORECASE)
_NOT_TRAINING = regex(r"(^|_)(val|valid|validation|test|eval|evaluate|predict)(_|$|\d)")
_TEST_FILE = regex(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.py$|conftest\.py$)")

Outcome = Literal["patch", "same", "unsure", "none"]


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """What to change for one finding."""

    number: str
    """The finding's number in the report: 1, and what refines it, 1a."""
    rule_id: str
    title: str
    outcome: Outcome
    """`patch`; `same` as that of an earlier finding; `unsure` where or how; `none`: no fix here."""
    changes: list[str]
    """What the patch does, with its places: `train.py:12: num_workers=4`."""
    reason: str
    """Why there is no patch; empty if there is one."""
    places: list[str]
    """Where to look if there is no patch: `train.py:12`."""
    notes: list[str]
    """What to check after the change."""
    patch: str
    """A unified diff relative to the repository, on top of the patches of earlier findings."""


class _Found(msgspec.Struct, frozen=True):
    code: Code
    change: Edit

    @property
    def place(self) -> str:
        return f"{self.code.path}:{self.code.line(self.change.node)}"


class _Texts:
    """The files of a repository, with the changes of earlier findings."""

    def __init__(self, repository: Repository, script: str | None) -> None:
        self.repository = repository
        self.script = script
        self.program = frozenset[str]()
        """The files of the profiled program; empty if its script is unknown."""
        if script is not None:
            is_there = script in repository.files
            scripts = [script] if is_there else repository.candidates(script)
            self.program = files_of_program(repository, scripts)
        self._changed: dict[str, str] = {}
        self._parsed: dict[str, tuple[str, Code | None]] = {}

    def text(self, path: str) -> str | None:
        return self._changed.get(path, self.repository.raw_text(path))

    def change(self, path: str, text: str) -> None:
        self._changed[path] = text

    def code(self, path: str) -> Code | None:
        """The parsed file; None if it is no valid Python."""
        text = self.text(path)
        if text is None:
            return None
        known = self._parsed.get(path)
        if known is None or known[0] != text:
            try:
                known = (text, Code(path, text))
            except ValueError:
                known = (text, None)
            self._parsed[path] = known
        return known[1]

    def mentioning(self, words: Sequence[str]) -> Iterator[Code]:
        """The files that contain one of some words."""
        for path in self.repository.files:
            text = self.text(path)
            if text is None or not any(word in text for word in words):
                continue
            code = self.code(path)
            if code is not None:
                yield code

    def file_of(self, place: model.Place) -> str | None:
        """The file that a place means; one of the program, if several have its name."""
        named = [path for path in self.repository.candidates(place.file) if path in self.program]
        if len(named) == 1:
            return named[0]
        return place.source.path if place.source is not None else None


def suggest(
    report: model.Report, repository: Repository, rules: Sequence[str] = ()
) -> list[Suggestion]:
    """The suggestions for the findings of a report, best finding first.

    The repository has the code of the program and is only read. Without `rules`, findings of all of
    them count.
    """
    texts, seen = _Texts(repository, report.workload.script), dict[str, str]()
    parts = {*report.workload.input, *report.workload.features}
    suggestions = []
    for branch in branches_of(report):
        for entry in (branch.entry, *branch.refined):
            if not rules or entry.finding.rule_id in rules:
                found = _suggestion(entry.number, entry.finding, texts, seen, parts)
                suggestions.append(found)
    return suggestions


def _suggestion(
    number: str, finding: model.FindingInfo, texts: _Texts, seen: dict[str, str], parts: set[str]
) -> Suggestion:
    places = places_in(finding, texts.repository)
    unsure: list[_Found] = []
    reason = ""
    for remedy in finding.remedies:
        before = {path: texts.text(path) for path in texts.repository.files}
        applied: list[_Found] = []
        earlier: list[str] = []
        for fix in (FIX_BY_ID[fix_id] for fix_id in remedy.fixes if fix_id in FIX_BY_ID):
            if fix.id in seen:
                earlier.append(seen[fix.id])
                continue
            found = list(_changes(fix, remedy, texts, parts))
            chosen, why = _choose(found, places, texts)
            if isinstance(chosen, _Found):
                code = chosen.code
                text = code.with_changes(chosen.change.replacements)
                if not is_python(text):
                    unsure.append(chosen)
                    reason = reason or "the changed code would not be valid Python"
                    continue
                texts.change(code.path, text)
                applied.append(chosen)
                seen[fix.id] = number
            elif chosen:
                unsure += chosen
                reason = reason or why
        if applied:
            return Suggestion(
                number=number,
                rule_id=finding.rule_id,
                title=finding.title,
                outcome="patch",
                changes=[f"{found.place}: {found.change.what}" for found in applied],
                reason="",
                places=[],
                notes=list(dict.fromkeys(f.change.note for f in applied if f.change.note)),
                patch="".join(
                    _unified_diff(path, before[path] or "", texts.text(path) or "")
                    for path in dict.fromkeys(found.code.path for found in applied)
                ),
            )
        if earlier:
            return _without_patch(number, finding, "same", f"as for finding {earlier[0]}", [])
    if unsure:
        where = list(dict.fromkeys(found.place for found in unsure))[:MAX_PLACES]
        return _without_patch(number, finding, "unsure", reason, where)
    where = [
        f"{place.source.path}:{place.line}"
        for place in places
        if place.source is not None and place.source.path is not None
    ]
    return _without_patch(number, finding, "none", "no mechanical change fits this code", where)


def _without_patch(
    number: str, finding: model.FindingInfo, outcome: Outcome, reason: str, places: list[str]
) -> Suggestion:
    return Suggestion(
        number=number,
        rule_id=finding.rule_id,
        title=finding.title,
        outcome=outcome,
        changes=[],
        reason=reason,
        places=places,
        notes=[],
        patch="",
    )


def _changes(fix: Fix, remedy: model.Remedy, texts: _Texts, parts: set[str]) -> Iterator[_Found]:
    """The changes that a fix finds.

    What is present stays named only if the profiled program, with these parts, did not have it.
    """
    for code in texts.mentioning(fix.mentions):
        for change in fix.find(code, remedy.values):
            if change.present and fix.part is not None and fix.part.label in parts:
                if change.replacements:
                    yield _Found(code, change._replace(present=""))
            else:
                yield _Found(code, change)


def _choose(
    found: list[_Found], places: Sequence[model.Place], texts: _Texts
) -> tuple[_Found | list[_Found] | None, str]:
    """The one change that is surely meant; or those that may be, and why it is not sure."""
    if not found:
        return None, ""
    if texts.program:
        others, found = found, [each for each in found if each.code.path in texts.program]
        if not found:
            return others, f"the profiled program, {texts.script}, does not import this code"
    named_lines = [(texts.file_of(place), place.line) for place in places]
    same, near, exact = [], [], []
    for each in found:
        lines = [line for file, line in named_lines if file == each.code.path]
        if lines:
            same.append(each)
        if any(_is_near(each, line) for line in lines):
            near.append(each)
        if any(_is_at(each, line) for line in lines):
            exact.append(each)
    candidates = exact or near or same or found
    if len(candidates) > 1:
        # A loader or a pipeline for training is what a recorded training step reads.
        named = [each for each in candidates if _TRAINING.search(_name(each))]
        candidates = named if len(named) == 1 else candidates
    if len(candidates) > 1:
        # The profiled program lacked what is present here, so it ran another place.
        lacking = [each for each in candidates if not each.change.present]
        candidates = lacking or candidates
    if all(each.change.present for each in candidates):
        present = candidates[0].change.present
        return candidates, (
            f"the code has changed since the profile was recorded: {present} is there already; "
            "record it again"
        )
    if len(candidates) > 1:
        return candidates, f"{len(candidates)} places match"
    (only,) = candidates
    is_of_test = not texts.program and _TEST_FILE.search(only.code.path)
    if not same and (is_of_test or _NOT_TRAINING.search(_name(only))):
        return [only], "the only place that matches seems to be of a test or an evaluation"
    if only.change.unsure:
        return [only], only.change.unsure
    return only, ""


def _name(found: _Found) -> str:
    """What the changed expression is assigned to, or the function around it."""
    return found.code.target(found.change.node)


def _is_near(found: _Found, line: int) -> bool:
    """Whether a change is in the function around a line."""
    function = found.code.function_around(found.change.node)
    if function is None:
        return found.code.line(found.change.node) == line
    return found.code.line(function) <= line <= found.code.last_line(function)


def _is_at(found: _Found, line: int) -> bool:
    """Whether a change is on a line, such as that of a loader."""
    return found.code.line(found.change.node) <= line <= found.code.last_line(found.change.node)


def _unified_diff(path: str, before: str, after: str) -> str:
    """The diff of a file; empty if nothing changed.

    The path is relative to the repository, with `/`. Texts have their line ends.

    Raises:
        ValueError: If the path cannot stand in a diff.
    """
    if not path.isprintable() or '"' in path or "\\" in path:
        raise ValueError(f"the name of {path!r} cannot be written into a patch")
    # Git ends names that contain spaces with a tab.
    end = "\t" if " " in path else ""
    lines = difflib.unified_diff(
        _lines(before), _lines(after), f"a/{path}{end}", f"b/{path}{end}", lineterm="\n"
    )
    text = "".join(line if line.endswith("\n") else line + _NO_NEWLINE for line in lines)
    return f"diff --git a/{path} b/{path}\n{text}" if text else ""


def _lines(text: str) -> list[str]:
    """Lines with their ends; `str.splitlines` would also split at form feeds, and git does not."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended
