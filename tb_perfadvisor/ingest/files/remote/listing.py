"""Lists the files below a URL with a limited number of requests.

Object stores have no directories: they list all objects below a prefix by name, in pages of a
thousand. Checkpoint directories are skipped by starting the next page after them. Other stores are
listed directory by directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tb_perfadvisor.errors import NothingFoundError, StoreError
from tb_perfadvisor.ingest.files.remote.store import GCS, S3, Stamp, Store, stamp_of
from tb_perfadvisor.ingest.files.tree import (
    MAX_DEPTH,
    MAX_ENTRIES,
    FileEntry,
    Tree,
    file_entry,
    first_names,
    is_skipped,
)

# A hundred thousand objects take ten to twenty seconds.
MAX_PAGES = 100
PAGE_OBJECTS = 1_000
# For stores that take a request for each directory.
MAX_DIRECTORIES = 2_000
PARALLEL_REQUESTS = 16

_FILE_SUFFIXES = (".json", ".gz", ".pb")

ListedFile = tuple[str, dict[str, Any]]
"""A path relative to the root, and fsspec's info about the file."""
Page = Callable[[Store, str, str, str, str], tuple[list[ListedFile], str]]
"""Requests a page for a bucket and a prefix, after a key or by a token: (objects, next token)."""


def list_remote(url: str, is_wanted: Callable[[str], bool]) -> Tree:
    """List the files below a URL, or the single file that it names; see `access.list_tree`.

    Raises:
        NothingFoundError: If the URL does not exist.
        StoreError: If the store denies access or cannot be reached.
        UsageError: If the URL's scheme is not supported or needs a missing package.
    """
    store = Store(url)
    # If the URL looks like a file, try to read it first: this needs no permission to list.
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


def _files(store: Store, gaps: list[str]) -> Iterator[ListedFile]:
    """All files below the root; adds to `gaps` what it leaves out.

    Raises:
        FileNotFoundError: If there are no files.
    """
    if store.scheme in S3 and hasattr(store.filesystem, "call_s3"):
        yield from _flat(store, _s3_page, gaps)
    elif store.scheme in GCS and hasattr(store.filesystem, "call"):
        yield from _flat(store, _google_page, gaps)
    else:
        yield from _walk(store, gaps)


def _flat(store: Store, page: Page, gaps: list[str]) -> Iterator[ListedFile]:
    bucket, key = store.filesystem.split_path(store.base)[:2]
    if not bucket:
        raise NothingFoundError("names no bucket.", where=store.url)
    prefix = f"{key.rstrip('/')}/" if key else ""
    after = token = ""
    for number in range(MAX_PAGES):
        objects, token = page(store, bucket, prefix, after, token)
        if number == 0 and not objects and prefix:  # an empty bucket is fine
            raise FileNotFoundError(store.url)
        for name, info in objects:
            if not name.endswith("/"):  # placeholder of an empty directory
                yield name[len(prefix) :], info
        if not token:
            return
        skipped = _skipped_directory(objects[-1][0][len(prefix) :]) if objects else ""
        if skipped:
            # `0` follows `/` in ASCII, so it sorts after every key below the directory.
            after, token = f"{prefix}{skipped}0", ""
    gaps.append(f"there are more than {MAX_PAGES * PAGE_OBJECTS:,} files")


def _s3_page(
    store: Store, bucket: str, prefix: str, after: str, token: str
) -> tuple[list[ListedFile], str]:
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
    objects = [(item["Key"], {**item, "size": item["Size"]}) for item in page.get("Contents", ())]
    return objects, page.get("NextContinuationToken", "") if page.get("IsTruncated") else ""


def _google_page(
    store: Store, bucket: str, prefix: str, after: str, token: str
) -> tuple[list[ListedFile], str]:
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
    return [(item["name"], item) for item in page.get("items", ())], page.get("nextPageToken", "")


def _walk(store: Store, gaps: list[str]) -> Iterator[ListedFile]:
    """List directory by directory, breadth first."""
    is_web = store.scheme in ("http", "https")  # any path may be a file
    root = store.full_path("").rstrip("/") or store.base
    if not is_web and _info(store, root, is_listing=True)["type"] != "directory":
        raise FileNotFoundError(store.url)
    level = [f"{root}/" if is_web else root]
    requested = count = 0
    unreadable: list[str] = []
    workers = PARALLEL_REQUESTS if getattr(store.filesystem, "async_impl", False) else 1
    with ThreadPoolExecutor(workers) as pool:
        while level and not gaps:
            requested += len(level)
            below = set()
            for directory, result in zip(level, pool.map(partial(_ls, store), level), strict=True):
                if isinstance(result, Exception):
                    if requested == 1:
                        raise result
                    if isinstance(result, StoreError):  # otherwise it was deleted meanwhile
                        unreadable.append(directory[len(root) :].strip("/"))
                    continue
                for info in result:
                    path = str(info["name"])[len(root) :].strip("/")
                    if info["type"] != "directory":
                        count += 1
                        yield path, info
                    elif path and not _skipped_directory(f"{path}/"):
                        below.add(f"{root}/{path}/" if is_web else str(info["name"]))
            if count > MAX_ENTRIES:
                gaps.append(f"there are more than {MAX_ENTRIES:,} files")
            if requested + len(below) > MAX_DIRECTORIES:
                gaps.append(f"there are more than {MAX_DIRECTORIES:,} directories")
            if any(path[len(root) :].strip("/").count("/") >= MAX_DEPTH for path in below):
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
        infos: list[dict[str, Any]] = store.ask(
            lambda filesystem: filesystem.ls(directory, detail=True), is_listing=True
        )
    except (StoreError, FileNotFoundError) as error:
        return error
    return infos


def _only_file(store: Store) -> Tree | None:
    """The root as a single file; None if it is not a file."""
    try:
        info = _info(store, store.base, is_listing=False)
    except FileNotFoundError:
        return None
    if info["type"] == "directory":
        return None
    parent, name = _split_url(store.url)
    return Tree(parent, (_entry(name, stamp_of(info)),), 1, (), only_file=True)


def _split_url(url: str) -> tuple[str, str]:
    """The URL of a file's directory, and the file's name."""
    parts = url.split("::")
    # In `simplecache::s3://bucket/a.json`, the first part with `://` has the path.
    index = next(i for i, part in enumerate(parts) if part.partition("://")[2])
    parent, _, name = parts[index].rpartition("/")
    parts[index] = parent + "/" if parent.endswith(":/") else parent
    return "::".join(parts), name


def _known_stamp(store: Store, path: str, info: dict[str, Any]) -> Stamp:
    """A file's stamp; queried if the listing has no size, as on web servers."""
    if info.get("size") is None:
        try:
            return store.stamp(path)
        except FileNotFoundError:
            pass
    return stamp_of(info)


def _entry(path: str, stamp: Stamp) -> FileEntry:
    return file_entry(path, stamp.size_bytes or 0, stamp.mtime_ns, stamp.version)


def _skipped_directory(path: str) -> str:
    """The path up to its first directory that is excluded from the search; "" without one."""
    parts = path.split("/")[:-1]
    for index, part in enumerate(parts):
        if is_skipped(part):
            return "/".join(parts[: index + 1])
    return ""
