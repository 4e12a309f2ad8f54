"""What a recorder stores beside a capture, for tests."""

from __future__ import annotations

from tb_perfadvisor.machine.facts import (
    Examined,
    Facts,
    FailedLook,
    Load,
    Machine,
    Made,
    Observed,
    Program,
    Recording,
    Threads,
)

FACTS = Facts(
    machine=Machine(
        system="Linux x86_64",
        processor="AMD EPYC",
        cores=2,
        quota_cores=1.5,
        memory_bytes=24 << 30,
        instruction_sets=("avx2", "avx512_bf16"),
    ),
    threads=Threads(intra_op=2, inter_op=2, process=9),
    load=Load(others=0.42, idle=0.1, seconds=3.5),
    program=Program(
        script="acme/train_churn.py",
        arguments=("--customer", "acme"),
        start_method="fork",
        made=(
            Made(
                what="loader",
                name="DataLoader",
                path="acme/train_churn.py",
                line=20,
                function="make_churn_loader",
                facts={"num_workers": 4, "batch_size": 64, "dataset": "ChurnDataset"},
            ),
            Made("step loop", "step", "acme/train_churn.py", 31, "fit_churn"),
        ),
    ),
    examined=Examined(
        steps=4,
        seconds=0.1,
        calls=80,
        observed=(
            Observed("unused", "aten::addmm", "acme/churn.py", 12, 0.3, "score_churn"),
            Observed("same twice", "churn_encoder", "acme/churn.py", 14, 0.2),
        ),
        failed=(FailedLook("padding", "KeyError: 'churn'"),),
    ),
    recording=Recording("run", is_rich=False, reason="periodic", first_step=20, step_ns=1e6),
)
