"""Logs of torch.compile, alone and beside a profile."""

from __future__ import annotations

import json
import re
from functools import cache
from random import Random

from tests.fuzz.format import Files, Format, SeedFile
from tests.fuzz.formats.drawn import any_drawing, written
from tests.fuzz.json_changes import change_json
from tests.fuzz.tree_changes import change_tree
from tests.fuzz.values import NUMBERS, TEXTS
from tests.support.compile_logs import artifact, break_text, compiled, example_log, ids, record

_START = re.compile(rb"^V\d{4} ", re.MULTILINE)
_WITH_PROFILE_SHARE = 0.3
_KEYS = ("artifact", "name", "frame_id", "frame_compile_id", "rank", "ts", "ph", "tid", "pid",
         "compilation_metrics", "co_filename", "co_firstlineno", "duration_us", "fail_type",
         "fail_reason", "recompile_reason", "dynamo_start", "chromium_event")  # fmt: skip


def _change(data: bytes, random: Random) -> bytes:
    """The log with one to four changes to its records, which stay records."""
    starts = [found.start() for found in _START.finditer(data)]
    records = [data[a:b] for a, b in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(random.choice((1, 1, 2, 3, 4))):
        if not records:
            break
        at = random.randrange(len(records))
        choice = random.randrange(8)
        if choice < 3:
            records[at] = _with_changed_json(records[at], random)
        elif choice == 3:
            records[at] = _with_other_number(records[at], random)
        elif choice == 4:
            head, _, _ = records[at].partition(b"\n")
            text = random.choice(TEXTS).encode("utf-8", "surrogatepass")
            records[at] = head + b"\n\t" + text.replace(b"\n", b"\n\t") + b"\n"
        elif choice == 5:
            del records[at : at + random.choice((1, 3, 100))]
        elif choice == 6:
            random.shuffle(records)
        else:
            records[at:at] = records[at : at + 5] * random.choice((1, 3, 30))
    return b"".join(records)


def _with_changed_json(record: bytes, random: Random) -> bytes:
    head, _, rest = record.partition(b"\n")
    prefix, mark, text = head.partition(b"] ")
    try:
        root = json.loads(text)
    except ValueError:  # an earlier change
        return record
    change_tree(root, random, _KEYS)
    return prefix + mark + json.dumps(root).encode("utf-8", "surrogatepass") + b"\n" + rest


def _with_other_number(record: bytes, random: Random) -> bytes:
    numbers = list(re.finditer(rb"(?<=[ :])-?\d[\d.]*", record))
    if not numbers:
        return record
    found = random.choice(numbers)
    number = json.dumps(random.choice(NUMBERS)).encode()
    return record[: found.start()] + number + record[found.end() :]


@cache
def _logs() -> tuple[bytes, ...]:
    limit = {"fail_type": "Unsupported", "fail_reason": "Dynamo recompile limit exceeded"}
    other = (
        compiled("1/0", "torch_dynamo_resume_in_forward_at_11", 11, duration_us=70_000)
        + artifact("dynamo_graph_break_reason", "1/0", break_text(13, "Data-dependent branching"))
        + artifact("recompile_reasons", "1/8", '["1/7: n == 7  # f(n)  # a/b.py:3 in f"]')
        + record({"compilation_metrics": limit, "rank": 1, **ids("1/8")})
        + artifact("aotautograd_cache_bypass", "1/8", {"cache_bypass_reason": "Unsupported op"})
    )
    return example_log(), other, example_log() + other


def _choose(random: Random) -> Files:
    log = SeedFile("run/dedicated_log_torch_trace_abc_d_fg.log", random.choice(_logs()), _change)
    if random.random() >= _WITH_PROFILE_SHARE:
        return (log,)
    profile = written("kineto", any_drawing(random), "pytorch")
    return (log, SeedFile("run/worker0.pt.trace.json", profile, change_json))


COMPILE_LOG = Format("compile-log", _choose)
