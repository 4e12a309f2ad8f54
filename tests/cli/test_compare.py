"""`perfadvisor compare`: what it prints, which runs it compares, and when it fails."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import DEMO, HEALTHY, ROOT, SLOW, error, run
from tests.support.event_files import write_scalar
from tests.support.slowed_profiles import slowed


def compared(*arguments: object, status: int = 0) -> list[dict[str, Any]]:
    """The comparisons as JSON."""
    done = run("compare", *arguments, "--format", "json", status=status)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["generator"]["name"] == "tb_perfadvisor"
    assert str(ROOT) not in done.stdout, "no absolute path leaves the machine"
    return list(document["comparisons"])


def test_compare_as_text() -> None:
    done = run("compare", SLOW, HEALTHY, width=80)
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert " ".join(lines[0].split()) == "Run Step Speed-up Input wait Samples/s Comm."
    assert lines[4] == "pytorch_input_fixed vs. pytorch_input_slow"
    assert lines[5] == "1.65 times as fast: a step takes 70.4 ms instead of 116 ms"
    assert any(re.match(r"input-stall +36\.6 ms .* 54\.0 ms \(148 %\) +fixed$", x) for x in lines)
    assert max(map(len, lines)) <= 80
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


def test_compare_as_json_and_markdown() -> None:
    (comparison,) = compared(SLOW, HEALTHY)
    assert comparison["base"]["name"] == "pytorch_input_slow"
    (target,) = comparison["targets"]
    assert target["verdict"] == "faster"
    assert sum(cause["change_ns"] for cause in target["causes"]) == target["change"]["change_ns"]
    page = run("compare", SLOW, HEALTHY, "--format", "markdown").stdout
    assert page.startswith("# Compared with pytorch\\_input\\_slow\n")


def test_compare_writes_to_a_file(tmp_path: Path) -> None:
    target = tmp_path / "comparison.json"
    done = run("compare", SLOW, HEALTHY, "--format", "json", "--output", target)
    assert done.stdout == ""
    assert len(json.loads(target.read_text(encoding="utf-8"))["comparisons"]) == 1


def test_compare_with_all_runs_of_a_logdir() -> None:
    (comparison,) = compared(SLOW, DEMO, "--run", r"^(\.|pytorch_input.*|jax_healthy)$")
    names = [target["run"]["name"] for target in comparison["targets"]]
    assert names == ["jax_healthy", "pytorch_input_fixed"]


def test_compare_two_logdirs_run_by_run(tmp_path: Path) -> None:
    for name, source in (("x/train", SLOW), ("x/eval", HEALTHY), ("y/train", HEALTHY)):
        shutil.copytree(source, tmp_path / name)
    done = run("compare", tmp_path / "x", tmp_path / "y", "--format", "json")
    document = json.loads(done.stdout)
    (comparison,) = document["comparisons"]
    assert (comparison["base"]["name"], comparison["targets"][0]["run"]["name"]) == (
        "x/train", "y/train",
    )  # fmt: skip
    assert document["notes"] == ["Run 'eval' of the base has no counterpart in the targets."]
    assert done.stderr == "note: Run 'eval' of the base has no counterpart in the targets.\n"


@pytest.mark.parametrize(
    ("base", "target", "limit", "status"),
    [
        # 70 to 116 ms: 64 % more, and at least 53 % with confidence.
        (HEALTHY, SLOW, 5, 1),
        (HEALTHY, SLOW, 0, 1),
        (HEALTHY, SLOW, 90, 0),
        (SLOW, HEALTHY, 0, 0),
        (SLOW, SLOW, 0, 0),
    ],
)
def test_compare_fails_on_a_regression(base: Path, target: Path, limit: int, status: int) -> None:
    done = run("compare", base, target, "--fail-on-regression", limit, status=status)
    assert done.stdout, "the comparison is printed all the same"
    notes = []
    if base == target:
        notes.append("note: pytorch_input_slow is compared with itself. Name another run.")
    if status:
        notes.append(f"note: slower than the base by more than {limit}.0%: pytorch_input_slow.")
    assert done.stderr.splitlines() == notes


def test_compare_notes_that_a_regression_could_not_be_seen(tmp_path: Path) -> None:
    # Thirty operators of 5 us, end to end.
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10 + 5 * i}
        | {"dur": 5}
        for i in range(30)
    ]
    for name in ("a", "b"):
        path = tmp_path / name / "w.pt.trace.json"
        path.parent.mkdir()
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), "utf-8")
    done = run("compare", tmp_path / "a", tmp_path / "b", "--fail-on-regression", 1, status=3)
    assert done.stdout, "the comparison is printed all the same"
    assert done.stderr == (
        "note: b: cannot tell whether it is slower by more than 1.0%. No verdict: 150 µs were "
        "recorded instead of 150 µs, without steps to compare.\n"
    )


def steps_of(directory: Path, *durations_us: float) -> Path:
    """A profile of steps that take the given times, each filled by one operator."""
    events, at = [], 1000.0
    for number, duration in enumerate(durations_us):
        step = {"ph": "X", "pid": 1, "tid": 1, "ts": at, "dur": duration}
        events += [step | {"cat": "user_annotation", "name": f"ProfilerStep#{number}"}]
        events += [step | {"cat": "cpu_op", "name": "aten::mm", "ts": at + 1, "dur": duration - 2}]
        at += duration
    directory.mkdir(parents=True)
    profile = {"schemaVersion": 1, "traceEvents": events}
    (directory / "w.pt.trace.json").write_text(json.dumps(profile), "utf-8")
    return directory


@pytest.mark.parametrize(
    ("target", "limit", "status"),
    [
        # 30 % slower.
        ((13100, 13000, 12900, 13200, 13050), 5, 1),
        # One step with a pause: how much of the total it is of is chance.
        ((13100, 13000, 12900, 13200, 90000), 5, 3),
        # 0.4 % faster, give or take 1.3 %.
        ((9900, 10100, 10000, 9950, 10050), 5, 0),
        # 5.6 % slower, give or take 1.4 %.
        ((10600, 10500, 10700, 10450, 10650), 5, 3),
        # A single step proves nothing, however slow.
        ((13000,), 5, 3),
    ],
)
def test_the_gate_is_undecided_where_the_interval_contains_the_limit(
    tmp_path: Path, target: tuple[float, ...], limit: int, status: int
) -> None:
    base = steps_of(tmp_path / "base", 10000, 10100, 9900, 10150, 10050)
    new = steps_of(tmp_path / "new", *target)
    done = run("compare", base, new, "--fail-on-regression", limit, status=status)
    assert ("cannot tell whether it is slower by more than 5.0%" in done.stderr) == (status == 3)
    # A run that is slower decides, whatever the others are.
    slow = steps_of(tmp_path / "slow", 13000, 13100, 13050, 12950, 13000)
    run("compare", base, new, slow, "--fail-on-regression", limit, status=1)


def test_the_gate_is_undecided_where_only_a_few_steps_got_slower(tmp_path: Path) -> None:
    # Five of 20 steps are longer, without a regular cycle. Only those got slower: 70 to 90 ms for
    # four, 28.6 %.
    order = (0, 1, 2, 3, 0, 1, 2, 0, 3, 3, 1, 2, 0, 1, 2, 3, 0, 1, 3, 2)
    base = steps_of(tmp_path / "base", *((10000, 10010, 9990, 40000)[kind] for kind in order))
    new = steps_of(tmp_path / "new", *((10000, 10010, 9990, 60000)[kind] for kind in order))
    done = run("compare", base, new, "--fail-on-regression", 25, status=3)
    assert "the mean takes 5.00 ms more. Record more steps." in done.stderr
    # The mean of 17.5 ms takes 22.5, and that is uncertain by more than half of the difference.
    run("compare", base, new, "--fail-on-regression", 5, status=1)


def test_the_gate_knows_a_cycle_in_which_one_kind_of_step_got_slower(tmp_path: Path) -> None:
    # Each fourth step is longer, and it alone got slower: the cycle of 70 ms takes 90, 28.6 % more.
    base = steps_of(tmp_path / "base", *(10000, 10010, 9990, 40000) * 5)
    new = steps_of(tmp_path / "new", *(10000, 10010, 9990, 60000) * 5)
    run("compare", base, new, "--fail-on-regression", 25, status=1)
    run("compare", base, new, "--fail-on-regression", 30)


@pytest.mark.parametrize(
    "name",
    ["pytorch_input_fixed", "pytorch_ddp_balanced", "tensorflow_input_fixed", "jax_healthy"],
)
def test_a_copy_in_which_everything_takes_longer_is_a_regression(tmp_path: Path, name: str) -> None:
    copy = slowed(DEMO / name, tmp_path / "slower", 1.3)
    run("compare", DEMO / name, copy, "--fail-on-regression", 5, status=1)
    (comparison,) = compared(DEMO / name, copy)
    change = comparison["targets"][0]["change"]
    assert change["change_share"] == pytest.approx(0.3, abs=1e-4)
    # In the three digits that are shown, each off by half of a percent at most.
    assert 1 / change["speed_up"] == pytest.approx(1.3, rel=0.01)


def test_compare_needs_something_readable_on_both_sides(tmp_path: Path) -> None:
    assert "nowhere" in error("compare", SLOW, tmp_path / "nowhere")
    assert "contains no profile" in error("compare", tmp_path, SLOW)
    bad = tmp_path / "worker.pt.trace.json"
    bad.write_bytes(b"\x00 this is no JSON")
    assert bad.name in error("compare", SLOW, bad)
    assert "Missing argument" in error("compare", SLOW)
    assert "no run matches 'nothing'" in error("compare", SLOW, HEALTHY, "--run", "nothing")
    assert "--fail-on-regression" in error("compare", SLOW, HEALTHY, "--fail-on-regression", "-1")
    config = tmp_path / "advice.toml"
    config.write_text('ignore = ["typo"]', encoding="utf-8")
    assert "no rule 'typo'" in error("compare", SLOW, HEALTHY, "--config", config)


def test_compare_notes_a_bad_file_among_good_ones(tmp_path: Path) -> None:
    shutil.copytree(HEALTHY, tmp_path / "good")
    broken = tmp_path / "bad" / "plugins" / "profile" / "s" / "host.xplane.pb"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\xff" * 100)
    done = run("compare", SLOW, tmp_path, "--format", "json")
    document = json.loads(done.stdout)
    ((comparison,), (line,)) = document["comparisons"], document["notes"]
    assert [target["run"]["name"] for target in comparison["targets"]] == ["good"]
    assert done.stderr == f"note: {line}\n"
    assert line.startswith("bad/plugins/profile/s/host.xplane.pb: ")
    # Named by itself, it has no substitute.
    assert "host.xplane.pb" in error("compare", SLOW, tmp_path / "bad")
    assert "host.xplane.pb" in error("compare", tmp_path / "bad", SLOW)
    shutil.rmtree(tmp_path / "good")
    shutil.copytree(tmp_path / "bad", tmp_path / "worse")
    assert "host.xplane.pb" in error("compare", SLOW, tmp_path)


def test_compare_refuses_an_ambiguous_path(tmp_path: Path) -> None:
    (source,) = SLOW.glob("*.gz")
    for name in ("one.pt.trace.json.gz", "two.pt.trace.json.gz"):
        shutil.copy(source, tmp_path / name)
    line = error("compare", tmp_path, HEALTHY)
    assert "contains 2 captures (one, two). Name the file or the session of one of them." in line
    (comparison,) = compared(tmp_path / "one.pt.trace.json.gz", tmp_path / "two.pt.trace.json.gz")
    assert comparison["targets"][0]["change"]["change_ns"] == 0


def test_compare_sees_that_a_file_has_changed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for source, status in ((SLOW, 1), (HEALTHY, 0)):
        for old in (tmp_path / "run").iterdir():
            old.unlink()
        (profile,) = source.glob("*.gz")
        shutil.copy(profile, tmp_path / "run" / profile.name)
        run("compare", HEALTHY, tmp_path / "run", "--fail-on-regression", 5, status=status)
        run("compare", HEALTHY, tmp_path / "run", "--fail-on-regression", 5, status=status)
        cold = ("--no-cache", "--workers", 2)
        run("compare", HEALTHY, tmp_path / "run", "--fail-on-regression", 5, *cold, status=status)


def test_scalars_of_both_runs_join_the_comparison(tmp_path: Path) -> None:
    for source, step_s in ((SLOW, 0.12), (HEALTHY, 0.06)):
        directory = tmp_path / Path(source).name
        shutil.copytree(source, directory)
        write_scalar(directory, "loss", {step: 1e9 + step * step_s for step in range(0, 900, 10)})
    slow, healthy = (tmp_path / Path(source).name for source in (SLOW, HEALTHY))
    (comparison,) = compared(slow, healthy)
    logged = comparison["targets"][0]["logged"]
    assert (logged["base_step_ns"], logged["target_step_ns"]) == (120_000_000, 60_000_000)
    sentence = "Faster without the profiler: 60.0 ms per step instead of 120 ms"
    assert sentence in run("compare", slow, healthy).stdout.replace("\n", " ")
    assert sentence in run("compare", slow, healthy, "--format", "markdown").stdout
