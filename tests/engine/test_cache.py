import errno
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tb_perfadvisor
from tb_perfadvisor.engine.result_cache import (
    FileStamp,
    ResultCache,
    code_fingerprint,
    result_key,
)
from tb_perfadvisor.ingest.files.containment import BoundedDirectory, default_directory

KEY = "a" * 64
OTHER = "b" * 64


def put(cache: ResultCache, key: str, content: bytes = b"{}", name: str = "report.json") -> None:
    staged = cache.stage()
    (staged / name).write_bytes(content)
    cache.commit(staged, key)


def age(directory: Path, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(directory / "entries" / key, (then, then))


def test_a_committed_entry_can_be_read(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    assert cache.read(KEY, "report.json") is None
    put(cache, KEY, b"content")
    assert cache.read(KEY, "report.json") == b"content"
    assert cache.read(KEY, "window.npz") is None
    assert cache.has(KEY)
    assert list((tmp_path / "staging").iterdir()) == []


def test_another_process_can_read_an_entry(tmp_path: Path) -> None:
    put(ResultCache(tmp_path), KEY, b"content")
    assert ResultCache(tmp_path).read(KEY, "report.json") == b"content"


@pytest.mark.parametrize("damage", ["truncate", "flip", "manifest", "no manifest", "gone"])
def test_a_damaged_entry_is_removed(tmp_path: Path, damage: str) -> None:
    cache = ResultCache(tmp_path)
    put(cache, KEY, b"0123456789")
    entry = tmp_path / "entries" / KEY
    if damage == "truncate":
        (entry / "report.json").write_bytes(b"01234")
    elif damage == "flip":
        (entry / "report.json").write_bytes(b"0123456780")
    elif damage == "manifest":
        (entry / "manifest.json").write_text("[")
    elif damage == "no manifest":
        (entry / "manifest.json").unlink()
    else:
        (entry / "report.json").unlink()
    assert cache.read(KEY, "report.json") is None
    assert not entry.exists()
    put(cache, KEY, b"again")
    assert cache.read(KEY, "report.json") == b"again"


@pytest.mark.parametrize("was_there", [False, True])
def test_an_entry_replaced_while_it_is_read_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    cache, entry = ResultCache(tmp_path), tmp_path / "entries" / KEY
    if was_there:
        put(cache, KEY)
        (entry / "report.json").write_bytes(b"damaged")

    def then_put(look: Callable[..., Any], name: str) -> Callable[..., Any]:
        def looked(path: Path, *arguments: Any, **options: Any) -> Any:
            try:
                return look(path, *arguments, **options)
            finally:
                if path == entry / name:
                    monkeypatch.undo()
                    put(ResultCache(tmp_path), KEY, b"good")

        return looked

    # First there is no entry, then a damaged one.
    first, last = {"stat": "", "read_text": "manifest.json"}, {"read_bytes": "report.json"}
    for method, name in (last if was_there else first).items():
        monkeypatch.setattr(Path, method, then_put(getattr(Path, method), name))
    assert cache.read(KEY, "report.json") is None
    assert cache.read(KEY, "report.json") == b"good"


def test_first_writer_wins_unless_its_entry_is_damaged(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    put(cache, KEY, b"first")
    put(cache, KEY, b"second")
    assert cache.read(KEY, "report.json") == b"first"
    (tmp_path / "entries" / KEY / "report.json").write_bytes(b"fi")
    put(cache, KEY, b"third")
    assert cache.read(KEY, "report.json") == b"third"
    assert list((tmp_path / "staging").iterdir()) == []


def test_the_least_recently_used_entry_is_evicted_first(tmp_path: Path) -> None:
    # An entry has 1000 bytes and a manifest of about 100: two fit in 2500 bytes, three do not.
    cache = ResultCache(tmp_path, max_bytes=2500)
    first, second, third = "1" * 64, "2" * 64, "3" * 64
    put(cache, first, b"x" * 1000)
    put(cache, second, b"x" * 1000)
    age(tmp_path, first, 200)
    age(tmp_path, second, 100)
    assert cache.read(first, "report.json") is not None  # now the more recent of the two
    put(cache, third, b"x" * 1000)
    assert [cache.has(key) for key in (first, second, third)] == [True, False, True]


def test_the_latest_entry_stays_even_if_it_exceeds_the_bound(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, max_bytes=10)
    put(cache, KEY, b"x" * 1000)
    assert cache.has(KEY)
    age(tmp_path, KEY, 100)
    put(cache, OTHER, b"x" * 1000)
    assert (cache.has(KEY), cache.has(OTHER)) == (False, True)


def test_entries_are_counted_again_after_a_sixty_fourth_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evictions: list[Path] = []
    monkeypatch.setattr(
        BoundedDirectory, "evict", lambda cache, keep: evictions.append(cache.directory)
    )
    cache = BoundedDirectory(tmp_path, max_bytes=64_000)
    for number in range(26):
        staged = cache.stage()
        (staged / "points").write_bytes(bytes(100))
        cache.commit(staged, str(number))
    # The first entry, and every eleventh after it: 11 x 100 bytes exceed 64 000 / 64.
    assert len(evictions) == 3
    assert cache.is_intact("0")


def test_many_small_entries_stay_near_the_limit(tmp_path: Path) -> None:
    cache = BoundedDirectory(tmp_path, max_bytes=6_400)
    for number in range(100):
        staged = cache.stage()
        (staged / "points").write_bytes(bytes(100))
        cache.commit(staged, str(number))
        # At most 64 entries, and 100 bytes or a single entry more.
        assert sum(cache.is_intact(str(known)) for known in range(number + 1)) <= 65
    assert not cache.is_intact("0")


def test_staging_directories_of_dead_processes_are_removed(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    left, fresh = cache.stage(), cache.stage()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(left, (two_days_ago, two_days_ago))
    cache.evict()
    assert not left.exists()
    assert fresh.exists()


def test_an_entry_that_was_just_added_stays_after_the_clock_was_set_back(tmp_path: Path) -> None:
    # Otherwise a result would be made again, and deleted again, until the clock catches up.
    cache = ResultCache(tmp_path, max_bytes=2500)
    first, second, third = "1" * 64, "2" * 64, "3" * 64
    for key in (first, second):
        put(cache, key, b"x" * 1000)
        age(tmp_path, key, -3600)
    put(cache, third, b"x" * 1000)
    assert cache.read(third, "report.json") is not None
    assert [cache.has(first), cache.has(second)].count(True) == 1


def test_entries_of_a_clock_that_was_wrong_go_first(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, max_bytes=2500)
    first, second, third = "1" * 64, "2" * 64, "3" * 64
    put(cache, first, b"x" * 1000)
    put(cache, second, b"x" * 1000)
    age(tmp_path, first, 7 * 24 * 3600)
    age(tmp_path, second, -365 * 24 * 3600)
    put(cache, third, b"x" * 1000)
    assert [cache.has(key) for key in (first, second, third)] == [True, False, True]


def full(path: Path, content: bytes) -> int:
    """Write as a full disk does: the beginning, and an error."""
    with path.open("wb") as file:
        file.write(content[:10])
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_a_full_disk_costs_the_entry_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ResultCache(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        cache.store(KEY, "report.json", b"x" * 100)
    assert not cache.has(KEY)
    with monkeypatch.context() as disk:
        # The result fits, but not its manifest.
        disk.setattr(Path, "write_text", lambda path, text, **_: full(path, text.encode()))
        cache.store(KEY, "report.json", b"x" * 100)
        staged = cache.stage()
        with pytest.raises(OSError, match="No space left"):
            cache.commit(staged, KEY)
    assert not cache.has(KEY)
    assert list((tmp_path / "staging").iterdir()) == []
    cache.store(KEY, "report.json", b"x" * 100)
    assert cache.read(KEY, "report.json") == b"x" * 100


def test_what_another_version_left_in_the_directory_does_not_matter(tmp_path: Path) -> None:
    entries = tmp_path / "entries"
    (entries / KEY / "deeper").mkdir(parents=True)
    (entries / KEY / "deeper" / "file").write_bytes(b"x")
    (entries / OTHER).write_text("an entry was a file then")
    (tmp_path / "index.sqlite").write_bytes(b"x")
    for place in (tmp_path, entries):
        place.chmod(0o700)
    cache = ResultCache(tmp_path, max_bytes=10)
    for key in (KEY, OTHER):
        assert cache.read(key, "report.json") is None
        cache.store(key, "report.json", b"new")
        assert cache.read(key, "report.json") == b"new"


def test_concurrent_writers_and_readers(tmp_path: Path) -> None:
    # Four processes write, read and evict the same keys; every read returns the right content.
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tb_perfadvisor.engine.result_cache import ResultCache
        cache = ResultCache(Path(sys.argv[1]), max_bytes=6000)
        for turn in range(60):
            key = str(turn % 5) * 64
            found = cache.read(key, "report.json")
            if found is None:
                staged = cache.stage()
                (staged / "report.json").write_bytes(key.encode() * 30)
                cache.commit(staged, key)
            elif found != key.encode() * 30:
                sys.exit(f"wrong content of {key}: {found!r}")
    """)
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    for worker in workers:
        _, err = worker.communicate(timeout=60)
        assert worker.returncode == 0, err.decode()


def test_room_is_made_before_an_entry_is_added(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path, max_bytes=3000)
    put(cache, KEY, b"x" * 1000)
    put(cache, OTHER, b"x" * 1000)
    age(tmp_path, KEY, 100)
    # 1500 bytes are to come: of two entries of about 1100 bytes, only the more recent may stay.
    cache.evict(reserve_bytes=1500)
    assert (cache.has(KEY), cache.has(OTHER)) == (False, True)


def test_an_unwritable_directory_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        ResultCache(tmp_path / "file" / "cache")


def test_the_key_depends_on_everything() -> None:
    file = FileStamp("a/x.json", 10, "1")
    base = result_key([file], config="", code="1")
    assert len(base) == 64
    others = [
        result_key([FileStamp("a/y.json", 10, "1")], code="1"),
        result_key([FileStamp("a/x.json", 11, "1")], code="1"),
        result_key([FileStamp("a/x.json", 10, "2")], code="1"),
        result_key([file, FileStamp("a/y.json", 10, "1")], code="1"),
        result_key([file], config="[rules]", code="1"),
        result_key([file], code="2"),
    ]
    assert len({base, *others}) == 7
    pair = [file, FileStamp("a/y.json", 10, "1")]
    assert result_key(pair, code="1") == result_key(pair[::-1], code="1")


def test_code_fingerprint_is_stable_and_opaque() -> None:
    assert code_fingerprint() == code_fingerprint()
    assert len(code_fingerprint()) == 64


@pytest.mark.parametrize("change", ["edit", "touch", "add", "rename", "table", "nothing"])
def test_code_fingerprint_changes_with_the_code(tmp_path: Path, change: str) -> None:
    source = Path(tb_perfadvisor.__file__).parent
    copy = tmp_path / "tb_perfadvisor"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("static", "__pycache__"))

    def fingerprint() -> str:
        program = (
            "from tb_perfadvisor.engine import result_cache; print(result_cache.code_fingerprint())"
        )
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    before, module = fingerprint(), copy / "units.py"
    if change == "edit":
        state = module.stat()
        module.write_text(module.read_text() + "\n")
        os.utime(module, ns=(state.st_atime_ns, state.st_mtime_ns))
    elif change == "touch":
        os.utime(module)
    elif change == "add":
        (copy / "rules" / "another.py").write_text("")
    elif change == "rename":
        module.with_name("other.py").symlink_to(module)
    elif change == "table":
        with (copy / "hardware" / "devices.toml").open("a") as table:
            table.write("# more\n")
    assert (fingerprint() == before) == (change == "nothing")


def test_an_environment_variable_sets_the_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "here"))
    assert default_directory() == tmp_path / "here"
    monkeypatch.delenv("PERFADVISOR_CACHE_DIR")
    assert default_directory().name == "tb_perfadvisor"
