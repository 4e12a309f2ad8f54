"""Event files with the scalars of training runs, some beside a profile of the same run."""

from __future__ import annotations

import json
import struct
from functools import cache
from random import Random

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2, tensor_pb2, types_pb2

from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import any_drawing, written
from tests.fuzz.json_changes import change_json
from tests.fuzz.message_changes import change_message
from tests.fuzz.schema_changes import change_field
from tests.fuzz.training_checks import check_training
from tests.fuzz.values import INTEGERS
from tests.support.event_files import Value, event, framed

_START_UNIX_S = 1_767_225_600.0
_STEPS = 40
_WITH_PROFILE_SHARE = 0.2
_BEFORE_DATA, _AFTER_DATA = 12, 4


def _change(data: bytes, random: Random) -> bytes:
    """The file with one to four changes to its records, which stay framed, or to a frame."""
    records = _records(data)
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        if not records:
            break
        at = random.randrange(len(records))
        choice = random.randrange(10)
        if choice < 4:
            records[at] = change_message(records[at], random)
        elif choice > 7:
            records[at] = _by_schema(records[at], random)
        elif choice == 4:
            del records[at : at + random.choice((1, 5, 1000))]
        elif choice == 5:
            random.shuffle(records)
        elif choice == 6:
            records[at:at] = records[at : at + 10] * random.choice((1, 3, 20))
        else:  # the run went back, or on
            first = random.randrange(len(records))
            records[at:at] = records[first : first + 10]
    changed = bytearray(framed(*records))
    if changed and random.random() < 0.1:
        at = random.choice((0, random.randrange(len(changed))))
        length = random.choice(INTEGERS) & (2**64 - 1)
        changed[at : at + 8] = struct.pack("<Q", length)
    return bytes(changed)


def _by_schema(record: bytes, random: Random) -> bytes:
    event = event_pb2.Event()
    try:
        event.ParseFromString(record)
    except DecodeError:
        return record
    change_field(event, random)
    return bytes(event.SerializeToString(deterministic=True))


def _records(data: bytes) -> list[bytes]:
    records, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append(data[at + _BEFORE_DATA : at + _BEFORE_DATA + length])
        at += _BEFORE_DATA + length + _AFTER_DATA
    return records


# --- valid files ------------------------------------------------------------------------------


def _number(tag: str, value: float) -> Value:
    return Value(tag=tag, simple_value=value)


def _tensor(tag: str, value: float) -> Value:
    content = struct.pack("<f", value)
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=content)
    return Value(tag=tag, tensor=tensor)


@cache
def _runs() -> tuple[Files, ...]:
    """PyTorch's, TensorFlow's and Keras's ways to log, with pauses, evaluation and a restart."""
    plain = [
        event(at, _START_UNIX_S + at, _number("loss", 1.0), _number("step_time", 1.0))
        for at in range(_STEPS)
    ]
    paused = [
        event(10 * at, _START_UNIX_S + 5 * at + 60 * (at // 10), _number("train/loss", 0.5))
        for at in range(_STEPS)
    ]
    evaluated = [
        event(at, _START_UNIX_S + at + 20 * (at // 8), _number(tag, 2.0))
        for at in range(_STEPS)
        for tag in (("loss", "tokens_per_second") if at % 8 else ("eval/loss",))
    ]
    steps = [*range(30), *range(10, _STEPS)]
    restarted = [
        event(step, _START_UNIX_S + at + 90 * (at >= 30), _number("lm loss", 3.0))
        for at, step in enumerate(steps)
    ]
    training = [
        event(at, _START_UNIX_S + 100 * at, _tensor("epoch_loss", 1.0)) for at in range(_STEPS)
    ]
    validation = [
        event(at, _START_UNIX_S + 100 * at + 9, _tensor("epoch_loss", 2.0)) for at in range(_STEPS)
    ]
    by_path = (
        {"run": plain},
        {"run": paused},
        {"run": evaluated},
        {"run": restarted},
        {"run": plain, "other": restarted},
        {"run/train": training, "run/validation": validation},
    )
    return tuple(
        tuple(
            SeedFile(f"{path}/events.out.tfevents.1767225600.host.7.0", framed(*events), _change)
            for path, events in logged.items()
        )
        for logged in by_path
    )


@cache
def _profile(number: int) -> SeedFile:
    """A profile with a clock, recorded in the course of a run."""
    content = json.loads(written("kineto", number, "pytorch"))
    content["baseTimeNanoseconds"] = int(_START_UNIX_S + 12) * 10**9
    return SeedFile("run/worker0.pt.trace.json", json.dumps(content).encode(), change_json)


def _choose(random: Random) -> Files:
    files = random.choice(_runs())
    if random.random() < _WITH_PROFILE_SHARE:
        files += (_profile(any_drawing(random)),)
    return files


EVENT_FILES = Format("event-files", _choose, check=check_training, may_be_packed=False)
