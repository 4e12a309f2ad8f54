from __future__ import annotations

from collections.abc import Sequence

import pytest

from tb_perfadvisor.comparison.pairing import Group, distinct_names, pair
from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.ingest.captures import Capture, Listing, ProfileFile

T1, T2, T3 = "2026_01_02_03_04_05", "2026_01_02_03_04_06.123", "2026_02_01_00_00_00"


def listing(root: str, *runs: str | tuple[str, str]) -> Listing:
    """What lies below a root: runs, with their sessions where these matter."""
    captures = []
    for run in runs:
        name, session = (run, T1) if isinstance(run, str) else run
        path = f"{session}.xplane.pb" if name == "." else f"{name}/{session}.xplane.pb"
        file = ProfileFile(path, 1, 0)
        captures.append(Capture(f"{root}{name}{session}", name, session, "xplane", (file,)))
    return Listing(root, tuple(captures), (), len(runs), is_complete=True)


def names(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    return [
        (
            "/".join(group.base.place[-2:]),
            ["/".join(target.place[-2:]) for target in group.targets],
        )
        for group in groups
    ]


def test_one_run_and_one_target() -> None:
    groups, notes = pair(listing("/logs/a", "."), [listing("/logs/b", ".")])
    assert names(groups) == [("logs/a", ["logs/b"])]
    assert notes == ()


def test_one_run_and_all_runs_of_the_targets() -> None:
    groups, _ = pair(listing("/logs/a", "."), [listing("/more", "x", "y"), listing("/z", ".")])
    assert names(groups) == [("logs/a", ["more/x", "more/y", "z"])]


def test_the_base_is_not_compared_with_itself() -> None:
    base, around = listing("/logs/a", "."), listing("/logs", "a", "b", "c")
    groups, _ = pair(base, [around])
    assert names(groups) == [("logs/a", ["logs/b", "logs/c"])]
    # Unless there is nothing else.
    groups, notes = pair(base, [base])
    assert names(groups) == [("logs/a", ["logs/a"])]
    assert notes == ("a is compared with itself. Name another run.",)


def test_several_runs_are_paired_by_name() -> None:
    base = listing("/before", "resnet", "bert", "old")
    groups, notes = pair(base, [listing("/after", "bert", "resnet", "new"), listing("/x", "bert")])
    assert names(groups) == [
        ("before/resnet", ["after/resnet"]),
        ("before/bert", ["after/bert", "x/bert"]),
    ]
    assert notes == (
        "Run 'resnet' of the base has no counterpart in the targets.",
        "Run 'old' of the base has no counterpart in the targets.",
        "Run 'new' of the targets has no counterpart in the base.",
    )


def test_no_runs_of_the_same_name() -> None:
    with pytest.raises(UsageError, match=r"contains 2 runs \(a, b\), and no target has one of"):
        pair(listing("/before", "a", "b"), [listing("/after", "c")])


def test_the_latest_recording_of_a_run_is_used() -> None:
    base = listing("/logs", ("run", T2), ("run", T3), ("run", T1))
    ((group,), notes) = pair(base, [listing("/other", ".")])
    assert group.base.capture.session == T3
    assert notes == (f"run was recorded 3 times. Using the latest recording, {T3}.",)


@pytest.mark.parametrize("sessions", [("rank0", "rank1"), (T1, "rank0"), (T1, T1)])
def test_the_latest_recording_must_be_unambiguous(sessions: tuple[str, str]) -> None:
    base = listing("/logs/run", *((".", session) for session in sessions))
    with pytest.raises(UsageError, match=r"run: contains 2 captures \(.*\)\. Name the file"):
        pair(base, [listing("/other", ".")])


def test_only_some_of_many_captures_are_named() -> None:
    base = listing("/logs", *((".", f"w{index}") for index in range(8)))
    with pytest.raises(UsageError, match=r"8 captures \(w0, w1, w2, w3, w4 and 3 more\)"):
        pair(base, [listing("/other", ".")])


def test_places_on_stores() -> None:
    groups, _ = pair(listing("gs://bucket/logs/a", "."), [listing("gs://bucket/logs", "a", "b")])
    assert groups[0].base.place == ("bucket", "logs", "a")
    assert names(groups) == [("logs/a", ["logs/b"])]


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (["home/runs/a", "home/runs/b"], ["a", "b"]),
        (["home/slow/train", "home/fast/train"], ["slow/train", "fast/train"]),
        (["a/x/train", "b/x/train", "b/y/eval"], ["a/x/train", "b/x/train", "b/y/eval"]),
        (["train", "x/train"], ["train", "x/train"]),
        (["only"], ["only"]),
        ([""], ["."]),
    ],
)
def test_names_are_as_short_as_possible(places: list[str], expected: list[str]) -> None:
    parts = [tuple(place.split("/")) for place in places]
    assert distinct_names(parts, [""] * len(parts)) == expected


def test_sessions_distinguish_recordings_of_one_run() -> None:
    places = [("x", "run"), ("x", "run"), ("x", "other")]
    assert distinct_names(places, ["s1", "s2", "s1"]) == ["run / s1", "run / s2", "other"]
    assert distinct_names([("x", "run")] * 2, ["s1", "s1"]) == ["run", "run"]
