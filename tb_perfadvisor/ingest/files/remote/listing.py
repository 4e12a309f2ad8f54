"""Lists what lies below a URL, with a bound on the requests that this may take.

Object stores know no directories: all objects below a prefix come in pages of a thousand, in
order of their names, whatever lies between. The rest of a directory of checkpoints is jumped
over. Other stores are walked directory by directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tb_perfadvisor.errors import NothingFoundError, StoreError
from tb_perfadvisor.ingest.files.remote.refusals import GCS, S3
from tb_perfadvisor.ingest.files.remote.store import Stamp, Store, stamp_of
from tb_perfadvisor.ingest.files.tree import (
    MAX_DEPTH,
    MAX_ENTRIES,
    FileEntry,
    Tree,
    first_names,
    is_skipped,
)

# A hundred thousand objects, in ten to twenty seconds.
MAX_PAGES = 100
PAGE_OBJECTS = 1_000
# Where each directory is a request.
MAX_DIRECTORIES = 2_000
PARALLEL_REQUESTS = 16

_FILE_SUFFIXES = (".json", ".gz", ".pb")

Found = tuple[str, dict[str, Any]]
"""A path relative to the root, and fsspec's info of the file."""
Page = Callable[[Store, str, str, str, str], tuple[list[Found], str]]
"""Asks for a page of a bucket and a prefix, after a key or by a token: objects and next token."""


def list_remote(url: str, is_wanted: Callable[[str], bool]) -> Tree:
    """The files below a URL, or the one file that it names; see `access.list_tree`.

    Raises:
        NothingFoundError: When there is nothing at the URL.
        StoreError: When the store refuses, or cannot be reached.
        UsageError: When the URL's kind cannot be opened here.
    """
    store = Store(url)
    # A name like a file's is asked for first: whoever may read it need not be allowed to list.
    is_file_like = store.url.lower().partition("::")[0].endswith(_FILE_SUFFIXES)
    tree = _only_file(store) if is_file_like else None
    try:
        tree = tree or _directory(store, is_wanted)
    except FileNotFoundError:
        tree = None if is_file_like else _only_file(store)
    if tree is None:
        raise NothingFoundError("there is no such file or directory.", where=store.url)
    return tree


def _directory(store: Store, is_wanted: Callable[[str], bool]) -> Tree:
    entries: list[FileEntry] = []
    gaps: list[str] = []
    scanned_files = 0
    is_too_deep = False
    for path, info in _files(store, gaps):
        if _skipped_directory(path):
            continue
        if path.count("/") > MAX_DEPTH:
            is_too_deep = True
            continue
        scanned_files += 1
        if is_wanted(path):
            entries.append(_entry(path, _known_stamp(store, path, info)))
    if is_too_deep:
        gaps.append(_too_deep())
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    return Tree(store.url, ordered, scanned_files, tuple(gaps), only_file=False)


def _files(store: Store, gaps: list[str]) -> Iterator[Found]:
    """All files below the root; what is left out is added to `gaps`.

    Raises:
        FileNotFoundError: When there is nothing.
    """
    if store.scheme in S3 and hasattr(store.filesystem, "call_s3"):
        yield from _flat(store, _s3_page, gaps)
    elif store.scheme in GCS and hasattr(store.filesystem, "call"):
        yield from _flat(store, _google_page, gaps)
    else:
        yield from _walk(store, gaps)


def _flat(store: Store, page: Page, gaps: list[str]) -> Iterator[Found]:
    bucket, key = store.filesystem.split_path(store.base)[:2]
    if not bucket:
        raise NothingFoundError("names no bucket.", where=store.url)
    prefix = f"{key.rstrip('/')}/" if key else ""
    after = token = ""
    for number in range(MAX_PAGES):
        objects, token = page(store, bucket, prefix, after, token)
        if number == 0 and not objects and prefix:  # a bucket may well be empty
            raise FileNotFoundError(store.url)
        for name, info in objects:
            if not name.endswith("/"):  # what consoles make for an empty directory
                yield name[len(prefix) :], info
        if not token:
            return
        skipped = _skipped_directory(objects[-1][0][len(prefix) :]) if objects else ""
        if skipped:
            # `0` follows `/`: no key below the directory comes after it.
            after, token = f"{prefix}{skipped}0", ""
    gaps.append(f"there are more than {MAX_PAGES * PAGE_OBJECTS:,} files")


def _s3_page(
    store: Store, bucket: str, prefix: str, after: str, token: str
) -> tuple[list[Found], str]:
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix, "MaxKeys": PAGE_OBJECTS}
    if token:
        options["ContinuationToken"] = token
    elif after:
        options["StartAfter"] = after
    page = store.ask(
        lambda filesystem: filesystem.call_s3(
            "list_objects_v2", **options, **getattr(filesystem, "req_kw", {})
        ),
        is_listing=True,
    )
    objects = [(one["Key"], {**one, "size": one["Size"]}) for one in page.get("Contents", ())]
    return objects, page.get("NextContinuationToken", "") if page.get("IsTruncated") else ""


def _google_page(
    store: Store, bucket: str, prefix: str, after: str, token: str
) -> tuple[list[Found], str]:
    try:
        page = store.ask(
            lambda filesystem: filesystem.call(
                "GET",
                "b/{}/o",
                bucket,
                prefix=prefix or None,
                startOffset=after or None,
                pageToken=token or None,
                maxResults=PAGE_OBJECTS,
                fields="items(name,size,updated,generation),nextPageToken",
                json_out=True,
            ),
            is_listing=True,
        )
    except FileNotFoundError:
        raise NothingFoundError(
            "there is no such bucket.", where=store.url, hint="Check its name."
        ) from None
    return [(one["name"], one) for one in page.get("items", ())], page.get("nextPageToken", "")


def _walk(store: Store, gaps: list[str]) -> Iterator[Found]:
    """Directory by directory, nearest first."""
    is_web = store.scheme in ("http", "https")  # where everything is a file until it is read
    root = store.full_path("").rstrip("/") or store.base
    if not is_web and _info(store, root, is_listing=True)["type"] != "directory":
        raise FileNotFoundError(store.url)
    level = [f"{root}/" if is_web else root]
    asked = count = 0
    unreadable: list[str] = []
    workers = PARALLEL_REQUESTS if getattr(store.filesystem, "async_impl", False) else 1
    with ThreadPoolExecutor(workers) as pool:
        while level and not gaps:
            asked += len(level)
            below = set()
            for directory, found in zip(level, pool.map(partial(_ls, store), level), strict=True):
                if isinstance(found, Exception):
                    if asked == 1:
                        raise found
                    if isinstance(found, StoreError):  # else it was deleted while we walk
                        unreadable.append(directory[len(root) :].strip("/"))
                    continue
                for info in found:
                    path = str(info["name"])[len(root) :].strip("/")
                    if info["type"] != "directory":
                        count += 1
                        yield path, info
                    elif path and not _skipped_directory(f"{path}/"):
                        below.add(f"{root}/{path}/" if is_web else str(info["name"]))
            if count > MAX_ENTRIES:
                gaps.append(f"there are more than {MAX_ENTRIES:,} files")
            if asked + len(below) > MAX_DIRECTORIES:
                gaps.append(f"there are more than {MAX_DIRECTORIES:,} directories")
            if any(one[len(root) :].strip("/").count("/") >= MAX_DEPTH for one in below):
                gaps.append(_too_deep())
            level = sorted(below)
    if unreadable:
        gaps.append(f"{first_names(unreadable)} may not be read")


def _too_deep() -> str:
    return f"directories are more than {MAX_DEPTH} levels deep"


def _info(store: Store, path: str, *, is_listing: bool) -> dict[str, Any]:
    info: dict[str, Any] = store.ask(
        lambda filesystem: filesystem.info(path), where=store.url, is_listing=is_listing
    )
    return info


def _ls(store: Store, directory: str) -> list[dict[str, Any]] | StoreError | FileNotFoundError:
    try:
        found: list[dict[str, Any]] = store.ask(
            lambda filesystem: filesystem.ls(directory, detail=True), is_listing=True
        )
    except (StoreError, FileNotFoundError) as error:
        return error
    return found


def _only_file(store: Store) -> Tree | None:
    """The root as one file; None when it is none."""
    try:
        info = _info(store, store.base, is_listing=False)
    except FileNotFoundError:
        return None
    if info["type"] == "directory":
        return None
    parent, name = _split_url(store.url)
    return Tree(parent, (_entry(name, stamp_of(info)),), 1, (), only_file=True)


def _split_url(url: str) -> tuple[str, str]:
    """The URL of the directory that a file lies in, and the file's name."""
    bits = url.split("::")
    # `simplecache::s3://bucket/a.json`: the path is that of the first bit that has one.
    index = next(i for i, bit in enumerate(bits) if bit.partition("://")[2])
    parent, _, name = bits[index].rpartition("/")
    bits[index] = parent + "/" if parent.endswith(":/") else parent
    return "::".join(bits), name


def _known_stamp(store: Store, path: str, info: dict[str, Any]) -> Stamp:
    """A file's stamp; asked for where the listing says nothing of it, as web servers' do."""
    if info.get("size") is None:
        try:
            return store.stamp(path)
        except FileNotFoundError:
            pass
    return stamp_of(info)


def _entry(path: str, stamp: Stamp) -> FileEntry:
    return FileEntry(path, stamp.size_bytes or 0, stamp.mtime_ns, stamp.version)


def _skipped_directory(path: str) -> str:
    """The first part of a path that no profile is looked for in; empty when there is none."""
    parts = path.split("/")[:-1]
    for index, part in enumerate(parts):
        if is_skipped(part):
            return "/".join(parts[: index + 1])
    return ""
