"""What a recording is that should not be acted on, on the command line and in each format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import HEALTHY, run
from tests.support.device_loops import KERNELS, loop
from tests.support.writers import write_kineto


def recorded(path: Path, *lost_steps: int) -> Path:
    """A file of ten steps, some of which lack their kernels."""
    lost = frozenset((step, k) for step in lost_steps for k in range(KERNELS))
    path.mkdir()
    trace = loop(10, lost=lost).source(is_synthetic=False).build()
    (path / "worker0.1.pt.trace.json").write_bytes(write_kineto(trace))
    return path


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    return recorded(tmp_path / "doubtful", *range(3, 10))


def test_a_gate_is_not_decided(doubtful: Path) -> None:
    done = run("analyze", doubtful, "--fail-on", "low", status=3)
    assert done.stderr.startswith(
        "note: doubtful: cannot be decided, because most steps lack their device events. Record "
    )
    assert "7 of 10 steps (3 to 9) lack device events" in " ".join(done.stdout.split())


def test_without_a_gate_the_report_is_printed(doubtful: Path) -> None:
    run("analyze", doubtful)
    done = run("compare", HEALTHY, doubtful, "--fail-on-regression", 5, status=3)
    assert "because most steps lack their device events" in " ".join(done.stderr.split())


def test_a_limited_recording_decides_a_gate(tmp_path: Path) -> None:
    path = recorded(tmp_path / "limited", 3, 4)
    done = run("analyze", path, "--fail-on", "high")
    assert "Limited trust:" in done.stdout
    left_out = "Left out: steps 0, 1 and 2 (partial: the device events of steps beside it were not"
    assert left_out in " ".join(done.stdout.split())


def test_each_format_says_it(doubtful: Path) -> None:
    report = json.loads(run("analyze", doubtful, "--format", "json").stdout)["reports"][0]
    assert report["trust"]["level"] == "do not act"
    assert [reason["id"] for reason in report["trust"]["reasons"]] == ["lost-steps"]
    assert report["first"] is None
    brief = json.loads(run("analyze", doubtful, "--format", "brief").stdout)["reports"][0]
    assert brief["trust"] == "do not act"
    assert brief["trust_reasons"][0].startswith("7 of 10 steps (3 to 9) lack device events")
    assert brief["steps_left_out"].startswith("Left out: steps 3, 4, 5, 6, 7, 8 and 9 (partial: ")
    markdown = run("analyze", doubtful, "--format", "markdown").stdout
    assert "**Do not act on this report:**" in markdown
    assert "\nLeft out: steps 3, 4, 5, 6, 7, 8 and 9 (partial:" in markdown


def test_the_table_of_several_recordings_says_it(tmp_path: Path) -> None:
    recorded(tmp_path / "doubtful", *range(3, 10))
    recorded(tmp_path / "limited", 3, 4)
    recorded(tmp_path / "sound")
    lines = run("analyze", tmp_path).stdout.splitlines()
    rows = {
        name: line for line in lines for name in ("doubtful", "limited", "sound") if name in line
    }
    assert "do not act: record again" in rows["doubtful"]
    assert "limited trust" in rows["limited"]
    assert "trust" not in rows["sound"]
    assert "act" not in rows["sound"]
