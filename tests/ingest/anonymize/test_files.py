"""Anonymized copies give the same findings, and contain no name of the user."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.errors import PerfAdvisorError, UsageError
from tb_perfadvisor.ingest.anonymize.files import anonymize_file
from tb_perfadvisor.ingest.xspace.decode.messages import WRITING
from tb_perfadvisor.report.report import Report
from tests.support.command import DEMO
from tests.support.hlo_programs import HloProto
from tests.support.kineto_files import event, kernel, to_bytes
from tests.support.xspaces import Drawing

PROFILES = sorted(
    path
    for run in ("jax_*", "pytorch_*", "tensorflow_*", "synthetic_tpu*")
    for path in DEMO.glob(f"{run}/**/*")
    if path.name.endswith((".xplane.pb", ".trace.json.gz"))
)
CORPUS_SAMPLE = (
    "**/resnet50_num_workers_0/*.json.gz",
    "**/moe_05*/*.json.gz",
    "**/transformer/*.json",
    "**/asdf_True_02c6e091/*.json.gz",
)
SECRETS = ("acme", "ranker", "jdoe", "customer", "churn", "fe80", "8a2e", "20231105", "7654321")


def facts(report: Report) -> dict[str, Any]:
    """What must not change: outcomes, savings and times."""
    document = json.loads(msgspec.json.encode(report))
    return {
        "outcomes": [(outcome["rule_id"], outcome["status"]) for outcome in document["outcomes"]],
        "savings": [(finding["rule_id"], finding["saving"]) for finding in document["findings"]],
        "overview": {
            key: document["overview"][key]
            for key in ("window_ns", "steps", "step_time_ns", "breakdown", "device_busy_share")
        },
    }


@pytest.mark.parametrize("source", PROFILES, ids=lambda path: path.parent.name + path.name[:8])
def test_outcomes_and_times_stay(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / source.name
    anonymize_file(source, copy)
    assert facts(analyze(copy)) == facts(analyze(source))


@pytest.mark.corpus
@pytest.mark.parametrize("pattern", CORPUS_SAMPLE)
def test_outcomes_and_times_of_the_corpus_stay(pattern: str, tmp_path: Path) -> None:
    corpus = os.environ.get("PERFADVISOR_CORPUS")
    if not corpus:
        pytest.skip("PERFADVISOR_CORPUS is not set")
    source = next(iter(sorted(Path(corpus).glob(pattern))))
    copy = tmp_path / source.name
    anonymize_file(source, copy)
    assert facts(analyze(copy)) == facts(analyze(source))


def planted_kineto() -> bytes:
    frame = "/home/jdoe/acme/train_ranker.py(12): score_customers"
    return to_bytes(
        [
            {
                "ph": "M",
                "name": "process_name",
                "pid": 10,
                "tid": 0,
                "args": {"name": "python train_ranker.py --data /mnt/acme"},
            },
            {"ph": "M", "name": "thread_name", "pid": 10, "tid": 10, "args": {"name": "churn-io"}},
            event("ProfilerStep#1", 0, 100, "user_annotation"),
            event("rank customers", 1, 50, "user_annotation"),
            event(frame, 1, 60, "python_function"),
            event("nn.Module: AcmeRanker_0", 1, 60, "python_function"),
            event(
                "acme::churn_loss",
                2,
                10,
                args={
                    "External id": 5,
                    "Concrete Inputs": ["churn", "[1, 1]"],
                    "Call stack": frame,
                    "Module Hierarchy": "acme.Ranker",
                    "Customer": 3,
                    "Process Group Description": "acme_dp",
                },
            ),
            # The user's folders, named like packages.
            *(
                event(f"{folder}/acme_loader.py(3): load_churn", 3, 1, "python_function")
                for folder in ("datasets", "ray", "lightning", "triton", "jax", "torch", "flax")
            ),
            event("datasets/load.py(3): load_acme", 3, 1, "python_function"),
            event("job 20231105 on fe80::1ff:8a2e", 4, 1, "user_annotation"),
            kernel("ampere_sgemm_128x64_nn", 20, 30),
            kernel("_churn_fwd_kernel_0d1d2de", 60, 10),
            kernel("_ZN4acme14rank_customersIfLi128EEEvPT_i", 80, 10),
        ],
        traceName="/home/jdoe/runs/acme.json",
        host_name="acme-node-7",
        acme_metadata={"owner": "jdoe"},
        distributedInfo={
            "backend": "nccl",
            "rank": 0,
            "world_size": 2,
            "pg_config": [{"pg_name": "0", "pg_desc": "acme_pg", "ranks": [0, 1]}],
        },
    )


def planted_xspace() -> bytes:
    drawing = Drawing()
    drawing.space.hostnames.append("acme-node-7")
    drawing.space.warnings.append("cannot write to /home/jdoe")
    host = drawing.plane("/host:CPU", profile_customer="jdoe")
    line = drawing.line(host, "acme-worker")
    drawing.event(host, line, "train", 0, 100, step_num=1, customer="churn", customer_id=7)
    drawing.event(host, line, "PjitFunction(rank_customers)", 0, 90)
    drawing.event(host, line, "$ranker.py:12 score_customers", 0, 90)
    for folder in ("datasets", "jax"):
        frame = f"${folder}/acme_loader.py:3 load_churn"
        drawing.event(host, line, frame, 0, 90)
    drawing.event(host, line, "job 7654321 on fe80::1ff:8a2e", 0, 90)
    gpu = drawing.plane("/device:GPU:0")
    stream = drawing.line(gpu, "Stream #13(Compute)")
    drawing.event(gpu, stream, "_churn_fwd_kernel_0d1d2de", 10, 20)
    drawing.event(gpu, stream, "ampere_sgemm_128x64_nn", 40, 20)
    device = drawing.plane("/device:TPU:0")
    operations = drawing.line(device, "XLA Ops")
    drawing.event(
        device,
        operations,
        "%churn_fusion.1 = f32[8]{0} fusion(f32[8]{0} %acme_input.2), kind=kLoop",
        10,
        20,
        shared={
            "tf_op": "jit(rank_customers)/acme/dot_general",
            "source": "/home/jdoe/ranker.py:3",
        },
    )
    metadata = drawing.plane("/host:metadata")
    program = HloProto()
    computation = program.hlo_module.computations.add(id=1)
    computation.instructions.add(
        name=b"acme_fusion.1",
        opcode=b"fusion",
        metadata={"op_name": b"jit(rank_customers)/dot", "source_file": b"/home/jdoe/ranker.py"},
    )
    program.hlo_module.stack_frame_index.file_names.append(b"/home/jdoe/ranker.py")
    kind = metadata.event_metadata[1]
    kind.id, kind.name = 1, "jit_rank_customers(1)"
    metadata.stat_metadata[1].id, metadata.stat_metadata[1].name = 1, "Hlo Proto"
    kind.stats.add(metadata_id=1, bytes_value=program.SerializeToString())
    kind.metadata = b"acme"
    return drawing.bytes()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rank0.pt.trace.json", planted_kineto()),
        ("rank0.pt.trace.json.gz", gzip.compress(planted_kineto())),
        ("host.xplane.pb", planted_xspace()),
    ],
)
def test_no_name_of_the_user_survives(name: str, data: bytes, tmp_path: Path) -> None:
    source, copy = tmp_path / name, tmp_path / f"copy.{name}"
    source.write_bytes(data)
    anonymize_file(source, copy)
    stored = copy.read_bytes()
    text = (gzip.decompress(stored) if name.endswith(".gz") else stored).lower()
    assert not [secret for secret in SECRETS if secret.encode() in text]
    # Names of frameworks and kernels stay.
    is_kineto = b"traceevents" in text
    for name in (b"fwd_kernel_",) if is_kineto else (b"dot_general", b"pjitfunction("):
        assert name in text
    assert b"ampere_sgemm_128x64_nn" in text


def test_stats_of_the_user_are_removed(tmp_path: Path) -> None:
    source, copy = tmp_path / "host.xplane.pb", tmp_path / "copy.xplane.pb"
    source.write_bytes(planted_xspace())
    anonymize_file(source, copy)
    (host, *_) = WRITING.XSpace.FromString(copy.read_bytes()).planes
    assert [stat.name for stat in host.stat_metadata.values()] == ["step_num"]
    assert len(host.stats) == 0


def test_equal_keys_give_equal_names(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_bytes(to_bytes([event("acme", 0, 1), event("x", 0, 1)]))
    second.write_bytes(to_bytes([event("acme", 0, 2)]))
    copies = []
    for source in (first, second):
        copy = tmp_path / f"copy_{source.name}"
        anonymize_file(source, copy, key="run 7")
        copies.append(json.loads(copy.read_text())["traceEvents"][0]["name"])
    assert copies[0] == copies[1] != "acme"


def test_refuses_to_overwrite_the_profile(tmp_path: Path) -> None:
    source = tmp_path / "a.json"
    source.write_bytes(planted_kineto())
    link = tmp_path / "link.json"
    link.symlink_to(source)
    for target in (source, link):
        with pytest.raises(UsageError, match="would be lost"):
            anonymize_file(source, target)
    assert source.read_bytes() == planted_kineto()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b""),
        ("a.json", b"{}"),
        ("a.json", b'{"traceEvents": []}'),
        ("a.json", b"not a profile"),
        ("a.json.gz", gzip.compress(planted_kineto())[:40]),
        ("a.xplane.pb", b""),
        ("a.xplane.pb", planted_xspace()[:-7]),
    ],
)
def test_bad_files_give_an_error_and_no_copy(name: str, data: bytes, tmp_path: Path) -> None:
    source = tmp_path / name
    source.write_bytes(data)
    with pytest.raises(PerfAdvisorError):
        anonymize_file(source, tmp_path / f"copy.{name}")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_points_from_a_chrome_export_to_the_xplane(tmp_path: Path) -> None:
    source = tmp_path / "host.trace.json"
    names = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/host:CPU"}}
    source.write_text(json.dumps({"traceEvents": [names]}))
    with pytest.raises(PerfAdvisorError, match=r"anonymize the \.xplane\.pb"):
        anonymize_file(source, tmp_path / "copy.json")


def test_missing_files_give_an_error(tmp_path: Path) -> None:
    with pytest.raises(PerfAdvisorError, match="No such file"):
        anonymize_file(tmp_path / "none.json", tmp_path / "copy.json")
    source = tmp_path / "a.json"
    source.write_bytes(planted_kineto())
    with pytest.raises(PerfAdvisorError, match="No such file"):
        anonymize_file(source, tmp_path / "missing" / "copy.json")
