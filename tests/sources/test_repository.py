"""Which files a recorded path may mean, and what is never read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor import sources as module
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.sources import Repository


def make(root: Path, *paths: str, text: str = "x = 1\n") -> Repository:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return Repository(root)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ("models/net.py", ["src/models/net.py"]),
        ("/workspace/src/models/net.py", ["src/models/net.py"]),
        ("C:\\work\\old\\net.py", ["old/net.py"]),
        ("elsewhere/net.py", ["net.py", "old/net.py", "src/models/net.py"]),
        ("train.py", ["train.py"]),
        ("eval.py", []),
        ("", []),
    ],
)
def test_the_longest_common_tail_wins(tmp_path: Path, recorded: str, found: list[str]) -> None:
    files = make(tmp_path, "net.py", "old/net.py", "src/models/net.py", "train.py")
    assert files.candidates(recorded) == found


def test_hidden_and_installed_files_are_left_out(tmp_path: Path) -> None:
    files = make(
        tmp_path, ".git/a.py", "env/lib/a.py", "lib/site-packages/a.py", "node_modules/a.py",
        "a.txt", "b.py",
    )  # fmt: skip
    (tmp_path / "env" / "pyvenv.cfg").write_text("", encoding="utf-8")
    assert files.files == ("b.py",)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.py").write_text("password = 1\n", encoding="utf-8")
    files = make(tmp_path / "repo", "a.py")
    (tmp_path / "repo" / "linked").symlink_to(outside)
    (tmp_path / "repo" / "secret.py").symlink_to(outside / "secret.py")
    assert files.files == ("a.py",)
    assert files.text("secret.py") is None  # even if it became a link after it was listed


def test_the_listing_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    files = make(tmp_path, "a.py", "b.py", "c.py")
    assert len(files.files) == 2
    assert not files.is_complete


def test_binary_and_huge_files_have_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make(tmp_path, "a.py", "huge.py")
    monkeypatch.setattr(module, "MAX_FILE_BYTES", 6)
    (tmp_path / "huge.py").write_bytes(b"1234567")
    (tmp_path / "nul.py").write_bytes(b"a\0b")
    (tmp_path / "latin.py").write_bytes(b"# \xe9")
    assert files.text("a.py") == "x = 1\n"
    assert [files.text(name) for name in ("huge.py", "nul.py", "latin.py")] == [None] * 3


def test_a_script_is_all_that_is_read_of_its_directory(tmp_path: Path) -> None:
    make(tmp_path, "a.py", "b.py")
    files = Repository(tmp_path / "a.py")
    assert files.files == ("a.py",)
    assert files.root == tmp_path
    assert files.text("a.py") == "x = 1\n"


def test_another_file_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(UsageError, match="is neither a directory nor a Python file"):
        Repository(tmp_path / "a.txt")
