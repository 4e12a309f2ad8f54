"""Anonymizes what a recorder stored beside a capture."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from tb_perfadvisor.errors import UnreadableProfileError
from tb_perfadvisor.ingest.anonymize.names import Names
from tb_perfadvisor.ingest.recorded_facts import decode_facts
from tb_perfadvisor.machine.facts import Line, Made, Observed, Value


def anonymize_facts(data: bytes, names: Names, *, where: str) -> bytes:
    """The same facts without the user's names, and without the program's arguments.

    Args:
        data: The content of a file of facts.
        names: Replaces names, as in the capture that the facts are of.
        where: The file's name.

    Raises:
        UnreadableProfileError: If it is damaged.
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
