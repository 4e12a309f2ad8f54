"""The command on object stores: its output and its requests."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor.extras import install_command
from tb_perfadvisor.plain_text import printable_name
from tests.support.command import DEMO, ROOT, error, run
from tests.support.object_stores import Cut, ObjectStore, gcs_error, s3_error

# The findings of the slow run.
FOUND = ("input-stall", "loader-in-main-process")
RUNS = ("pytorch_input_slow", "jax_recompiling")


@pytest.fixture(params=["s3", "gcs"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each kind of store in turn, with two of the demo runs."""
    found: ObjectStore = request.getfixturevalue(request.param)
    upload(found)
    return found


def upload(store: ObjectStore) -> None:
    for run_name in RUNS:
        for path in (DEMO / run_name).rglob("*"):
            if path.is_file():
                key = f"runs/{path.relative_to(DEMO).as_posix()}"
                store.put("bucket", key, path.read_bytes())
    store.put("bucket", "runs/checkpoints/0/weights.json", b"{}")
    store.asked()


def refused(url: str) -> str:
    """The one line printed instead of a report."""
    return error("analyze", url).removeprefix("error: ")


def refused_in_new_process(url: str, **environment: str) -> str:
    """The same from a process that has opened no store yet."""
    done = subprocess.run(
        [sys.executable, "-m", "tb_perfadvisor", "analyze", url],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("error: ")


def reports(*arguments: str) -> dict[str, list[str]]:
    """The rules that fired on each run."""
    done = run("analyze", *arguments, "--format", "json")
    assert done.stderr == ""
    found = json.loads(done.stdout)["reports"]
    return {
        report["run"]: [finding["rule_id"] for finding in report["findings"]] for report in found
    }


def test_a_bucket_reads_like_a_directory(store: ObjectStore) -> None:
    local = reports(str(DEMO), "--run", "|".join(RUNS))
    assert local["pytorch_input_slow"] == [*FOUND]
    url = f"{store.scheme}://bucket/runs"
    assert reports(url) == local
    first = store.asked()
    assert first.count("LIST runs/") == 1
    paths = [path for run_name in RUNS for path in (DEMO / run_name).rglob("*.*")]
    sent = [request for request in first if request.startswith("GET")]
    assert set(sent) == {f"GET {path.name}" for path in paths}
    if store.scheme == "s3":  # gcsfs asks what an object is before it reads it
        assert len(sent) == len(paths)
    # Never again, with or without cached reports.
    assert reports(url) == local
    assert store.asked() == ["LIST runs/"]
    assert reports(url, "--no-cache") == local
    assert store.asked() == ["LIST runs/"]


def test_one_object_by_its_url(store: ObjectStore) -> None:
    (trace,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    url = f"{store.scheme}://bucket/runs/pytorch_input_slow/{trace.name}"
    assert reports(url) == {"pytorch_input_slow": [*FOUND]}


def test_a_changed_object_is_analyzed_again(store: ObjectStore) -> None:
    (slow,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    (fixed,) = (DEMO / "pytorch_input_fixed").glob("*.gz")
    key = f"runs/pytorch_input_slow/{slow.name}"
    url = f"{store.scheme}://bucket/runs/pytorch_input_slow"
    assert list(reports(url).values()) == [[*FOUND]]
    store.put("bucket", key, fixed.read_bytes())
    assert list(reports(url).values()) == [[]]


# Terminals obey the first, file systems the second, S3's client a third for an object's version.
KEYS = (
    "run\x1b[2J\x9b31m\u202e",
    "a//b",
    "%2e%2e%00",
    "run[*?]",
    "$(x) '\"`y`",
    "<script>",
    "run#x?y=z+w",
    "a::b",
    " run ",
    "nul\0",
)
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("scheme", ["s3", "gcs"])
def test_keys_of_any_kind_are_read_and_shown(scheme: str, request: pytest.FixtureRequest) -> None:
    store: ObjectStore = request.getfixturevalue(scheme)
    (trace,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    for key in KEYS:
        store.put("bucket", f"logs/{key}/{trace.name}", trace.read_bytes())
    url = f"{store.scheme}://bucket/logs"
    found = reports(url)
    assert set(found) == {printable_name(key) for key in KEYS}
    assert all(rules == [*FOUND] for rules in found.values())
    for arguments in (["analyze", url], ["analyze", url, "-f", "markdown"], ["doctor", url]):
        done = run(*arguments)
        assert not CONTROLS.search(done.stdout + done.stderr)
        assert "run" in done.stdout


@pytest.mark.parametrize("scheme", ["s3", "gcs"])
def test_urls_of_any_kind_are_shown(scheme: str, request: pytest.FixtureRequest) -> None:
    store: ObjectStore = request.getfixturevalue(scheme)
    store.put("bucket", "a.json", b"{}")
    for name in (
        "bucket/no\x1b[2J\u202e",
        "no\x1b[2J\x9b/logs",
        "\0",
        "bucket/../up",
        "bucket/%00",
    ):
        line = error("analyze", f"{store.scheme}://{name}")
        assert not CONTROLS.search(line)
        assert "bug" not in line


def test_missing_objects(store: ObjectStore) -> None:
    scheme = store.scheme
    assert refused(f"{scheme}://nowhere/runs") == (
        f"{scheme}://nowhere/runs: there is no such bucket. Check its name"
        + {"s3": " and, if it is set, AWS_ENDPOINT_URL.", "gs": "."}[scheme]
    )
    assert refused(f"{scheme}://bucket/nothing") == (
        f"{scheme}://bucket/nothing: there is no such file or directory."
    )
    store.put("bucket", "empty/notes.txt", b"hello")
    assert "contains no profile (1 file scanned)" in refused(f"{scheme}://bucket/empty")


@pytest.mark.parametrize(
    ("scheme", "module", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")]
)
def test_missing_packages(scheme: str, module: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError('No module {module}')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    line = refused_in_new_process(f"{scheme}://bucket/runs", PYTHONPATH=path)
    assert line.startswith(f"{scheme}://bucket/runs: {scheme}:// needs a package that is not")
    assert module in line
    assert line.endswith(install_command(extra))


def test_credentials_that_may_list_but_not_read(s3: ObjectStore, gcs: ObjectStore) -> None:
    for store in (s3, gcs):
        upload(store)
    s3.misbehave(
        lambda asked: None if "list-type" in asked.query else s3_error(403, "AccessDenied")
    )
    assert "Grant s3:GetObject on it" in refused("s3://bucket/runs")
    gcs.misbehave(
        lambda asked: (
            None
            if asked.path.endswith("/o") and "delimiter" not in asked.query
            else gcs_error(403, "a@b does not have storage.objects.get access.")
        )
    )
    assert "Grant roles/storage.objectViewer" in refused("gs://bucket/runs")


def test_no_credentials_for_a_private_bucket(s3: ObjectStore) -> None:
    s3.misbehave(lambda asked: s3_error(403, "AccessDenied"))
    keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert refused_in_new_process("s3://bucket/runs", **keys) == (
        "s3://bucket/runs: the store wants credentials, and there are none. Run `aws configure` or "
        "`aws sso login`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    )


def test_an_interrupted_transfer(s3: ObjectStore) -> None:
    upload(s3)
    cut = Cut(0.5, is_announced=True)
    s3.misbehave(lambda asked: cut if asked.method == "GET" and asked.path[-3:] == ".gz" else None)
    (slow,) = (DEMO / "pytorch_input_slow").glob("*.gz")
    line = refused("s3://bucket/runs/pytorch_input_slow")
    size = slow.stat().st_size
    assert f"the transfer broke off after {size // 2:,} of {size:,} bytes. Try again." in line
    s3.misbehave(None)
    assert list(reports("s3://bucket/runs/pytorch_input_slow").values()) == [[*FOUND]]


def test_several_processes_fetch_at_once(s3: ObjectStore) -> None:
    for path in (DEMO / "synthetic_gpu_allreduce_8rank").iterdir():
        s3.put("bucket", f"ddp/{path.name}", path.read_bytes())
    s3.asked()
    found = reports("s3://bucket/ddp", "--workers", "2")
    assert len(found) == 1
    traces = [request for request in s3.asked() if re.fullmatch(r"GET rank\d\..*", request)]
    assert sorted(traces) == sorted(set(traces))
    assert len(traces) == 8
