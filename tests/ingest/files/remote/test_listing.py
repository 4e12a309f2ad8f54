"""Listings of stores: their content, requests and gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor.errors import NothingFoundError, StoreError, UsageError
from tb_perfadvisor.ingest.files.access import list_tree
from tb_perfadvisor.ingest.files.remote import listing
from tb_perfadvisor.ingest.files.remote import store as store_module
from tb_perfadvisor.ingest.files.tree import FileEntry, Tree, is_skipped
from tests.support.object_stores import ObjectStore, gcs_error, s3_error


def everything(path: str) -> bool:
    return True


def listed(tree: Tree) -> list[str]:
    return [entry.path for entry in tree.entries]


def put(store: ObjectStore, *keys: str, bucket: str = "bucket") -> str:
    for key in keys:
        store.put(bucket, key, b"x" * len(key))
    return f"{store.scheme}://{bucket}"


def test_one_request_lists_a_tree(store: ObjectStore) -> None:
    bucket = put(store, "logs/a.json", "logs/r/b.json", "logs/r/c.bin", "logs2/d.json", "e.json")
    tree = list_tree(f"{bucket}/logs/", lambda path: path.endswith(".json"))
    assert store.asked() == ["LIST logs/"]
    assert (tree.root, tree.only_file) == (f"{bucket}/logs", False)
    assert (listed(tree), tree.scanned_files, tree.gaps) == (["a.json", "r/b.json"], 3, ())
    entry = tree.entries[0]
    assert entry.size_bytes == len("logs/a.json")
    assert entry.mtime_ns > 1_700_000_000 * 10**9
    assert len(entry.version) > 10


def test_a_whole_bucket(store: ObjectStore) -> None:
    bucket = put(store, "a.json", "r/b.json")
    assert listed(list_tree(bucket, everything)) == ["a.json", "r/b.json"]
    assert store.asked() == ["LIST "]


def test_url_of_one_file(store: ObjectStore) -> None:
    bucket = put(store, "logs/a.json", "logs/a.json.gz", "b.json")
    tree = list_tree(f"{bucket}/logs/a.json", everything)
    assert (tree.root, listed(tree), tree.only_file) == (f"{bucket}/logs", ["a.json"], True)
    tree = list_tree(f"{bucket}/b.json", everything)
    assert (tree.root, listed(tree)) == (bucket, ["b.json"])
    store.put("bucket", "odd name.txt", b"x")
    tree = list_tree(f"{bucket}/odd name.txt", everything)
    assert (tree.root, listed(tree), tree.only_file) == (bucket, ["odd name.txt"], True)
    store.put("bucket", "d.json/e.json", b"a directory with a file's name")
    assert listed(list_tree(f"{bucket}/d.json", everything)) == ["e.json"]


def test_changed_content_has_a_new_version(store: ObjectStore) -> None:
    bucket = put(store, "logs/a.json")
    (before,) = list_tree(f"{bucket}/logs", everything).entries
    (same,) = list_tree(f"{bucket}/logs", everything).entries
    store.put("bucket", "logs/a.json", b"y" * before.size_bytes)
    (after,) = list_tree(f"{bucket}/logs", everything).entries
    assert before == same
    assert before.size_bytes == after.size_bytes
    assert before.version != after.version


def test_missing_objects_and_buckets(store: ObjectStore) -> None:
    bucket = put(store, "logs/a.json")
    with pytest.raises(NothingFoundError, match="there is no such file or directory"):
        list_tree(f"{bucket}/nothing", everything)
    with pytest.raises(NothingFoundError, match="there is no such file or directory"):
        list_tree(f"{bucket}/nothing.json", everything)
    with pytest.raises(NothingFoundError, match="there is no such bucket"):
        list_tree(f"{store.scheme}://elsewhere/logs", everything)
    with pytest.raises(NothingFoundError, match="names no bucket"):
        list_tree(f"{store.scheme}://", everything)


def test_directory_placeholders_are_not_files(s3: ObjectStore) -> None:
    s3.put("bucket", "logs/", b"")
    s3.put("bucket", "logs/run/", b"")
    put(s3, "logs/run/a.json")
    assert listed(list_tree("s3://bucket/logs", everything)) == ["run/a.json"]


def test_listing_stops_at_its_limit(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_PAGES", 3)
    monkeypatch.setattr(listing, "PAGE_OBJECTS", 4)
    put(s3, *(f"logs/{i:02}.json" for i in range(20)))
    tree = list_tree("s3://bucket/logs", everything)
    assert s3.asked() == ["LIST logs/"] * 3
    assert listed(tree) == [f"{i:02}.json" for i in range(12)]
    assert tree.gaps == ("there are more than 12 files",)


def test_checkpoint_directories_are_skipped(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE_OBJECTS", 5)
    put(s3, "logs/a.json", *(f"logs/run/checkpoints/{i:03}/w.json" for i in range(60)))
    # The first one directly follows the directory.
    put(s3, "logs/run/checkpoints0.json", "logs/run/plugins/profile/s/h.xplane.pb")
    put(s3, *(f"logs/run/global_step_10/{i:03}.json" for i in range(60)))
    tree = list_tree("s3://bucket/logs", everything)
    assert listed(tree) == ["a.json", "run/checkpoints0.json", "run/plugins/profile/s/h.xplane.pb"]
    # 123 objects would be 25 pages. Here, the first page ends inside the checkpoints, the second
    # starts after them and ends inside the steps, and the third, after those, is empty.
    assert len(s3.asked()) == 3
    assert (tree.scanned_files, tree.gaps) == (3, ())


class Pages:
    """Google's documented API for a few objects, three per page."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = sorted(keys)
        self.asked: list[tuple[str | None, str | None]] = []

    def split_path(self, path: str) -> tuple[str, str, None]:
        bucket, _, key = path.partition("/")
        return bucket, key, None

    def call(self, method: str, path: str, bucket: str, **query: Any) -> dict[str, Any]:
        self.asked.append((query["startOffset"], query["pageToken"]))
        found = [key for key in self.keys if key.startswith(query["prefix"] or "")]
        found = [key for key in found if key >= (query["startOffset"] or "")]
        start = int(query["pageToken"] or 0)
        page = {"items": [{"name": key, "size": "1"} for key in found[start : start + 3]]}
        if start + 3 < len(found):
            page["nextPageToken"] = str(start + 3)  # type: ignore[assignment]
        return page


def test_pages_of_google_storage_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # The emulator returns everything in one page.
    keys = ["l/a", "l/b", "l/checkpoints/1", *(f"l/checkpoints/{i}" for i in range(2, 9)), "l/d"]
    pages = Pages([*keys, "l/e", "l/f", "l/g"])
    monkeypatch.setattr(store_module, "_google", lambda options: pages)
    tree = list_tree("gs://bucket/l", everything)
    assert listed(tree) == ["a", "b", "d", "e", "f", "g"]
    jump = "l/checkpoints0"
    assert pages.asked == [(None, None), (jump, None), (jump, "3")]


@pytest.fixture
def memory() -> Iterator[Callable[..., None]]:
    """A store that is listed directory by directory."""
    import fsspec

    store = fsspec.filesystem("memory")

    def fill(*paths: str) -> None:
        store.pipe(dict.fromkeys(paths, b"x"))

    yield fill
    store.rm("/bucket", recursive=True)


def test_other_stores_are_listed_by_directory(memory: Callable[..., None]) -> None:
    memory("/bucket/l/a.json", "/bucket/l/r/b.json", "/bucket/l/checkpoints/c.json")
    tree = list_tree("memory://bucket/l", everything)
    assert (listed(tree), tree.scanned_files, tree.gaps) == (["a.json", "r/b.json"], 2, ())
    tree = list_tree("memory://bucket/l/r/b.json", everything)
    assert (tree.root, listed(tree), tree.only_file) == ("memory://bucket/l/r", ["b.json"], True)
    with pytest.raises(NothingFoundError, match="no such file or directory"):
        list_tree("memory://bucket/nothing", everything)
    assert "l/a.json" in [path.removeprefix("bucket/") for path in listed(_root())]


def _root() -> Tree:
    return list_tree("memory://", everything)


def test_number_of_directories_is_limited(
    memory: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(*(f"/bucket/l/{a}/{b}/x.json" for a in range(3) for b in range(3)), "/bucket/l/y.json")
    monkeypatch.setattr(listing, "MAX_DIRECTORIES", 12)
    tree = list_tree("memory://bucket/l", everything)
    assert listed(tree) == ["y.json"]
    assert tree.gaps == ("there are more than 12 directories",)
    monkeypatch.setattr(listing, "MAX_DIRECTORIES", 13)
    assert list_tree("memory://bucket/l", everything).gaps == ()
    monkeypatch.setattr(listing, "MAX_DEPTH", 1)
    tree = list_tree("memory://bucket/l", everything)
    assert listed(tree) == ["y.json"]
    assert tree.gaps == ("directories are more than 1 levels deep",)


def test_unreadable_directory_hides_no_other(
    memory: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory("/bucket/l/open/a.json", "/bucket/l/locked/b.json")
    from fsspec.implementations.memory import MemoryFileSystem

    ls = MemoryFileSystem.ls

    def refuse(self: Any, path: str, **options: Any) -> Any:
        if path.endswith(locked):
            raise PermissionError(13, "Permission denied")
        return ls(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", refuse)
    locked = "locked"
    tree = list_tree("memory://bucket/l", everything)
    assert (listed(tree), tree.gaps) == (["open/a.json"], ("locked may not be read",))
    locked = "/bucket/l"
    with pytest.raises(StoreError, match="do not allow to list"):
        list_tree("memory://bucket/l", everything)


def test_archives_and_chains(tmp_path: Path) -> None:
    import zipfile

    archive = tmp_path / "logs.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("run/a.json", "{}")
        written.writestr("b.json", "{}")
    url = f"zip://::file://{archive}"
    assert listed(list_tree(url, everything)) == ["b.json", "run/a.json"]
    assert listed(list_tree(f"zip://run::file://{archive}", everything)) == ["a.json"]
    tree = list_tree(f"zip://run/a.json::file://{archive}", everything)
    assert (tree.root, listed(tree)) == (f"zip://run::file://{archive}", ["a.json"])
    with zipfile.ZipFile(archive, "a") as written:
        written.writestr("c.json", "{}")
    assert listed(list_tree(url, everything)) == ["b.json", "c.json", "run/a.json"]


def test_web_servers(tmp_path: Path) -> None:
    import threading
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    pytest.importorskip("aiohttp")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.json").write_bytes(b"{}")
    (tmp_path / "b.json").write_bytes(b"[1]")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        tree = list_tree(url, everything)
        assert [(e.path, e.size_bytes) for e in tree.entries] == [("b.json", 3), ("run/a.json", 2)]
        assert listed(list_tree(f"{url}/run/a.json", everything)) == ["a.json"]
        with pytest.raises(NothingFoundError):
            list_tree(f"{url}/nothing.json", everything)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_skipped_directories_are_the_same_everywhere(memory: Callable[..., None]) -> None:
    assert is_skipped("checkpoints")
    memory("/bucket/l/.git/a.json", "/bucket/l/ckpt/b.json", "/bucket/l/c.json")
    assert listed(list_tree("memory://bucket/l", everything)) == ["c.json"]


def test_unknown_kinds_of_url() -> None:
    with pytest.raises(UsageError, match="nosuchstore:// cannot be opened here"):
        list_tree("nosuchstore://bucket", everything)


def test_refusals(s3: ObjectStore, gcs: ObjectStore) -> None:
    put(s3, "a.json")
    put(gcs, "a.json")
    s3.misbehave(lambda asked: s3_error(403, "AccessDenied"))
    with pytest.raises(StoreError) as caught:
        list_tree("s3://bucket", everything)
    assert str(caught.value) == (
        "s3://bucket: the credentials do not allow to list the files. "
        "Grant s3:ListBucket on the bucket and s3:GetObject on its objects."
    )
    gcs.misbehave(lambda asked: gcs_error(403, "x does not have storage.objects.list access."))
    with pytest.raises(StoreError) as caught:
        list_tree("gs://bucket", everything)
    assert str(caught.value) == (
        "gs://bucket: the credentials do not allow to list the files. Grant "
        "roles/storage.objectViewer on the bucket: storage.objects.list and storage.objects.get."
    )


def test_reading_one_file_needs_no_permission_to_list(s3: ObjectStore) -> None:
    put(s3, "logs/a.json")
    s3.misbehave(
        lambda asked: s3_error(403, "AccessDenied") if "list-type" in asked.query else None
    )
    assert listed(list_tree("s3://bucket/logs/a.json", everything)) == ["a.json"]


def test_entries_have_the_size_and_version_from_the_store() -> None:
    moment = "2026-01-02T03:04:05.000Z"
    stamp = store_module.stamp_of({"size": "7", "updated": moment, "generation": "12"})
    # 2026-01-02 03:04:05 UTC is 1767323045 s after 1970.
    assert (stamp.size_bytes, stamp.mtime_ns, stamp.version) == (7, 1767323045 * 10**9, "12")
    assert store_module.stamp_of({"size": 7, "mtime": 1.5}).version == "1500000000"
    assert store_module.stamp_of({"size": None}) == store_module.Stamp(None, 0, "")
    assert store_module.stamp_of({"LastModified": "nonsense", "ETag": '"a"'}).version == '"a"'
    assert FileEntry("a", 1, 2).version == ""
