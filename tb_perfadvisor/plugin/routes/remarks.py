"""Routes of what users say about findings."""

from __future__ import annotations

import msgspec
from werkzeug import wrappers

from tb_perfadvisor.contract.model import Report
from tb_perfadvisor.contract.names import finding_id
from tb_perfadvisor.plain_text import plain_lines
from tb_perfadvisor.plugin.backend import Backend
from tb_perfadvisor.plugin.catalog import Entry
from tb_perfadvisor.plugin.responses import ApiError, read_body, respond
from tb_perfadvisor.plugin.worker import REPORT
from tb_perfadvisor.remark import MOST_CHARACTERS, Remark
from tb_perfadvisor.remarks.attach import with_remarks
from tb_perfadvisor.remarks.store import known_remarks, settings_text, write_remark

_MOST_BYTES = 16 << 10
"""Of a request: the longest text, with escapes, and some space for the rest."""


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    finding: str
    wont_fix: bool = False
    text: str = ""


def write(request: wrappers.Request, backend: Backend, entry: Entry) -> wrappers.Response:
    """Keep what the user says about a finding, for all recordings of the run."""
    if hint := backend.notes_hint(request):
        raise ApiError(403, "notes cannot be written at this address.", hint=hint)
    content = read_body(request, _MOST_BYTES)
    try:
        wanted = msgspec.json.decode(content, type=_Wanted)
    except msgspec.MsgspecError as error:
        raise ApiError(400, f"this is no note: {error}.") from error
    text = plain_lines(wanted.text.strip())
    if len(text) > MOST_CHARACTERS:
        raise ApiError(413, f"a note has at most {MOST_CHARACTERS} characters.")
    report = msgspec.json.decode(backend.read(entry, REPORT), type=Report)
    ids = {finding_id(report.findings, place) for place in range(len(report.findings))}
    if wanted.finding not in ids:
        raise ApiError(404, "there is no such finding.", where=entry.run, hint="Reload the page.")
    remark = Remark(wanted.finding, wanted.wont_fix, text)
    write_remark(entry.run_digest, remark)
    return respond(request, {"wont_fix": remark.wont_fix, "text": remark.text})


def settings(request: wrappers.Request, backend: Backend) -> wrappers.Response:
    """The remarks on runs of the log directory, as part of a settings file."""
    known = known_remarks()
    entries = backend.catalog.snapshot.entries.values()
    runs = {entry.run_digest: entry.series_name for entry in entries}
    remarks = [
        msgspec.structs.replace(remark, run=run)
        for digest, run in sorted(runs.items(), key=lambda pair: pair[1])
        for remark in known.get(digest, {}).values()
    ]
    return respond(
        request,
        settings_text(remarks),
        content_type="text/plain; charset=utf-8",
        headers=[("Content-Disposition", 'attachment; filename="perfadvisor.toml"')],
    )


def attached(content: bytes, entry: Entry) -> bytes:
    """A report with what the user says about its findings, if anything."""
    remarks = remarks_on(entry)
    if not remarks:
        return content
    report = msgspec.json.decode(content, type=Report)
    return msgspec.json.encode(with_remarks(report, remarks))


def remarks_on(entry: Entry) -> tuple[Remark, ...]:
    """What the user says about the findings of a capture."""
    return tuple(known_remarks().get(entry.run_digest, {}).values())
