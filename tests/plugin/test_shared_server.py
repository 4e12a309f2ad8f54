"""A TensorBoard that shows a log directory into which others may put links."""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tb_perfadvisor.ingest.files.containment import LEADS_OUT
from tb_perfadvisor.plugin.loader import PerfAdvisorLoader
from tests.support.served_tab import Tab
from tests.support.shared_logdir import DIRECTORY, LINKS, SECRET, shared_logdir
from tests.support.waiting import eventually


def tab_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stays: bool) -> Iterator[Tab]:
    shared_logdir(tmp_path)
    made = Tab(tmp_path, monkeypatch, None, perfadvisor_stay_in_logdir=stays)
    yield made
    made.plugin.close()
    made.queue.close()


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    yield from tab_of(tmp_path, monkeypatch, stays=True)


@pytest.fixture
def trusting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    yield from tab_of(tmp_path, monkeypatch, stays=False)


def answers(tab: Tab, *, capture_ids: list[str]) -> str:
    """What all routes say about captures, once it is known."""
    first = f"api/v1/captures/{capture_ids[0]}"
    routes = [
        "api/v1/captures",
        "api/v1/doctor",
        *(f"api/v1/captures/{each}/report" for each in capture_ids),
        *(
            f"{first}/{name}"
            for name in ("row", "window", "search", "excerpt", "training", "history")
        ),
        *(f"{first}/export?format={name}" for name in ("json", "html", "markdown")),
        f"api/v1/compare?base={capture_ids[0]}&target={capture_ids[-1]}",
    ]
    said = []
    for route in routes:
        eventually(lambda route=route: tab.get(route).status_code != 202, 120)
        content = tab.get(route).data
        said.append((gzip.decompress(content) if "/excerpt" in route else content).decode())
    views = tab.get(f"{first}/report").json["views"] or ()
    said += [tab.get(f"{first}/views/{view}").text for view in views]
    return "\n".join(said)


def test_the_flag_is_one_of_tensorboard() -> None:
    parser = argparse.ArgumentParser()
    PerfAdvisorLoader().define_flags(parser)
    assert parser.parse_args([]).perfadvisor_stay_in_logdir is False
    assert parser.parse_args(["--perfadvisor_stay_in_logdir"]).perfadvisor_stay_in_logdir is True


def test_no_route_tells_what_links_lead_to(shared: Tab) -> None:
    (capture,) = shared.captures()
    assert capture["has_scalars"] is False
    said = answers(shared, capture_ids=[capture["id"]])
    assert "input-stall" in said
    assert SECRET not in said
    assert "Beside the profile lies a log of torch.compile" not in said
    listed = shared.get("api/v1/captures").json
    assert sorted((file["path"], file["reason"]) for file in listed["rejected"]) == [
        (link, LEADS_OUT) for link in sorted(LINKS)
    ]
    assert listed["scan"]["gaps"] == [f"{DIRECTORY} leads out of the directory that may be read"]


def test_without_the_flag_links_are_followed(trusting: Tab) -> None:
    captures = trusting.captures()
    assert len(captures) == 4
    said = answers(trusting, capture_ids=[capture["id"] for capture in captures])
    assert f"{SECRET}.py" in said
    assert f"{SECRET}::operator" in said
    assert "Beside the profile lies a log of torch.compile" in said


def test_what_becomes_a_link_after_the_scan_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Tab
) -> None:
    capture_id = shared.only_id()
    (trace,) = (path for path in (shared.logdir / "run").iterdir() if not path.is_symlink())
    trace.unlink()
    trace.symlink_to(tmp_path / "outside" / "trace")
    entry = shared.plugin.backend.catalog.snapshot.entries[capture_id]
    results = shared.plugin.backend.results()
    results.start(entry)
    eventually(lambda: (state := results.state(entry)) is not None and state.status == "failed", 60)
    state = results.state(entry)
    assert state is not None
    assert state.failure is not None
    assert (state.failure.kind, state.failure.message) == ("input", LEADS_OUT)
    assert state.failure.where.startswith("run/worker0.")
