"""Lists what lies below a URL, with a bound on the requests that this may take.

Object stores know no directories: all objects below a prefix come in pages of a thousand, in
order of their names, whatever lies between. The rest of a directory of checkpoints is jumped
over. Other stores are walked directory by directory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tb_perfadvisor.errors import NothingFoundError, PerfAdvisorError, StoreError
from tb_perfadvisor.ingest.files import MAX_DEPTH, MAX_ENTRIES, FileEntry, Tree, is_skipped, some
from tb_perfadvisor.ingest.remote.refusals import GCS, S3
from tb_perfadvisor.ingest.remote.store import Stamp, Store, stamp_of

# A hundred thousand objects, in ten to twenty seconds.
MAX_PAGES = 100
PAGE_OBJECTS = 1_000
# Where each directory is a request.
MAX_DIRECTORIES = 2_000
PARALLEL_REQUESTS = 16

_FILE_SUFFIXES = (".json", ".gz", ".pb")

Found = tuple[str, dict[str, Any]]
"""A path relative to the root, and fsspec's info of the file."""
Listed = Generator[Found, None, tuple[str, ...]]
"""Files, and in the end a phrase each on what was left out."""


def list_remote(url: str, is_wanted: Callable[[str], bool]) -> Tree:
    """The files below a URL, or the one file that it names; see `files.list_tree`.

    Raises:
        NothingFoundError: When there is nothing at the URL.
        StoreError: When the store refuses, or cannot be reached.
        UsageError: When the URL's kind cannot be opened here.
    """
    store = Store(url)
    if store.url.lower().partition("::")[0].endswith(_FILE_SUFFIXES):
        # Asked first: whoever may read one file may perhaps not list the others.
        tree = _only_file(store)
        if tree is not None:
            return tree
    listed = _listing(store)
    entries: list[FileEntry] = []
    gaps = []
    scanned_files = 0
    is_too_deep = False
    while True:
        try:
            path, info = next(listed)
        except StopIteration as end:
            gaps.extend(end.value)
            break
        if _skipped_directory(path):
            continue
        if path.count("/") > MAX_DEPTH:
            is_too_deep = True
            continue
        scanned_files += 1
        if is_wanted(path):
            entries.append(_entry(path, _known_stamp(store, path, info)))
    if is_too_deep:
        gaps.append(f"directories are more than {MAX_DEPTH} levels deep")
    ordered = tuple(sorted(entries, key=lambda entry: entry.path))
    return Tree(store.url, ordered, scanned_files, tuple(gaps), only_file=False)


def _listing(store: Store) -> Listed:
    """All files below the root.

    Raises:
        NothingFoundError: When there is nothing.
    """
    page: Page | None = None
    if store.scheme in S3 and hasattr(store.filesystem, "call_s3"):
        page = _s3_page
    elif store.scheme in GCS and hasattr(store.filesystem, "call"):
        page = _google_page
    if page is None:
        return (yield from _walk(store))
    bucket, key = store.filesystem.split_path(store.base)[:2]
    if not bucket:
        raise NothingFoundError("names no bucket.", where=store.url)
    prefix = f"{key.rstrip('/')}/" if key else ""
    listed = _flat(store, page, bucket, prefix)
    try:
        first = next(listed)
    except StopIteration:
        # A bucket may well be empty; a prefix that nothing begins with is a mistake.
        if prefix:
            raise NothingFoundError("there is no such file or directory.", where=store.url) from (
                None
            )
        return ()
    yield first
    return (yield from listed)


Page = Callable[[Store, str, str, str, str], tuple[list[Found], str]]
"""Asks for a page of a bucket and a prefix, after a key or by a token: objects and next token."""


def _flat(store: Store, page: Page, bucket: str, prefix: str) -> Listed:
    after = token = ""
    for _ in range(MAX_PAGES):
        objects, token = page(store, bucket, prefix, after, token)
        for key, info in objects:
            if not key.endswith("/"):  # what consoles make for an empty directory
                yield key[len(prefix) :], info
        if not token:
            return ()
        skipped = _skipped_directory(objects[-1][0][len(prefix) :]) if objects else ""
        if skipped:
            # `0` follows `/`: no key below the directory comes after it.
            after, token = f"{prefix}{skipped}0", ""
    return (f"there are more than {MAX_PAGES * PAGE_OBJECTS:,} files",)


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


def _walk(store: Store) -> Listed:
    """Directory by directory, nearest first."""
    is_web = store.scheme in ("http", "https")  # where everything is a file until it is read
    root = store.full_path("").rstrip("/") or store.base
    if not is_web and _asked(store, root)["type"] != "directory":
        raise NothingFoundError("there is no such directory.", where=store.url)
    level = [f"{root}/" if is_web else root]
    asked = count = 0
    unreadable: list[str] = []
    gaps: list[str] = []
    workers = PARALLEL_REQUESTS if getattr(store.filesystem, "async_impl", False) else 1
    with ThreadPoolExecutor(workers) as pool:
        while level and not gaps:
            asked += len(level)
            below = set()
            for directory, found in zip(level, pool.map(partial(_ls, store), level), strict=True):
                if isinstance(found, PerfAdvisorError):
                    if asked == 1:
                        raise found
                    if isinstance(found, StoreError):
                        unreadable.append(directory[len(root) :].strip("/"))
                    continue
                for info in found:
                    path = str(info["name"])[len(root) :].strip("/")
                    if info["type"] != "directory":
                        count += 1
                        yield path, info
                    elif path.count("/") >= MAX_DEPTH:
                        gaps.append(f"directories are more than {MAX_DEPTH} levels deep")
                    elif path and not _skipped_directory(f"{path}/"):
                        below.add(f"{root}/{path}/" if is_web else str(info["name"]))
            if count > MAX_ENTRIES:
                gaps.append(f"there are more than {MAX_ENTRIES:,} files")
            if asked + len(below) > MAX_DIRECTORIES:
                gaps.append(f"there are more than {MAX_DIRECTORIES:,} directories")
            level = sorted(below)
    if unreadable:
        gaps.append(f"{some(unreadable)} may not be read")
    return tuple(dict.fromkeys(gaps))


def _asked(store: Store, path: str) -> dict[str, Any]:
    try:
        info: dict[str, Any] = store.ask(
            lambda filesystem: filesystem.info(path), where=store.url, is_listing=True
        )
    except FileNotFoundError:
        raise NothingFoundError("there is no such file or directory.", where=store.url) from None
    return info


def _ls(store: Store, directory: str) -> list[dict[str, Any]] | PerfAdvisorError:
    try:
        found: list[dict[str, Any]] = store.ask(
            lambda filesystem: filesystem.ls(directory, detail=True), is_listing=True
        )
    except FileNotFoundError:
        return NothingFoundError("there is no such file or directory.", where=store.url)
    except StoreError as error:
        return error
    return found


def _only_file(store: Store) -> Tree | None:
    """The root as one file; None when it is none."""
    try:
        info = store.ask(lambda filesystem: filesystem.info(store.base), is_listing=False)
    except FileNotFoundError:
        return None
    if info["type"] == "directory":
        return None
    parent, name = _split_url(store.url)
    entry = _entry(name, stamp_of(info))
    return Tree(parent, (entry,), 1, (), only_file=True)


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
