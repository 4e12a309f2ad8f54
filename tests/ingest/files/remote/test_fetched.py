"""Remote files on disk: downloaded once, completely, and within a size limit."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tb_perfadvisor.errors import PerfAdvisorError, StoreError
from tb_perfadvisor.ingest.files.access import list_tree, open_file, read_heads
from tb_perfadvisor.ingest.files.remote import fetched
from tb_perfadvisor.ingest.files.tree import FileEntry
from tests.support.object_stores import Answer, Asked, Cut, ObjectStore, gcs_error, s3_error


def entry_of(store: ObjectStore, key: str, bucket: str = "bucket") -> FileEntry:
    """An object as a listing shows it."""
    directory, _, name = key.rpartition("/")
    tree = list_tree(f"{store.scheme}://{bucket}/{directory}", lambda path: path == name)
    (entry,) = tree.entries
    store.asked()
    return entry


def read(store: ObjectStore, entry: FileEntry, directory: str = "logs") -> bytes:
    root = f"{store.scheme}://bucket/{directory}"
    with open_file(root, entry) as stream:
        return stream.read()


def cached_sizes(tmp_path: Path) -> list[int]:
    """The sizes of the files in the cache."""
    return sorted(int(path.name) for path in (tmp_path / "cache/files/entries").glob("*/*"))


def left_over(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache/files/staging").iterdir())


def test_a_file_is_fetched_once(store: ObjectStore, tmp_path: Path) -> None:
    store.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(store, "logs/a.json")
    assert read(store, entry) == b"0123456789"
    assert "GET a.json" in store.asked()
    assert read(store, entry) == b"0123456789"
    assert store.asked() == []
    assert (cached_sizes(tmp_path), left_over(tmp_path)) == ([10], [])


def test_file_is_shared_between_roots(store: ObjectStore) -> None:
    store.put("bucket", "logs/run/a.json", b"0123456789")
    read(store, entry_of(store, "logs/run/a.json"), "logs/run")
    tree = list_tree(f"{store.scheme}://bucket/logs", lambda path: True)
    store.asked()
    assert read(store, tree.entries[0]) == b"0123456789"
    assert store.asked() == []


def test_fetched_file_is_seekable(store: ObjectStore) -> None:
    store.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(store, "logs/a.json")
    root = f"{store.scheme}://bucket/logs"
    with open_file(root, entry) as stream:
        stream.seek(7)
        assert stream.read() == b"789"
        stream.seek(0)
        assert stream.read(2) == b"01"


def test_a_changed_object_is_fetched_again(store: ObjectStore) -> None:
    store.put("bucket", "logs/a.json", b"first")
    assert read(store, entry_of(store, "logs/a.json")) == b"first"
    store.put("bucket", "logs/a.json", b"other")
    assert read(store, entry_of(store, "logs/a.json")) == b"other"


def test_store_is_asked_if_there_is_no_listing(store: ObjectStore) -> None:
    store.put("bucket", "logs/a.json", b"first")
    root = f"{store.scheme}://bucket/logs"
    for content in (b"first", b"other"):
        store.put("bucket", "logs/a.json", content)
        with open_file(root, FileEntry("a.json", 5, 0)) as stream:
            assert stream.read() == content
    with pytest.raises(StoreError, match=r"nothing\.json: the file is no longer there"):
        open_file(root, FileEntry("nothing.json", 5, 0)).__enter__()


def test_file_changed_since_listing_is_cached_under_its_new_version(
    store: ObjectStore, tmp_path: Path
) -> None:
    store.put("bucket", "logs/a.json", b"short")
    listed = entry_of(store, "logs/a.json")
    store.put("bucket", "logs/a.json", b"longer than it was")
    assert read(store, listed) == b"longer than it was"
    relisted = entry_of(store, "logs/a.json")
    assert read(store, relisted) == b"longer than it was"
    assert store.asked() == []
    assert cached_sizes(tmp_path) == [18]


@pytest.mark.parametrize("is_announced", [True, False], ids=["shorter", "broken off"])
def test_truncated_download_is_not_cached(
    s3: ObjectStore, tmp_path: Path, is_announced: bool
) -> None:
    s3.put("bucket", "logs/a.json", b"0123456789" * 10_000)
    entry = entry_of(s3, "logs/a.json")
    s3.misbehave(lambda asked: Cut(0.5, is_announced) if asked.method == "GET" else None)
    with pytest.raises(StoreError) as caught:
        read(s3, entry)
    assert "the transfer broke off" in caught.value.message
    assert (caught.value.where, caught.value.hint) == ("a.json", "Try again.")
    if is_announced:
        assert "after 50,000 of 100,000 bytes" in caught.value.message
    assert (cached_sizes(tmp_path), left_over(tmp_path)) == ([], [])
    s3.misbehave(None)
    assert read(s3, entry) == b"0123456789" * 10_000
    assert cached_sizes(tmp_path) == [100_000]


def test_truncated_download_is_retried_once(s3: ObjectStore) -> None:
    s3.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(s3, "logs/a.json")
    cuts = [Cut(0.5, is_announced=True)]

    def once(asked: Asked) -> Cut | None:
        return cuts.pop() if cuts and asked.method == "GET" else None

    s3.misbehave(once)
    assert read(s3, entry) == b"0123456789"


def test_a_damaged_copy_is_fetched_again(s3: ObjectStore, tmp_path: Path) -> None:
    s3.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(s3, "logs/a.json")
    read(s3, entry)
    (copy,) = (tmp_path / "cache/files/entries").glob("*/*")
    copy.write_bytes(b"01234")
    assert read(s3, entry) == b"0123456789"


def test_least_recently_used_file_is_evicted_first(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Three files of 400 bytes, and room for two.
    monkeypatch.setenv("PERFADVISOR_FILE_CACHE_GIB", str(1000 / 2**30))
    entries = {}
    for name in "abc":
        s3.put("bucket", f"logs/{name}.json", name.encode() * 400)
        entries[name] = entry_of(s3, f"logs/{name}.json")
    for age, name in enumerate("ab"):
        read(s3, entries[name])
        for entry in (tmp_path / "cache/files/entries").iterdir():
            moment = entry.stat().st_mtime - 100 + age
            os.utime(entry, (moment, moment))
    read(s3, entries["a"])  # now the more recent of the two
    read(s3, entries["c"])
    assert cached_sizes(tmp_path) == [400, 400]
    s3.asked()
    for name in "ac":
        assert read(s3, entries[name]) == name.encode() * 400
    assert s3.asked() == []
    read(s3, entries["b"])
    assert s3.asked() == ["GET b.json"]


def test_file_larger_than_the_limit_is_read_but_not_cached(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFADVISOR_FILE_CACHE_GIB", str(1000 / 2**30))
    store.put("bucket", "logs/a.json", b"x" * 500)
    store.put("bucket", "logs/b.json", b"x" * 5000)
    read(store, entry_of(store, "logs/a.json"))
    assert read(store, entry_of(store, "logs/b.json")) == b"x" * 5000
    assert (cached_sizes(tmp_path), left_over(tmp_path)) == ([500], [])


def test_files_are_read_without_a_writable_cache(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(fetched.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    s3.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(s3, "logs/a.json")
    assert read(s3, entry) == b"0123456789"
    assert list(read_heads("s3://bucket/logs", [entry], 4)) == [b"0123"]
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize(("text", "bound"), [("0.5", 2**29), ("", 2**32), ("much", 2**32)])
def test_environment_sets_the_cache_limit(
    text: str, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFADVISOR_FILE_CACHE_GIB", text)
    assert fetched._max_bytes() == bound


def test_size_differs_if_the_store_decompresses_while_sending(gcs: ObjectStore) -> None:
    # `gsutil cp -Z` stores a file compressed, and readers get it uncompressed.
    plain = b'{"traceEvents": []}' * 100
    gcs.put("bucket", "logs/a.json", gzip.compress(plain))
    entry = entry_of(gcs, "logs/a.json")

    def inflate(asked: Asked) -> Answer | None:
        if asked.path.startswith("/download/"):
            return Answer(200, plain, "application/octet-stream")
        if asked.path.endswith("a.json"):
            info = {"name": "logs/a.json", "size": str(entry.size_bytes), "bucket": "bucket"}
            info |= {"generation": entry.version, "contentEncoding": "gzip"}
            info |= {
                "updated": "2026-01-02T03:04:05.000Z",
                "timeCreated": "2026-01-02T03:04:05.000Z",
            }
            return Answer(200, json.dumps(info).encode(), "application/json")
        return None

    gcs.misbehave(inflate)
    assert read(gcs, entry) == plain
    gcs.asked()
    assert read(gcs, entry) == plain
    # The first read looks for the file and for a folder at once; the store may hear of one later.
    assert set(gcs.asked()) <= {"LIST logs/a.json/"}


def test_errors_name_the_missing_permission(s3: ObjectStore, gcs: ObjectStore) -> None:
    for store in (s3, gcs):
        store.put("bucket", "logs/a.json", b"0123456789")
    entries = {store.scheme: entry_of(store, "logs/a.json") for store in (s3, gcs)}
    s3.misbehave(lambda asked: s3_error(403, "AccessDenied"))
    gcs.misbehave(lambda asked: gcs_error(403, "x does not have storage.objects.get access."))
    with pytest.raises(StoreError) as caught:
        read(s3, entries["s3"])
    assert str(caught.value) == (
        "a.json: the credentials do not allow to read the file. Grant s3:GetObject on it, and "
        "kms:Decrypt if a key of yours encrypts the bucket."
    )
    with pytest.raises(StoreError) as caught:
        read(gcs, entries["gs"])
    assert str(caught.value) == (
        "a.json: the credentials do not allow to read the file. "
        "Grant roles/storage.objectViewer on the bucket: storage.objects.get."
    )


def test_full_disk_is_reported(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(s3, "logs/a.json")

    async def full(self: object, path: str, target: str, **options: object) -> None:
        raise OSError(28, "No space left on device")

    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    monkeypatch.setattr(s3fs.S3FileSystem, "_get_file", full)
    with pytest.raises(StoreError, match="no room for the file") as caught:
        read(s3, entry)
    s3fs.S3FileSystem.clear_instance_cache()
    assert "PERFADVISOR_CACHE_DIR" in caught.value.hint


def test_heads_are_read_with_a_full_disk(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(s3, "logs/a.json")

    def full(path: Path, content: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert list(read_heads("s3://bucket/logs", [entry], 4)) == [b"0123"]
    assert (cached_sizes(tmp_path), left_over(tmp_path)) == ([], [])


def test_each_head_takes_one_request_and_is_cached(store: ObjectStore, tmp_path: Path) -> None:
    contents = {f"{i:02}.json": str(i).encode() * 100 for i in range(40)}
    for name, content in contents.items():
        store.put("bucket", f"logs/{name}", content)
    root = f"{store.scheme}://bucket/logs"
    entries = list_tree(root, lambda path: True).entries
    store.asked()
    heads = list(read_heads(root, entries, 150))
    assert heads == [content[:150] for content in contents.values()]
    assert Counter(store.asked()) == Counter(f"GET {name}" for name in contents)
    assert list(read_heads(root, entries, 150)) == heads
    assert store.asked() == []
    # The ten files are not longer than that, so they need not be downloaded again.
    assert [read(store, entry) for entry in entries[:10]] == list(contents.values())[:10]
    assert store.asked() == []
    assert read(store, entries[10]) == b"10" * 100
    assert store.asked() != []


def test_heads_of_cached_files_take_no_request(s3: ObjectStore) -> None:
    s3.put("bucket", "logs/a.json", b"0123456789")
    entry = entry_of(s3, "logs/a.json")
    read(s3, entry)
    s3.asked()
    assert list(read_heads("s3://bucket/logs", [entry], 4)) == [b"0123"]
    assert s3.asked() == []


def test_unreadable_heads_give_the_reason(store: ObjectStore) -> None:
    store.put("bucket", "logs/a.json", b"0123456789")
    root = f"{store.scheme}://bucket/logs"
    (a,) = list_tree(root, lambda path: True).entries
    gone = FileEntry("gone.json", 5, 0, "1")
    heads = list(read_heads(root, [gone, a], 4))
    assert isinstance(heads[0], PerfAdvisorError)
    assert "no longer there" in heads[0].message
    assert heads[1] == b"0123"


def test_empty_file_takes_no_request(s3: ObjectStore) -> None:
    s3.put("bucket", "logs/empty.json", b"")
    entry = entry_of(s3, "logs/empty.json")
    assert list(read_heads("s3://bucket/logs", [entry], 4)) == [b""]
    assert s3.asked() == []
    assert read(s3, entry) == b""


def test_several_processes_share_the_cache(s3: ObjectStore, tmp_path: Path) -> None:
    # Four processes read five files with room for three; every read returns the right content.
    for i in range(5):
        s3.put("bucket", f"logs/{i}.json", str(i).encode() * 30_000)
    program = textwrap.dedent("""
        import sys
        from tb_perfadvisor.ingest.files.access import list_tree, open_file
        root = "s3://bucket/logs"
        entries = list_tree(root, lambda path: True).entries
        assert len(entries) == 5
        for turn in range(15):
            entry = entries[turn * int(sys.argv[1]) % 5]
            with open_file(root, entry) as stream:
                if stream.read() != entry.path[0].encode() * 30_000:
                    sys.exit(f"wrong content of {entry.path}")
    """)
    environment = {**os.environ, "PERFADVISOR_FILE_CACHE_GIB": str(100_000 / 2**30)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, str(step)],
            stderr=subprocess.PIPE,
            env=environment,
        )
        for step in (1, 2, 3, 4)
    ]
    for worker in workers:
        _, err = worker.communicate(timeout=120)
        assert worker.returncode == 0, err.decode()
    assert sum(cached_sizes(tmp_path)) <= 100_000
    assert left_over(tmp_path) == []
