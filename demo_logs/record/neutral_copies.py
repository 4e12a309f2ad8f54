"""Copies profiles without the recording machine's name and directories.

Unlike `perfadvisor anonymize`, this keeps all names of the programs, which are public. No event,
time stamp or duration changes.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from tb_perfadvisor.ingest.xspace.decode.messages import WRITING

NEUTRAL_HOST = "host0"

_TRACE_NAME = re.compile(rb'("traceName": *")[^"]*"')
_HOST_NAME = re.compile(rb'("host_name": *")[^"]*"')


def copy_kineto(source: Path, target: Path) -> None:
    """Copies a ``.json.gz`` trace with a neutral ``host_name``.

    Kineto writes the absolute path of the file into ``traceName``; the copy has the file's name.
    """
    text = gzip.decompress(source.read_bytes())
    file_name = target.name.removesuffix(".gz")
    text = _TRACE_NAME.sub(rb"\g<1>" + file_name.encode() + b'"', text)
    text = _HOST_NAME.sub(rb"\g<1>" + NEUTRAL_HOST.encode() + b'"', text)
    # Without time and name in the gzip header, the same trace gives the same bytes.
    target.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))


def copy_xspace(source: Path, target: Path) -> None:
    """Copies an XSpace with neutral host names.

    The file's name is the host's name, so the target should be ``host0.xplane.pb``.
    """
    space = WRITING.XSpace.FromString(source.read_bytes())
    space.hostnames[:] = [NEUTRAL_HOST] * len(space.hostnames)
    target.write_bytes(space.SerializeToString(deterministic=True))
