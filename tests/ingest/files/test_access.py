"""Which roots are local, and listings of directories: their content, cost and gaps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.files import local_tree
from tb_perfadvisor.ingest.files.access import list_tree, open_file, read_heads
from tb_perfadvisor.ingest.files.tree import (
    FileEntry,
    Tree,
    file_entry,
    is_skipped,
    is_url,
    local_path,
)


def everything(path: str) -> bool:
    return True


def put(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x")


def listed(tree: Tree) -> list[str]:
    return [entry.path for entry in tree.entries]


@pytest.mark.parametrize(
    "root",
    [
        r"C:\logs",
        "C:/logs",
        "C://logs",
        r"c:\logs\run",
        r"\\server\share\logs",
        "//server/share/logs",
        "/logs",
        "logs",
        "~/logs",
        ".",
        "a::b",
        "file:///logs",
        "FILE:///logs",
        "local:///logs",
        "run: first/logs",
    ],
)
def test_local_roots(root: str) -> None:
    assert not is_url(root)


@pytest.mark.parametrize(
    "root",
    [
        "gs://bucket/logs",
        "s3://bucket",
        "memory://logs",
        "https://example.org/logs/",
        "abfs://container@account.dfs.core.windows.net/logs",
        "simplecache::s3://bucket/logs",
        "zip://run/*::s3://bucket/logs.zip",
        "zip://::file:///logs.zip",
    ],
)
def test_remote_roots(root: str) -> None:
    assert is_url(root)


def test_file_urls_and_homes_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("USERPROFILE", "/home/someone")
    assert local_path("file:///a/b") == "/a/b"
    assert local_path("local:///a/b") == "/a/b"
    assert local_path("~/a") == "/home/someone/a"
    assert local_path("~nobody-of-this-name/a") == "~nobody-of-this-name/a"
    put(tmp_path, "a.json")
    assert listed(list_tree(tmp_path.as_uri(), everything)) == ["a.json"]


def test_only_wanted_files_are_listed_but_all_are_counted(tmp_path: Path) -> None:
    put(tmp_path, "a.json", "b/c.json", "b/d.bin", "b/e.bin")
    tree = list_tree(tmp_path, lambda path: path.endswith(".json"))
    assert (listed(tree), tree.scanned_files, tree.gaps) == (["a.json", "b/c.json"], 4, ())
    first = (tmp_path / "a.json").stat()
    assert tree.entries[0] == FileEntry("a.json", 1, first.st_mtime_ns)


@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("checkpoints", True),
        ("ckpt", True),
        ("checkpoint-500", True),
        ("global_step1000", True),
        (".git", True),
        ("site-packages", True),
        ("checkpointed_run", False),
        ("step_100", False),
        ("my-checkpoints-run", False),
        ("plugins", False),
    ],
)
def test_checkpoints_are_recognized_by_name(name: str, skipped: bool) -> None:
    assert is_skipped(name) is skipped


def test_shallow_files_are_listed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is reached below `a`, which has most of the files, but after `run`.
    put(tmp_path, "run/x.json", *(f"a/b/{i}.json" for i in range(20)))
    monkeypatch.setattr(local_tree, "MAX_ENTRIES", 8)
    tree = list_tree(tmp_path, everything)
    assert "run/x.json" in listed(tree)
    assert tree.gaps == ("there are more than 8 files",)


def test_crowded_directory_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "run/plugins/profile/s/h.xplane.pb", *(f"data/{i}.bin" for i in range(20)))
    monkeypatch.setattr(local_tree, "MAX_DIRECTORY_ENTRIES", 5)
    tree = list_tree(tmp_path, everything)
    assert "run/plugins/profile/s/h.xplane.pb" in listed(tree)
    assert tree.gaps == ("data holds more than 5 files",)


def test_depth_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/b/near.json", "a/b/c/far.json")
    monkeypatch.setattr(local_tree, "MAX_DEPTH", 2)
    tree = list_tree(tmp_path, everything)
    assert listed(tree) == ["a/b/near.json"]
    assert tree.gaps == ("directories are more than 2 levels deep",)


@pytest.mark.skipif(os.name == "nt", reason="permissions differ there")
def test_unreadable_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "open/a.json", *(f"locked{i}/b.json" for i in range(5)))
    scandir = os.scandir

    def refuse(path: str) -> object:
        # Permissions alone do not work, because root may read everything.
        if "locked" in path:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(local_tree.os, "scandir", refuse)
    tree = list_tree(tmp_path, everything)
    assert listed(tree) == ["open/a.json"]
    assert tree.gaps == ("locked0, locked1, locked2 and 2 more may not be read",)
    with pytest.raises(NothingFoundError, match="cannot be read: Permission denied"):
        list_tree(tmp_path / "locked0", everything)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_are_not_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert listed(list_tree(tmp_path, everything)) == []
    with pytest.raises(NothingFoundError, match="a device, a pipe or a socket"):
        list_tree(tmp_path / "pipe.json", everything)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.skipif(os.name == "nt", reason="links need a privilege there")
def test_link_loops_end(tmp_path: Path, depth: int) -> None:
    put(tmp_path, "a/b/c/x.json")
    below = tmp_path.joinpath(*"abc"[:depth])
    (below / "up").symlink_to(tmp_path)
    (below / "self").symlink_to(below)
    tree = list_tree(tmp_path, everything)
    assert (listed(tree), tree.gaps) == (["a/b/c/x.json"], ())


def test_reading(tmp_path: Path) -> None:
    put(tmp_path, "a.json")
    (tmp_path / "b.json").write_bytes(b"0123456789")
    with open_file(str(tmp_path), file_entry("b.json", 1, 0)) as stream:
        assert stream.read() == b"0123456789"
    entries = [FileEntry(name, 1, 0) for name in ("a.json", "gone.json", "b.json")]
    heads = list(read_heads(str(tmp_path), entries, 4))
    assert (heads[0], heads[2]) == (b"x", b"0123")
    assert isinstance(heads[1], PerfAdvisorError)
    with pytest.raises(UnreadableProfileError, match=r"gone\.json: the file cannot be opened: No"):
        open_file(str(tmp_path), file_entry("gone.json", 1, 0)).__enter__()


def test_unwanted_files_are_not_statted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a network drive, each is a round trip. One per directory detects cyclic links.
    put(tmp_path, *(f"{a}/{b}/{i}.bin" for a in range(3) for b in range(3) for i in range(20)))
    put(tmp_path, "0/0/w.json")
    asked = []
    stat = os.stat

    def counted(path: Any, **options: Any) -> os.stat_result:
        asked.append(os.fspath(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    tree = list_tree(tmp_path, lambda path: path.endswith(".json"))
    assert (tree.scanned_files, listed(tree)) == (181, ["0/0/w.json"])
    assert len([path for path in asked if path.startswith(f"{tmp_path}{os.sep}")]) == 3 + 9


def test_reading_tells_the_share_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_bytes(bytes(1_000_000))
    heard: list[float] = []
    with open_file(str(tmp_path), file_entry("large.json", 1_000_000, 0), heard.append) as stream:
        while stream.read(1_000):
            pass
    assert heard == sorted(heard)
    assert heard[-1] == 1.0
    assert 50 <= len(heard) <= 100  # each hundredth once, not every read


def test_a_file_that_has_grown_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "grown.json").write_bytes(b"123456")
    heard: list[float] = []
    with open_file(str(tmp_path), file_entry("grown.json", 3, 0), heard.append) as stream:
        assert stream.read() == b"123456"
    assert heard in ([], [1.0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes on Windows")
@pytest.mark.parametrize("is_watched", [False, True])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, is_watched: bool) -> None:
    put(tmp_path, "trace.json")
    (entry,) = list_tree(tmp_path, everything).entries
    (tmp_path / "trace.json").unlink()
    os.mkfifo(tmp_path / "trace.json")  # opened without O_NONBLOCK, it blocks for ever
    told: list[float] = []
    with (
        pytest.raises(UnreadableProfileError, match="this is not a file"),
        open_file(str(tmp_path), entry, told.append if is_watched else None),
    ):
        pass
    (head,) = read_heads(str(tmp_path), [entry], 100)
    assert isinstance(head, UnreadableProfileError)


def test_a_path_with_a_nul_character() -> None:
    with pytest.raises(NothingFoundError, match="NUL") as raised:
        list_tree("logs\0", everything)
    assert "\0" not in str(raised.value)
