"""Which files are snapshots, and to which capture they belong."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.anonymize.files import anonymize_file
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.testing import draw
from tests.support.memory_snapshots import Snapshot
from tests.support.writers import write_kineto

PROFILE = """
    cell 1ms
    step   |.....|.....|
    main   |oo...|oo...|
    gpu 7  |.KKK.|.KKK.|
"""


def snapshot(peak: int = 1 << 30) -> bytes:
    made = Snapshot()
    segment = made.segment(peak)
    return made.allocate(segment, peak).free(segment, peak).pickled()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["a.pickle", "a.pkl", "a.pickle.gz", "deep/er/a.pkl.gz"])
def test_recognized_by_content(tmp_path: Path, name: str) -> None:
    data = snapshot()
    write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)
    (capture,) = discover(tmp_path).captures
    assert capture.format == "memory-snapshot"
    assert [file.path for file in capture.files] == [name]


def test_other_pickles_are_none_of_ours_unless_their_names_say_so(tmp_path: Path) -> None:
    other = pickle.dumps({"weights": [1.0, 2.0]})
    write(tmp_path / "vocabulary.pkl", other)
    write(tmp_path / "memory_snapshot.pickle", other)
    listing = discover(tmp_path)
    assert listing.captures == ()
    assert [file.path for file in listing.rejected] == ["memory_snapshot.pickle"]
    assert "no memory snapshot" in listing.rejected[0].reason


def test_a_pickle_that_the_user_names_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.pkl"
    write(path, pickle.dumps({"weights": [1.0, 2.0]}))
    (rejected,) = discover(path).rejected
    assert "no memory snapshot" in rejected.reason


def test_a_snapshot_belongs_to_the_profile_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "run" / "w.1700000000000.pt.trace.json", write_kineto(draw(PROFILE)))
    write(tmp_path / "run" / "memory.pickle", snapshot(3 << 30))
    (capture,) = discover(tmp_path).captures
    assert capture.format == "kineto"
    assert [file.path for file in capture.snapshots] == ["run/memory.pickle"]
    (run,) = load(tmp_path)
    trace = run.traces[0]
    assert len(trace.events) > 0
    assert trace.snapshot is not None
    assert int(trace.snapshot.events.size_bytes.max()) == 3 << 30


def test_a_damaged_snapshot_beside_a_profile_is_a_note(tmp_path: Path) -> None:
    write(tmp_path / "run" / "w.1700000000000.pt.trace.json", write_kineto(draw(PROFILE)))
    write(tmp_path / "run" / "memory.pickle", snapshot()[:-20])
    (run,) = load(tmp_path)
    assert run.traces[0].snapshot is None
    (note,) = [note for note in run.traces[0].notes if note.id == "unsupported-file"]
    assert note.message.startswith("run/memory.pickle was left out: ")


def test_several_snapshots_of_one_process_stand_alone(tmp_path: Path) -> None:
    write(tmp_path / "run" / "w.1700000000000.pt.trace.json", write_kineto(draw(PROFILE)))
    write(tmp_path / "run" / "before.pickle", snapshot())
    write(tmp_path / "run" / "after.pickle", snapshot())
    captures = discover(tmp_path).captures
    assert sorted((capture.format, capture.session) for capture in captures) == [
        ("kineto", "2023_11_14_22_13_20.000"),
        ("memory-snapshot", "after"),
        ("memory-snapshot", "before"),
    ]


def test_ranks_of_one_name_are_one_capture(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path / "run" / f"rank{rank}_memory_snapshot.pickle", snapshot())
    (capture,) = discover(tmp_path).captures
    assert [file.rank for file in capture.files] == [0, 1, 2]


def test_a_changed_snapshot_is_another_result(tmp_path: Path) -> None:
    from tb_perfadvisor.engine.result_cache import capture_key

    write(tmp_path / "run" / "w.1700000000000.pt.trace.json", write_kineto(draw(PROFILE)))
    write(tmp_path / "run" / "memory.pickle", snapshot())
    before = capture_key(str(tmp_path), discover(tmp_path).captures[0], "")
    write(tmp_path / "run" / "memory.pickle", snapshot(1 << 31))
    assert capture_key(str(tmp_path), discover(tmp_path).captures[0], "") != before


def test_anonymizing_says_what_to_do_instead(tmp_path: Path) -> None:
    made = Snapshot()
    made.segment(1 << 20)
    file = tmp_path / "memory.pickle"
    write(file, made.pickled())
    with pytest.raises(UsageError, match="not anonymized") as caught:
        anonymize_file(file, tmp_path / "copy")
    assert "context=None" in caught.value.hint
    assert not (tmp_path / "copy").exists()
