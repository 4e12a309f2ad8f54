"""Copies the files of the frozen lists out of clones of their repositories."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from first_try.recipes import Profile, SourceFile, folders

_XPLANE = ".xplane.pb"


def collect(clones: Path, directory: Path) -> list[str]:
    """Write every file below `directory`; returns a line per file that could not be had.

    `clones` holds git repositories, bare or not, as `owner+name`, `owner+name/repo` or
    `owner/name`.
    """
    problems = []
    for profile, folder in folders(directory):
        for target, file in zip(_targets(profile, folder), profile.files, strict=True):
            try:
                content = _content(clones, file)
            except (OSError, subprocess.CalledProcessError) as error:
                problems.append(f"{profile.name}: {file.repository}: {file.path}: {error}")
                continue
            if hashlib.sha256(content).hexdigest() != file.sha256:
                problems.append(f"{profile.name}: {file.path}: not the file that was frozen")
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    return problems


def _targets(profile: Profile, folder: Path) -> list[Path]:
    """A name per file that says what it is: exports are often called just `trace.json`."""
    names = []
    for rank, file in enumerate(profile.files):
        if file.path.endswith(_XPLANE):
            names.append(folder / "plugins" / "profile" / "recorded" / f"host{rank}{_XPLANE}")
        else:
            packed = ".gz" if file.path.endswith(".gz") else ""
            names.append(folder / f"rank{rank}.pt.trace.json{packed}")
    return names


def _content(clones: Path, file: SourceFile) -> bytes:
    done = subprocess.run(
        ["git", f"--git-dir={_git_folder(clones, file)}", "show", f"{file.commit}:{file.path}"],
        check=True,
        capture_output=True,
    )
    return done.stdout


def _git_folder(clones: Path, file: SourceFile) -> Path:
    owner, _, name = file.repository.partition("/")
    for clone in (clones / f"{owner}+{name}", clones / owner / name):
        for folder in (clone / "repo" / ".git", clone / "repo", clone / ".git", clone):
            if (folder / "HEAD").is_file():
                return folder
    raise FileNotFoundError(f"no clone of {file.repository} in {clones}")
