"""TensorBoard's own readers can read what is published, and the runs' files stay untouched."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tb_perfadvisor import analyze
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.files.remote.store import Store
from tb_perfadvisor.publish import MOST_TEXT_BYTES, fit, publish, scalars
from tb_perfadvisor.report.report import Report
from tests.support.command import error, run
from tests.support.object_stores import ObjectStore

DEMO_LOGS = Path(__file__).resolve().parents[2] / "demo_logs"
EVENTS = "events.out.tfevents.*"


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    for name in ("pytorch_input_slow", "jax_recompiling"):
        shutil.copytree(DEMO_LOGS / name, tmp_path / "runs" / name)
    return tmp_path / "runs"


def reports_of(logdir: Path) -> list[Report]:
    """Reports with files relative to the logdir, as the command makes them."""
    from tb_perfadvisor.api.analyses import analyze_captures
    from tb_perfadvisor.engine.config import Config
    from tb_perfadvisor.ingest.discovery import discover

    listing = discover(logdir)
    found = analyze_captures(listing, listing.captures, Config())
    return [report for report in found if isinstance(report, Report)]


def read(directory: Path) -> EventAccumulator:
    accumulator: Any = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def text_of(accumulator: Any, tag: str) -> str:
    (event,) = accumulator.Tensors(tag)
    (content,) = event.tensor_proto.string_val
    assert isinstance(content, bytes)
    return content.decode()


def test_texts_and_scalars_as_tensorboard_reads_them(logdir: Path) -> None:
    reports = reports_of(logdir)
    before = {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}
    assert publish(reports, str(logdir)) == [
        "jax_recompiling/perf_advisor",
        "pytorch_input_slow/perf_advisor",
    ]
    for path, content in before.items():
        assert path.read_bytes() == content, "no file of a run is touched"
    (report,) = [item for item in reports if item.run == "pytorch_input_slow"]
    events = read(logdir / "pytorch_input_slow" / "perf_advisor")
    assert set(events.PluginTagToContent("text")) == {
        "perf_advisor/summary",
        *(f"perf_advisor/findings/{finding.rule_id}" for finding in report.findings),
    }
    assert report.headline in text_of(events, "perf_advisor/summary")
    text = text_of(events, "perf_advisor/findings/input-stall")
    assert text.startswith("## 1. Feed the step without making it wait")
    assert "```python" in text
    assert "perf_advisor/step_time_ms" in events.PluginTagToContent("scalars")
    (point,) = events.Tensors("perf_advisor/step_time_ms")
    # 116 ms per step, as in the README.
    assert point.tensor_proto.float_val[0] == pytest.approx(116, abs=0.5)
    assert point.step == 0


def test_publishing_again_replaces_older_summaries(logdir: Path) -> None:
    reports = reports_of(logdir)
    publish(reports, str(logdir))
    directory = logdir / "jax_recompiling" / "perf_advisor"
    (first,) = directory.glob(EVENTS)
    (directory / "notes.txt").write_text("somebody's")
    (directory / "events.out.tfevents.1.host").write_bytes(b"")
    publish(reports, str(logdir))
    names = sorted(path.name for path in directory.glob("*perf_advisor"))
    assert len(names) == 1
    assert names[0] > first.name, "readers take files in the order of their names"
    assert (directory / "notes.txt").exists()
    assert (directory / "events.out.tfevents.1.host").exists()
    again = reports_of(logdir)
    assert [report.run for report in again] == [report.run for report in reports], (
        "not taken for profiles"
    )


def test_publishing_again_after_the_clock_was_set_back(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = reports_of(logdir)
    publish(reports, str(logdir))
    directory = logdir / "jax_recompiling" / "perf_advisor"
    (first,) = directory.glob(EVENTS)
    strange = directory / first.name.replace(first.name.split(".")[3], "\u00b2")
    strange.write_bytes(b"")
    monkeypatch.setattr("tb_perfadvisor.publish.time.time", lambda: 1.0)
    publish(reports, str(logdir))
    (second,) = directory.glob(EVENTS)
    assert second.name > first.name, "readers take files in the order of their names"


def test_each_recording_of_a_run_is_a_step(logdir: Path) -> None:
    (first,) = [report for report in reports_of(logdir) if report.run == "jax_recompiling"]
    second = msgspec.structs.replace(first, session="9999_01_01_00_00_00")
    publish([second, first], str(logdir))
    events: Any = read(logdir / "jax_recompiling" / "perf_advisor")
    assert [event.step for event in events.Tensors("perf_advisor/findings")] == [0, 1]


def test_texts_fit_into_an_upload() -> None:
    blocks = ["head", "ü" * 5000, "code" * 1000, "tail"]
    text = fit(blocks)
    # 10,000 bytes fit, 4,000 more do not, and everything after them is left out.
    assert text.startswith("head\n\nü")
    assert "tail" not in text
    assert text.endswith("shows the rest.*")
    assert len(text.encode()) <= MOST_TEXT_BYTES
    assert fit(["a", "b"]) == "a\n\nb"


def test_unknown_numbers_are_not_written() -> None:
    report = analyze(DEMO_LOGS / "pytorch_input_slow")
    tags = scalars(report)
    assert "perf_advisor/device_compute_pct" not in tags, "a CPU's profile has no device"
    assert tags["perf_advisor/input_wait_pct"] == pytest.approx(48.7, abs=0.1)


def test_an_unwritable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "perf_advisor").write_text("a file in the way")
    with pytest.raises(UsageError, match="cannot be written"):
        publish([analyze(DEMO_LOGS / "pytorch_input_slow")], str(tmp_path))


def test_it_never_leaves_the_logdir(logdir: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(logdir / "jax_recompiling", outside / "run")
    (logdir / "jax_recompiling").symlink_to(outside / "run")
    done = run("publish", logdir)
    assert done.stdout == "wrote pytorch_input_slow/perf_advisor/\n"
    assert "jax_recompiling/perf_advisor: is not written, because a link leads" in done.stderr
    assert not (outside / "run" / "perf_advisor").exists()
    shutil.rmtree(logdir / "pytorch_input_slow" / "perf_advisor")
    (outside / "empty").mkdir()
    (logdir / "pytorch_input_slow" / "perf_advisor").symlink_to(outside / "empty")
    assert "is not written, because a link leads to it" in error("publish", logdir)
    assert list((outside / "empty").iterdir()) == []


def test_links_inside_of_the_logdir_are_followed(logdir: Path) -> None:
    (logdir / "pytorch_input_slow").rename(logdir / ".stored")
    (logdir / "pytorch_input_slow").symlink_to(".stored")
    assert "pytorch_input_slow/perf_advisor" in publish(reports_of(logdir), str(logdir))
    assert list((logdir / ".stored" / "perf_advisor").glob(EVENTS))


def test_a_full_disk_leaves_what_was_published(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = reports_of(logdir)
    publish(reports, str(logdir))
    before = sorted(logdir.rglob("*"))

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        publish(reports, str(logdir))
    assert sorted(logdir.rglob("*")) == before


def test_the_command(logdir: Path) -> None:
    assert run("publish", logdir).stdout.splitlines() == [
        "wrote jax_recompiling/perf_advisor/",
        "wrote pytorch_input_slow/perf_advisor/",
    ]
    error("publish", logdir / "none")


@pytest.mark.parametrize("kind", ["gcs", "s3"])
def test_a_bucket(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store: ObjectStore = request.getfixturevalue(kind)
    (source,) = (DEMO_LOGS / "pytorch_input_slow").glob("*.gz")
    store.put("bucket", f"runs/slow/{source.name}", source.read_bytes())
    url = f"{store.scheme}://bucket/runs"
    for _ in range(2):
        assert run("publish", url).stdout == "wrote slow/perf_advisor/\n"
    filesystem: Any = Store(url).filesystem
    (path,) = filesystem.ls("bucket/runs/slow/perf_advisor", detail=False)
    local = tmp_path / "published" / str(path).rpartition("/")[2]
    local.parent.mkdir()
    local.write_bytes(filesystem.cat_file(path))
    summary = text_of(read(local.parent), "perf_advisor/summary")
    assert "- 1. **Feed the step without making it wait**" in summary
