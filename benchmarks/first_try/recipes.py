"""The frozen lists: which profiles and histories belong to the first try, and where they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One version of one file in a public repository."""

    repository: str
    commit: str
    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Profile:
    """One recorded run: a file per process."""

    name: str
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Two profiles of one program, before and after a change by its author."""

    name: str
    half: str
    """`tuning` or `test`."""
    source: str
    """Where the author says what was changed."""
    before: Profile
    after: Profile


BATCHES = {
    "first": ("profiles.toml", "truths.toml"),
    "second": ("second_profiles.toml", "second_truths.toml"),
    "third": ("third_profiles.toml", "third_truths.toml"),
}
"""The files with the profiles and the truths of each batch."""


def profiles(batch: str = "first") -> tuple[Profile, ...]:
    """Profiles of a batch, whose first finding is judged."""
    rows = table(BATCHES[batch][0])["profile"]
    return tuple(Profile(row["name"], _files(row, "files")) for row in rows)


def histories() -> tuple[History, ...]:
    """Pairs of profiles whose gain is compared with the predicted savings."""
    return tuple(
        History(
            row["name"],
            row["half"],
            row["source"],
            Profile(f"{row['name']}/before", _files(row, "before")),
            Profile(f"{row['name']}/after", _files(row, "after")),
        )
        for row in table("histories.toml")["history"]
    )


def folders(directory: Path) -> Iterator[tuple[Profile, Path]]:
    """Every profile of all lists, with the folder where `collect` puts it."""
    for batch in BATCHES:
        for profile in profiles(batch):
            yield profile, profile_folder(directory, profile)
    for history in histories():
        for side in (history.before, history.after):
            yield side, history_folder(directory, side)


def profile_folder(directory: Path, profile: Profile) -> Path:
    """Where a profile of profiles.toml lies."""
    return directory / "profiles" / profile.name


def history_folder(directory: Path, side: Profile) -> Path:
    """Where one side of a history lies."""
    return directory / "histories" / side.name


def table(name: str) -> dict[str, Any]:
    """A TOML file of this folder."""
    content: dict[str, Any] = tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))
    return content


def _files(row: dict[str, Any], key: str) -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(row["repository"], file["commit"], file["path"], file["bytes"], file["sha256"])
        for file in row[key]
    )
