"""The facts beside a capture: found, read, refused if damaged, and anonymized."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given

from tb_perfadvisor import analyze
from tb_perfadvisor.ingest.anonymize.files import anonymize_file
from tb_perfadvisor.ingest.discovery import discover
from tb_perfadvisor.ingest.load import load_capture
from tb_perfadvisor.ingest.recorded_facts import MOST_BYTES, decode_facts
from tb_perfadvisor.machine.facts import SUFFIX, UNKNOWN, Facts
from tb_perfadvisor.trace import Run
from tests.support.kineto_files import event, to_bytes
from tests.support.mutation import mutated
from tests.support.recorded_facts import FACTS

DATA = msgspec.json.encode(FACTS)
TRACE = to_bytes([event("aten::mm", 10 * step, 8) for step in range(20)])


def loaded(root: Path, files: dict[str, bytes]) -> Run:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    listing = discover(root)
    (capture,) = listing.captures
    return load_capture(listing, capture)


def test_facts_belong_to_the_file_of_their_name(tmp_path: Path) -> None:
    other = msgspec.json.encode(Facts())
    run = loaded(
        tmp_path,
        {
            "run/rank0.1795226000001.pt.trace.json": TRACE,
            f"run/rank0.1795226000001{SUFFIX}": DATA,
            "run/rank1.1795226000001.pt.trace.json": TRACE,
            f"run/rank2.1795226000001{SUFFIX}": other,
        },
    )
    assert [trace.facts for trace in run.traces] == [FACTS, UNKNOWN]
    assert run.traces[0].facts.machine.usable_cores == 1.5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"machine": {"cores": -1}}',
        b'{"machine": {"cores": "many"}}',
        b'{"load": {"others": 7, "idle": 0}}',
        b'{"program": {"made": [{"what": "kitchen", "name": "", "path": "", "line": 1}]}}',
        b"[" * 100_000,
        b'{"machine": {"processor": "' + b"x" * MOST_BYTES + b'"}}',
    ],
)
def test_damaged_facts_are_unknown_and_a_note(tmp_path: Path, data: bytes) -> None:
    run = loaded(tmp_path, {"a.pt.trace.json": TRACE, f"a{SUFFIX}": data})
    (trace,) = run.traces
    assert trace.facts == UNKNOWN
    (note,) = [note for note in trace.notes if SUFFIX in note.message]
    assert "the machine is unknown" in note.message


@given(mutated(DATA, b"-1", b"null", b'"\\u001b[31m"', b"1e999", b"{}", b"[", b"99999999999999999"))
def test_mutated_facts_are_valid_or_refused(data: bytes) -> None:
    try:
        facts = decode_facts(data)
    except ValueError:
        return
    assert all(made.line >= 1 for made in facts.program.made)
    assert "\x1b" not in repr(facts)
    assert decode_facts(msgspec.json.encode(facts)) == facts


def test_a_newer_version_may_say_more(tmp_path: Path) -> None:
    document = json.loads(DATA) | {"weather": "fine"}
    document["machine"]["sockets"] = 1
    assert decode_facts(json.dumps(document).encode()) == FACTS


def test_a_loaded_machine_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.pt.trace.json"
    path.write_bytes(TRACE)
    (tmp_path / f"a{SUFFIX}").write_bytes(DATA)
    (note,) = [note for note in analyze(tmp_path).notes if note.id == "loaded-machine"]
    assert "other programs used 42.0 % of the time of the program's 2 cores" in note.message
    (tmp_path / f"a{SUFFIX}").write_bytes(b'{"load": {"others": 0.05, "idle": 0.5}}')
    assert "loaded-machine" not in {note.id for note in analyze(tmp_path).notes}


def test_anonymized_facts_have_no_names_and_all_numbers(tmp_path: Path) -> None:
    source, target = tmp_path / "a.pt.trace.json", tmp_path / "copy" / "b.pt.trace.json"
    target.parent.mkdir()
    source.write_bytes(TRACE)
    (tmp_path / f"a{SUFFIX}").write_bytes(DATA)
    anonymize_file(source, target)
    text = (target.parent / f"b{SUFFIX}").read_text()
    assert not [word for word in ("acme", "churn", "customer") if word in text.lower()]
    copy = decode_facts(text.encode())
    assert copy.machine == FACTS.machine
    assert (copy.load, copy.threads, copy.recording) == (FACTS.load, FACTS.threads, FACTS.recording)
    loader = copy.program.all_made("loader")[0]
    assert (loader.name, loader.line) == ("DataLoader", 20)
    assert (loader.facts["num_workers"], loader.facts["batch_size"]) == (4, 64)
    assert copy.examined is not None
    assert copy.examined.observed[0].operator == "aten::addmm"
    # Alone, the file is anonymized, too.
    anonymize_file(tmp_path / f"a{SUFFIX}", tmp_path / f"c{SUFFIX}")
    assert "churn" not in (tmp_path / f"c{SUFFIX}").read_text().lower()
