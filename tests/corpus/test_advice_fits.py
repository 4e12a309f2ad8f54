"""All advice on real profiles fits the programs that they show.

What parts the programs have is tested in `test_workloads.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.advice_words import misfits

Json = dict[str, Any]

KEPT = {
    "megatron_tp8": {"straggler"},
    "resnet50_num_workers_0": {"input-stall", "loader-in-main-process"},
    "resnet50_num_workers_4": {"full-precision-compute"},
    "google_owlv2": {"input-stall", "unfused-attention"},
    "timesformer": {"unfused-attention"},
    "asdf_False_a73da0d1": {"device-synchronization", "full-precision-compute"},
    "resnet_act_checkpoint": {"exposed-communication"},
    "keras_slow_input": {"input-stall", "python-fed-input"},
    "jax08_conv": {"layout-conversion"},
    "host_bound": {"python-overhead"},
}
"""Parts of paths, and findings that their profiles must keep: a remedy that does not fit must be
replaced by one that does, not take its finding with it."""


def test_remedies_name_only_what_the_program_has_and_does_not_do_yet(
    corpus_reports: list[Json],
) -> None:
    found = [
        f"{report['run']} {finding['rule_id']}: {misfit}"
        for report, finding in _findings(corpus_reports)
        for remedy in finding["remedies"]
        for misfit in misfits(f"{remedy['text']}\n{remedy['snippet'] or ''}", _parts(report))
    ]
    assert found == []


def test_remedies_are_those_of_the_framework(corpus_reports: list[Json]) -> None:
    others = [
        f"{report['run']} {finding['rule_id']}: {remedy['framework']}"
        for report, finding in _findings(corpus_reports)
        for remedy in finding["remedies"]
        if report["framework"] != "unknown" and remedy["framework"] != report["framework"]
    ]
    assert others == []


def test_every_finding_has_a_remedy(corpus_reports: list[Json]) -> None:
    bare = [
        f"{report['run']} {finding['rule_id']}"
        for report, finding in _findings(corpus_reports)
        if not finding["remedies"]
    ]
    assert bare == []


@pytest.mark.parametrize("part", KEPT)
def test_profiles_keep_their_findings(part: str, corpus_reports: list[Json]) -> None:
    found = [
        {finding["rule_id"] for finding in report["findings"]}
        for report in corpus_reports
        if part in f"{report['run']}/{report['session']}/"
    ]
    assert found
    assert all(KEPT[part] <= rules for rules in found)


def test_a_finding_and_those_that_refine_it_set_no_argument_twice(
    corpus_reports: list[Json],
) -> None:
    """Code that gives the same argument different values contradicts itself.

    In TensorFlow, one pipeline calls `map` several times, with different arguments.
    """
    for report, finding in _findings(corpus_reports):
        if finding["refines"] is not None or report["framework"] == "tensorflow":
            continue
        family = [
            finding,
            *(other for other in report["findings"] if other["refines"] == finding["rule_id"]),
        ]
        values: dict[tuple[str, str], set[str]] = {}
        for remedy in (remedy for member in family for remedy in member["remedies"]):
            for call, argument, value in _arguments(remedy):
                values.setdefault((call, argument), set()).add(value)
        twice = {key: given for key, given in values.items() if len(given) > 1}
        assert twice == {}, f"{report['run']} {finding['rule_id']}"


def _findings(reports: list[Json]) -> Iterator[tuple[Json, Json]]:
    for report in reports:
        for finding in report["findings"]:
            yield report, finding


def _parts(report: Json) -> set[str]:
    return {fact["part"] for fact in report["workload"]["evidence"]}


def _arguments(remedy: Json) -> Iterator[tuple[str, str, str]]:
    """Calls in a remedy's code with the names and values of their arguments."""
    if not remedy["snippet"] or remedy["language"] != "python":
        return
    for node in ast.walk(ast.parse(remedy["snippet"])):
        if isinstance(node, ast.Call):
            for given in node.keywords:
                if given.arg is not None:
                    yield ast.unparse(node.func), given.arg, ast.unparse(given.value)
