"""No command writes onto a file that it reads, and a failure leaves the file that was there."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.support.command import SLOW, error, run
from tests.support.event_files import write_scalar


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run that was recorded twice, with scalars, and its code."""
    (trace,) = SLOW.glob("*.json.gz")
    for session in ("2026_01_01_00_00_00", "2026_01_02_00_00_00"):
        directory = tmp_path / "runs" / session
        directory.mkdir(parents=True)
        shutil.copy(trace, directory)
    write_scalar(tmp_path / "runs", "loss", {1: 1.0, 2: 2.0})
    (tmp_path / "train.py").write_text("loader = DataLoader(data)\n")
    (tmp_path / "advice.toml").write_text("parameters = 1_000\n")
    return tmp_path / "runs"


def content_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_no_command_replaces_an_input(runs: Path) -> None:
    first, second = (str(path.parent) for path in sorted(runs.rglob("*.json.gz")))
    trace, other = sorted(runs.rglob("*.json.gz"))
    (events,) = runs.glob("events*")
    config, code = runs.parent / "advice.toml", runs.parent / "train.py"
    link, hard = runs.parent / "link.json", runs.parent / "hard.json"
    link.symlink_to(other)
    hard.hardlink_to(other)
    before = content_of(runs.parent)
    for command in (
        ("analyze", trace, "-o", trace),
        *(("analyze", runs, "-o", output) for output in (trace, other, link, hard, events)),
        ("analyze", runs, "--config", config, "-o", config),
        ("analyze", runs, "--repo", runs.parent, "-o", code),
        ("compare", first, second, "-o", hard),
        ("compare", first, second, "--config", config, "-o", config),
        ("history", first, second, "-o", link),
        ("anonymize", other, hard),
    ):
        assert "would be lost" in error(*command), command
    assert content_of(runs.parent) == before


def test_no_patch_replaces_an_input(runs: Path) -> None:
    trace, code = min(runs.rglob("*.json.gz")), runs.parent / "train.py"
    code.write_text("from torch.utils.data import DataLoader\n\nloader = DataLoader(data)\n")
    patches = runs.parent / "patches"
    command = ("suggest", trace, "--repo", runs.parent, "--output", patches)
    run(*command)
    patch = min(patches.iterdir())
    for target in (trace, code):
        before = target.read_bytes()
        patch.unlink()
        patch.symlink_to(target)
        assert "would be lost" in error(*command)
        assert target.read_bytes() == before


def test_a_full_disk_leaves_the_old_report(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    report = runs.parent / "report.md"
    report.write_text("old")
    monkeypatch.setattr(os, "fsync", fail)
    first, second = (path.parent for path in sorted(runs.rglob("*.json.gz")))
    for command in (
        ("analyze", first, "--format", "markdown", "-o", report),
        ("compare", first, second, "-o", report),
        ("history", first, second, "-o", report),
        ("anonymize", min(runs.rglob("*.json.gz")), report),
    ):
        assert "cannot be written: No space left on device" in error(*command), command
        assert report.read_text() == "old"
    assert [path.name for path in runs.parent.glob(".*")] == []


def test_writes_to_standard_output_by_its_name(runs: Path) -> None:
    assert "wrote /dev/null" in run("analyze", runs, "-o", "/dev/null").stderr
    assert not Path("/dev/null").is_file()
