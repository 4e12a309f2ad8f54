"""Ways to compress and archive a file, always to the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from random import Random


def pack(data: bytes, random: Random) -> bytes:
    """The file as it is, or compressed and archived in some valid way."""
    choice = random.randrange(12)
    if choice < 7:
        return data
    if choice < 9:
        return gzip.compress(data, 1, mtime=0)
    if choice == 9:  # two members, as `cat` makes
        half = random.randrange(len(data) + 1)
        return gzip.compress(data[:half], 1) + gzip.compress(data[half:], 1)
    if choice == 10:
        return gzip.compress(gzip.compress(data, 1, mtime=0), 1)
    return _archived(data, is_zip=random.random() < 0.5)


def _archived(data: bytes, *, is_zip: bool) -> bytes:
    out = io.BytesIO()
    if is_zip:
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo("trace.json"), data, zipfile.ZIP_DEFLATED)
        return out.getvalue()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("trace.json")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)
