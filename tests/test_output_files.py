"""Files that are written whole or not at all, and never over what is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.output_files import write_file


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    write_file(target, [b"one", b"two"])
    target.chmod(0o640)
    write_file(target, [b"three"])
    assert target.read_bytes() == b"three"
    assert target.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["report.json"]


@pytest.mark.parametrize("when", ["write", "fsync"])
def test_a_full_disk_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"old")

    def fill(*_: object) -> Iterator[bytes]:
        yield b"new" * 100_000
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if when == "fsync":
        monkeypatch.setattr(os, "fsync", lambda _: list(fill()))
    with pytest.raises(UsageError, match="cannot be written: No space left on device"):
        write_file(target, fill() if when == "write" else [b"new"])
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["report.json"]


def test_an_interrupt_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(target, pieces())
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["report.json"]


def test_refuses_an_input_by_any_name(tmp_path: Path) -> None:
    source = tmp_path / "trace.json"
    source.write_bytes(b"profile")
    (tmp_path / "link.json").symlink_to(source)
    (tmp_path / "hard.json").hardlink_to(source)
    (tmp_path / "directory").symlink_to(tmp_path)
    for target in ("trace.json", "link.json", "hard.json", "directory/trace.json"):
        with pytest.raises(UsageError, match="would be lost"):
            write_file(tmp_path / target, [b"report"], [tmp_path / "gone", source])
    assert source.read_bytes() == b"profile"


def test_a_link_keeps_leading_to_its_file(tmp_path: Path) -> None:
    target, link = tmp_path / "monday.html", tmp_path / "latest.html"
    link.symlink_to(target)
    for content in (b"new file", b"replaced"):
        write_file(link, [content])
        assert link.is_symlink()
        assert target.read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_devices_are_written_to() -> None:
    write_file(Path("/dev/null"), [b"content"])
    assert not Path("/dev/null").is_file()
    with pytest.raises(UsageError, match="No space left"):
        write_file(Path("/dev/full"), [b"content"])


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Is a directory"):
        write_file(tmp_path, [b"content"])
    with pytest.raises(UsageError, match="No such file or directory"):
        write_file(tmp_path / "missing" / "report.json", [b"content"])
