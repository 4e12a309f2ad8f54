"""What links lead to, out of a directory that nothing may be read outside of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tb_perfadvisor.errors import PerfAdvisorError
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.event_files.run_scalars import read_run
from tb_perfadvisor.ingest.event_files.runs import event_runs
from tb_perfadvisor.ingest.files import containment
from tb_perfadvisor.ingest.files.access import list_tree, open_file
from tb_perfadvisor.ingest.files.containment import LEADS_OUT, LeadsOutError
from tb_perfadvisor.ingest.files.tree import FileEntry, file_entry
from tb_perfadvisor.ingest.load import load_capture
from tests.support.shared_logdir import DIRECTORY, LINKS, SECRET, shared_logdir


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a file in a subdirectory, and a file beside it."""
    (tmp_path / "root" / "run").mkdir(parents=True)
    (tmp_path / "root" / "run" / "a.json").write_bytes(b"inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.json").write_bytes(b"outside")
    return tmp_path / "root"


def entry(root: Path, path: str) -> FileEntry:
    return file_entry(path, 6, 0, boundary=str(root))


def read(root: Path, path: str) -> bytes:
    with open_file(str(root), entry(root, path)) as stream:
        return stream.read()


def link_to_file(root: Path) -> str:
    (root / "run" / "link.json").symlink_to(root.parent / "outside" / "a.json")
    return "run/link.json"


def link_to_directory(root: Path) -> str:
    (root / "link").symlink_to(root.parent / "outside")
    return "link/a.json"


def link_to_link(root: Path) -> str:
    (root / "run" / "second.json").symlink_to("link.json")
    link_to_file(root)
    return "run/second.json"


def relative_link(root: Path) -> str:
    (root / "run" / "up").symlink_to("../..")
    return "run/up/outside/a.json"


def dots(root: Path) -> str:
    return "run/../../outside/a.json"


def sibling_with_the_same_beginning(root: Path) -> str:
    (root.parent / "root2").mkdir()
    (root.parent / "root2" / "a.json").write_bytes(b"outside")
    (root / "link").symlink_to(root.parent / "root2")
    return "link/a.json"


@pytest.mark.parametrize(
    "lead",
    [
        link_to_file,
        link_to_directory,
        link_to_link,
        relative_link,
        dots,
        sibling_with_the_same_beginning,
    ],
)
def test_nothing_outside_is_opened(root: Path, lead: Callable[[Path], str]) -> None:
    path = lead(root)
    with open_file(str(root), file_entry(path, 7, 0)) as stream:
        assert stream.read() == b"outside"  # links may lead anywhere by default
    with pytest.raises(LeadsOutError) as caught:
        read(root, path)
    assert str(caught.value) == f"{path}: {LEADS_OUT}"


def test_links_inside_are_followed(root: Path) -> None:
    (root / "link.json").symlink_to("run/a.json")
    (root / "latest").symlink_to(root / "run")
    for path in ("run/a.json", "link.json", "latest/a.json"):
        assert read(root, path) == b"inside"
    told: list[float] = []
    with open_file(str(root), entry(root, "latest/a.json"), told.append) as stream:
        assert stream.read(6) == b"inside"
    assert told == [1.0]


def test_the_boundary_may_lie_far_above(root: Path) -> None:
    link_to_file(root)
    file = file_entry("run/link.json", 7, 0, boundary=str(root.parent))
    with open_file(str(root), file) as stream:
        assert stream.read() == b"outside"


@pytest.mark.skipif(not containment._OPENS_STEPWISE, reason="the system cannot open step by step")
@pytest.mark.parametrize("exchanged", ["run/a.json", "run"])
def test_a_link_that_comes_after_the_check_is_not_followed(
    root: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str
) -> None:
    checked = containment.resolve_inside

    def resolve_then_exchange(path: str, boundary: str) -> str:
        place = checked(path, boundary)
        (root / exchanged).rename(root / "away")
        (root / exchanged).symlink_to(root.parent / exchanged.replace("run", "outside"))
        return place

    monkeypatch.setattr(containment, "resolve_inside", resolve_then_exchange)
    with pytest.raises(PerfAdvisorError, match="the file cannot be opened"):
        read(root, "run/a.json")


@pytest.mark.parametrize("exchanged", ["run/a.json", "run"])
def test_what_is_opened_is_checked_where_directories_cannot_be_opened(
    root: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str
) -> None:
    monkeypatch.setattr(containment, "_OPENS_STEPWISE", False)
    assert read(root, "run/a.json") == b"inside"
    opened = os.open

    def exchange_then_open(path: str, flags: int) -> int:
        (root / exchanged).rename(root / "away")
        (root / exchanged).symlink_to(root.parent / exchanged.replace("run", "outside"))
        return opened(path, flags)

    monkeypatch.setattr(os, "open", exchange_then_open)
    with pytest.raises(LeadsOutError):
        read(root, "run/a.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_is_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe.json")
    with pytest.raises(PerfAdvisorError, match="this is not a file"):
        read(root, "pipe.json")
    with pytest.raises(PerfAdvisorError, match="cannot be opened"):
        read(root, "run")


def everything(path: str) -> bool:
    return path.endswith(".json")


@pytest.mark.parametrize("is_stepwise", [True, False])
def test_listing_tells_nothing_of_what_lies_outside(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_stepwise: bool
) -> None:
    if not is_stepwise:
        monkeypatch.setattr(containment, "_OPENS_STEPWISE", False)
    link_to_file(root)
    link_to_directory(root)
    (root / "gone.json").symlink_to(root.parent / "nothing")
    (root / "gone").symlink_to(root.parent / "nothing")
    (root / "latest").symlink_to(root / "run")
    tree = list_tree(root, everything, str(root))
    # One name of two that lead to the same directory, as everywhere.
    assert [file.path for file in tree.entries] == ["latest/a.json"]
    assert {file.boundary for file in tree.entries} == {str(root)}
    # Whether there is something at the other end is not told.
    assert sorted(tree.leading_out) == ["gone.json", "latest/link.json"]
    assert tree.gaps == ("gone, link lead out of the directory that may be read",)
    assert [file.path for file in list_tree(root, everything).entries] == [
        "latest/a.json", "latest/link.json", "link/a.json",
    ]  # fmt: skip


@pytest.mark.skipif(not containment._OPENS_STEPWISE, reason="the system cannot open step by step")
def test_a_directory_that_becomes_a_link_is_not_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = containment.resolve_inside

    def resolve_then_exchange(path: str, boundary: str) -> str:
        place = checked(path, boundary)
        if path.endswith("run"):
            (root / "run").rename(root / "away")
            (root / "run").symlink_to(root.parent / "outside")
        return place

    monkeypatch.setattr(containment, "resolve_inside", resolve_then_exchange)
    tree = list_tree(root, everything, str(root))
    assert tree.entries == ()
    assert tree.gaps == ("run may not be read",)


def test_a_root_outside_is_refused(root: Path) -> None:
    link_to_directory(root)
    for path in (root.parent, root / "link", root / "link" / "a.json"):
        with pytest.raises(LeadsOutError):
            list_tree(path, everything, str(root))


def test_all_that_belongs_to_a_capture_is_contained(tmp_path: Path) -> None:
    logs = shared_logdir(tmp_path)
    everywhere, inside = discover(logs), discover(logs, str(logs))
    assert len(everywhere.captures) == 4
    assert len(everywhere.event_files) == 1
    (capture,) = inside.captures
    assert [file.path for file in capture.files] == [
        "run/worker0.1700000000000000000.pt.trace.json"
    ]
    assert (capture.attached, inside.event_files) == ((), ())
    assert sorted((file.path, file.reason) for file in inside.rejected) == [
        (link, LEADS_OUT) for link in sorted(LINKS)
    ]
    assert inside.gaps == (f"{DIRECTORY} leads out of the directory that may be read",)


def test_files_that_become_links_after_they_were_listed(tmp_path: Path) -> None:
    logs = shared_logdir(tmp_path)
    for link in LINKS[:3]:
        target = (logs / link).readlink()
        (logs / link).unlink()
        (logs / link).write_bytes(target.read_bytes())
    (logs / LINKS[3]).unlink()
    listing = discover(logs, str(logs))
    (capture,) = (each for each in listing.captures if each.format == "kineto")
    (event_run,) = event_runs(listing).values()
    assert capture.compile_logs
    for link, target in zip(LINKS[:3], ("snapshot", "log", "events"), strict=True):
        (logs / link).unlink()
        (logs / link).symlink_to(tmp_path / "outside" / target)
    loaded = load_capture(listing, capture)
    (trace,) = loaded.traces
    assert trace.snapshot is None
    assert loaded.compile_logs == ()
    notes = [note.message for note in (*loaded.notes, *trace.notes)]
    for link in LINKS[:2]:
        assert f"{link} was left out: {LEADS_OUT}" in notes
    assert SECRET not in repr(notes)
    with pytest.raises(LeadsOutError):
        read_run(event_run)
