"""The formats that can be read. A new one is a module or folder beside this, and a line here."""

from __future__ import annotations

from tb_perfadvisor.ingest.chrome.format import CHROME
from tb_perfadvisor.ingest.compile_log.format import COMPILE_LOG
from tb_perfadvisor.ingest.format import Format, Sniffed
from tb_perfadvisor.ingest.json_trace.recognition import describe_foreign
from tb_perfadvisor.ingest.kineto.format import KINETO
from tb_perfadvisor.ingest.memory_snapshots.format import MEMORY_SNAPSHOT
from tb_perfadvisor.ingest.nsight.format import NSIGHT
from tb_perfadvisor.ingest.other_recorders import by_content
from tb_perfadvisor.ingest.tf_tools.format import TF_TOOLS
from tb_perfadvisor.ingest.xplane import XPLANE

# Formats further down give way to those above that hold the same recording. What is attached to the
# profile beside it comes last.
FORMATS = (XPLANE, CHROME, TF_TOOLS, KINETO, NSIGHT, COMPILE_LOG, MEMORY_SNAPSHOT)

_BY_NAME = {format.name: format for format in FORMATS}


def format_of(name: str) -> Format:
    """The format of a name."""
    return _BY_NAME[name]


def label_of(name: str) -> str:
    """What a file of a format is called; the name itself for a trace that no format read."""
    return _BY_NAME[name].label if name in _BY_NAME else name


def format_by_path(path: str) -> Format | None:
    """The format of a file whose name is proof enough."""
    for format in FORMATS:
        if format.sniff is None and format.claims(path):
            return format
    return None


def claims_trace(path: str) -> bool:
    """Whether a file's name says that it is a trace, which its content has to confirm."""
    return any(format.sniff is not None and format.claims(path) for format in FORMATS)


def sniff(head: bytes, *, is_claimed: bool) -> Sniffed:
    """Recognize a file.

    `head` is its inflated beginning. `is_claimed` holds if its name says that it is a trace, or the
    user does by naming it.
    """
    uncertain = None
    for format in FORMATS:
        found = format.sniff(head, is_claimed) if format.sniff is not None else None
        if found is not None:
            if found.is_certain:
                return found
            uncertain = uncertain or found
    recognized = by_content(head) or uncertain
    if recognized is not None:
        return recognized
    message, hint = describe_foreign(head)
    return Sniffed(None, f"{message} {hint}".strip(), is_profile=False)
