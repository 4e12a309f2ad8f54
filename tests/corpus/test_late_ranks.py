"""A recorded straggler, and copies of its recording that are cut, thinned out and shifted."""

from __future__ import annotations

import gzip
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tb_perfadvisor import analyze
from tests.support.corpus_traces import CORPUS

pytestmark = pytest.mark.corpus
AT_NIGHT = pytest.mark.nightly

RUN = "modded-nanogpt/base_2025_12_11"
"""Eight ranks. Worked out from the raw events: in three of four steps, seven ranks wait for rank 1,
whose host launches late; that is 27.7 ms of about 165."""
RANKS = 8
LATE = 1
Json = dict[str, Any]


@cache
def recorded(rank: int) -> Json:
    with gzip.open(CORPUS / RUN / f"rank{rank}-chrome-trace.json.gz") as file:
        document: Json = json.load(file)
    return document


def cut(document: Json, generator: random.Random) -> list[Json]:
    """The events without up to a third of a step at either edge, the markers as they are."""
    events = document["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    begin = min(event["ts"] for event in kernels) + generator.uniform(0, 15_000)
    end = max(event["ts"] + event["dur"] for event in kernels) - generator.uniform(0, 15_000)
    return [
        event
        for event in events
        if event["ph"] != "X"
        or event["name"].startswith("ProfilerStep#")
        or begin <= event["ts"] <= end
    ]


def write(folder: Path, names: dict[int, int], seed: int, *, edges: bool, clocks: bool) -> None:
    """Write copies of some ranks under other numbers.

    Args:
        folder: Where to.
        names: The number of each rank that stays.
        seed: Of the random numbers.
        edges: Whether to cut each rank's recording at edges of its own.
        clocks: Whether to shift each rank's clock by up to a second, and its step numbers.
    """
    generator = random.Random(seed)
    for rank, name in names.items():
        document = recorded(rank)
        events = cut(document, generator) if edges else document["traceEvents"]
        ahead_us = generator.uniform(-1e6, 1e6) if clocks else 0.0
        more = generator.randrange(100) if clocks else 0
        copies = []
        for event in events:
            copy = {**event, "ts": event["ts"] + ahead_us} if "ts" in event else dict(event)
            if event["name"].startswith("ProfilerStep#"):
                number = int(event["name"].partition("#")[2])
                copy["name"] = f"ProfilerStep#{number + more}"
            copies.append(copy)
        info = {**document["distributedInfo"], "rank": name}
        written = {**document, "distributedInfo": info, "traceEvents": copies}
        with gzip.open(folder / f"rank{name}-trace.json.gz", "wt", compresslevel=1) as file:
            json.dump(written, file)


def test_a_slow_link_is_a_sentence() -> None:
    """INDEX: the all-reduce runs at 3.45 of 448 GB/s, in about 15.5 ms of each step."""
    first = analyze(CORPUS / "tracelens" / "mi300" / "resnet_act_checkpoint").findings[0]
    assert first.rule_id == "exposed-communication"
    assert "Large messages reach 3.56 GB/s at most, on a link of 448 GB/s" in first.summary
    assert "that points to a slow link rather than to late ranks" in first.summary
    assert first.title.startswith("Find out why the all-reduce is slow: one all-reduce takes 47")
    assert first.remedies[0].change == "link-path"


def check(folder: Path, late: int) -> None:
    report = analyze(folder)
    assert report.first is not None
    first = report.findings[0]
    assert (first.rule_id, first.scope.ranks) == ("straggler", [late])
    assert first.saving is not None
    assert 0.15 <= first.saving.share_expected <= 0.20
    assert "its host launches work late in NorMuon.step" in first.summary


def test_the_late_rank_and_its_reason_come_first(tmp_path: Path) -> None:
    report = analyze(CORPUS / RUN)
    first = report.findings[0]
    assert (first.rule_id, first.scope.ranks) == ("straggler", [LATE])
    assert first.saving is not None
    assert 0.15 <= first.saving.share_expected <= 0.20
    assert "its host launches work late in NorMuon.step" in first.summary
    assert first.remedies[0].change == "rank-cores"
    assert "without profiles of all ranks" not in " ".join(f.summary for f in report.findings)


@AT_NIGHT
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_edges_cut_at_random_change_nothing(tmp_path: Path, seed: int) -> None:
    write(tmp_path, {rank: rank for rank in range(RANKS)}, seed, edges=True, clocks=False)
    check(tmp_path, LATE)
    summaries = " ".join(finding.summary for finding in analyze(tmp_path).findings)
    assert "without profiles of all ranks" not in summaries


@pytest.mark.parametrize(
    "gone",
    [pytest.param((0,), marks=AT_NIGHT), (3, 4), pytest.param((0, 2, 5, 6, 7), marks=AT_NIGHT)],
)
def test_dropped_ranks_hide_only_themselves(tmp_path: Path, gone: tuple[int, ...]) -> None:
    there = {rank: rank for rank in range(RANKS) if rank not in gone}
    write(tmp_path, there, 0, edges=False, clocks=False)
    check(tmp_path, LATE)


def test_ranks_may_have_any_number(tmp_path: Path) -> None:
    names = [5, 3, 7, 1, 0, 6, 4, 2]
    write(tmp_path, dict(enumerate(names)), 0, edges=False, clocks=False)
    check(tmp_path, names[LATE])


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=AT_NIGHT)])
def test_clocks_and_step_numbers_may_be_anything(tmp_path: Path, seed: int) -> None:
    write(tmp_path, {rank: rank for rank in range(RANKS)}, seed, edges=True, clocks=True)
    check(tmp_path, LATE)
