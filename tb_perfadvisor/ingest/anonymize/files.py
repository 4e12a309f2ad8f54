"""Writes a copy of a profile without its user's names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from isal import isal_zlib
from msgspec.structs import replace

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError, UsageError
from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.files.compression import inflate_head
from tb_perfadvisor.ingest.memory_snapshots.format import MEMORY_SNAPSHOT
from tb_perfadvisor.ingest.recorded_facts import decode_facts
from tb_perfadvisor.ingest.trace_names import stem_of
from tb_perfadvisor.ingest.xspace.reader import looks_like_xplane
from tb_perfadvisor.machine.facts import SUFFIX, Line, Made, Observed, Value
from tb_perfadvisor.output_files import write_file


def anonymize_facts(data: bytes, names: Names, *, where: str) -> bytes:
    """The same facts without the user's names, and without the program's arguments.

    Names are replaced as in the capture that the facts are of.
    """
    try:
        facts = decode_facts(data)
    except (ValueError, RecursionError):
        raise UnreadableProfileError(
            "it is damaged, or was not written by Perf Advisor.", where=where
        ) from None
    program = replace(
        facts.program,
        script=names.frame(facts.program.script),
        arguments=(),
        start_method=names.as_written(facts.program.start_method),
        made=tuple(_made(made, names) for made in facts.program.made),
    )
    lines = facts.lines
    if lines is not None:
        lines = replace(lines, lines=tuple(_line(line, names) for line in lines.lines))
    examined = facts.examined
    if examined is not None:
        observed = tuple(_observed(each, names) for each in examined.observed)
        failed = tuple(replace(each, why=names.marker(each.why)) for each in examined.failed)
        examined = replace(examined, observed=observed, failed=failed)
    return msgspec.json.encode(replace(facts, program=program, lines=lines, examined=examined))


def _observed(each: Observed, names: Names) -> Observed:
    return replace(
        each,
        operator=names.operator(each.operator),  # TensorFlow's may be a function of the user
        path=names.frame(each.path),
        function=names.marker(each.function),
    )


def _line(line: Line, names: Names) -> Line:
    return replace(
        line,
        path=names.frame(line.path),
        function=names.marker(line.function),
        calls=names.marker(line.calls),
    )


def _made(made: Made, names: Names) -> Made:
    return replace(
        made,
        name=names.marker(made.name),
        path=names.frame(made.path),
        function=names.marker(made.function),
        facts={names.as_written(key): _value(value, names) for key, value in made.facts.items()},
    )


def _value(value: Value, names: Names) -> Value:
    return names.marker(value) if isinstance(value, str) else value


_HEAD_BYTES = 4096


def anonymize_file(source: Path, target: Path, *, key: str = "") -> tuple[str, ...]:
    """Write an anonymized copy of a trace, an xplane or an export, and of the facts beside it.

    The source is `*.json`, `*.json.gz`, `*.xplane.pb` or `*.sqlite`. The copy is gzipped if its
    name ends with `.gz`. Equal keys give equal hashes in several files, such as the ranks of one
    run; by default, each file has a key made from its content.

    Returns the words that the copy keeps although no framework's vocabulary has them; lower case.
    """
    try:
        with source.open("rb") as stream:
            names = Names(key.encode() or _digest(stream))
            pieces = _pieces(stream, source, target, names)
            is_gzipped = target.suffix == ".gz"
            write_file(target, _gzipped(pieces) if is_gzipped else pieces, [source])
        facts = _facts_beside(source)
        if facts.is_file() and not source.name.endswith(SUFFIX):
            copied = anonymize_facts(facts.read_bytes(), names, where=facts.name)
            write_file(_facts_beside(target), [copied], [source, facts])
        return names.unlisted_words
    except OSError as error:
        path = error.filename or source
        raise PerfAdvisorError(f"{error.strerror or error}.", where=str(path)) from None


def _pieces(stream: BinaryIO, source: Path, target: Path, names: Names) -> Iterator[bytes]:
    # Either reader loads a module that the other does not need.
    stored = stream.read(_HEAD_BYTES)
    stream.seek(0)
    if source.name.endswith(SUFFIX):
        return iter((anonymize_facts(stream.read(), names, where=source.name),))
    head = inflate_head(stored, _HEAD_BYTES)
    if source.name.endswith(".pb") or looks_like_xplane(head):
        from tb_perfadvisor.ingest.anonymize.xplane import anonymize_xspace

        if target.suffix == ".gz":
            raise UsageError("xplanes are not gzipped: choose a name that ends with .xplane.pb.")
        return iter((anonymize_xspace(stream.read(), names, where=source.name),))
    if head.startswith(b"SQLite format 3\0"):
        from tb_perfadvisor.ingest.anonymize.nsight import anonymize_export

        return iter((anonymize_export(stream, names, where=source.name),))
    found = MEMORY_SNAPSHOT.sniff(head, False) if MEMORY_SNAPSHOT.sniff is not None else None
    if found is not None:
        raise UsageError(
            "memory snapshots and other pickles are not anonymized.",
            where=source.name,
            hint="Record one with context=None: it has no call stacks, and so none of your names.",
        )
    from tb_perfadvisor.ingest.anonymize.kineto import anonymize_kineto

    return anonymize_kineto(stream, names, where=source.name)


def _facts_beside(file: Path) -> Path:
    return file.with_name(stem_of(file.name) + SUFFIX)


def _digest(stream: BinaryIO) -> bytes:
    digest = hashlib.blake2b()
    while block := stream.read(1 << 20):
        digest.update(block)
    stream.seek(0)
    return digest.digest()


def _gzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    compressor = isal_zlib.compressobj(wbits=16 + isal_zlib.MAX_WBITS)  # 16: as a gzip file
    for piece in pieces:
        yield compressor.compress(piece)
    yield compressor.flush()
