"""Modules and source lines of real traces, against scripts that share nothing with the package."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.origins import NODE
from tb_perfadvisor.testing import run_of
from tests.support.corpus_traces import read

VIT = "local-torch2.13-cpu/vit_patchdropout_gather/*.gz"
Json = dict[str, Any]


def events_of(corpus: Path) -> list[Json]:
    (path,) = corpus.glob(VIT)
    document = json.loads(gzip.decompress(path.read_bytes()))
    return [event for event in document["traceEvents"] if event["ph"] in ("X", "s", "f")]


def test_gather_s_backward_belongs_to_patch_dropout(corpus: Path) -> None:
    # gen_torch.py, line 47, calls torch.gather in PatchDropout.forward.
    trace = read(corpus, VIT)
    found = Signals(run_of(trace)).origins
    rows = [row for row in range(len(trace.events)) if trace.name(row) == f"{NODE}GatherBackward0"]
    assert len(rows) == 3  # one a step
    for row in rows:
        assert trace.name(int(found.forward[row])) == "aten::gather"
        assert found.module_of(row) == "PatchDropout_0"
        assert found.line_of(row) == "gen_torch.py:47 forward"
    # The first carries autograd's number 735.
    numbers = trace.by_event(trace.operators.row, trace.operators.sequence, -1)
    assert numbers[rows].tolist()[0] == 735


def test_every_backward_node_has_the_module_of_its_forward_operator(corpus: Path) -> None:
    events = events_of(corpus)
    complete = [event for event in events if event["ph"] == "X"]
    backward = [e for e in complete if e.get("args", {}).get("Fwd thread id")]
    numbers = {e["args"]["Sequence number"] for e in complete if "Sequence number" in e["args"]}
    assert len(backward) == 2 * 426  # each node: the engine's event, and in it the function's
    assert len({e["args"]["Sequence number"] for e in backward} & numbers) == 426
    # Forward operators by the file's own flows, their modules by the frames' times.
    flows = {event["id"]: event for event in events if event["ph"] == "s"}
    forward_at = {
        event["ts"]: flows[event["id"]]["ts"]
        for event in events
        if event["ph"] == "f" and event["cat"] == "fwdbwd"
    }
    nodes = [e for e in backward if e["ts"] in forward_at]
    assert len(nodes) == 426
    frames = [e for e in complete if e["name"].startswith("nn.Module: ")]
    origin = min(e["ts"] for e in complete if e["cat"] != "Trace")
    wanted: dict[int, str | None] = {}
    for node in nodes:
        at = forward_at[node["ts"]]
        around = [frame for frame in frames if frame["ts"] <= at < frame["ts"] + frame["dur"]]
        innermost = max(around, key=lambda frame: frame["ts"], default=None)
        name = innermost["name"].removeprefix("nn.Module: ") if innermost else None
        wanted[round((node["ts"] - origin) * 1000)] = name
    trace = read(corpus, VIT)
    found = Signals(run_of(trace)).origins
    rows = np.flatnonzero(trace.events.forward >= 0)
    got = {int(trace.events.start_ns[row]): found.module_of(row) for row in rows.tolist()}
    assert {at: got[at] for at in wanted} == wanted
    assert len(set(wanted.values()) - {None}) >= 15
