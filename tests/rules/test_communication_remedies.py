"""Whatever a collective is for, some remedy fits every program that may have it."""

from __future__ import annotations

import pytest

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.communication.overlap import OVERLAPPED
from tb_perfadvisor.signals.ranks.collective_roles import Role
from tb_perfadvisor.signals.workload.fit import fitting
from tb_perfadvisor.signals.workload.workload import TRAINERS, Fact, Part, Workload

SERVED = (Role.TENSOR, Role.PIPELINE, Role.EXPERTS)


def fitting_to(changes: tuple[str, ...], *parts: Part, base: str = "pytorch") -> list[str]:
    workload = Workload(base, tuple(Fact(part, "") for part in parts))
    return [remedy.text + remedy.snippet for remedy in fitting(advise(*changes), workload)]


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.BUFFERS])
@pytest.mark.parametrize("parts", [(), (Part.TORCH_COMPILE,), *((part,) for part in TRAINERS)])
def test_training_has_a_remedy(role: Role, parts: tuple[Part, ...]) -> None:
    assert fitting_to(OVERLAPPED[role], Part.TRAINING, *parts)


@pytest.mark.parametrize("role", SERVED)
@pytest.mark.parametrize("server", [Part.VLLM, Part.SGLANG])
def test_servers_have_their_own_remedies(role: Role, server: Part) -> None:
    parts = (Part.SERVER, Part.FORWARD_ONLY, server)
    command = "vllm serve" if server is Part.VLLM else "sglang.launch_server"
    found = fitting_to(OVERLAPPED[role], *parts)
    assert found
    assert all(command in text for text in found)


@pytest.mark.parametrize("role", [*SERVED, Role.CONTEXT, Role.UNKNOWN])
def test_plain_inference_has_a_remedy(role: Role) -> None:
    found = fitting_to(OVERLAPPED[role], Part.FORWARD_ONLY)
    assert found
    assert not any("DistributedDataParallel" in text or "no_sync" in text for text in found)


def test_gradients_without_ddp_get_no_advice_on_it() -> None:
    found = fitting_to(OVERLAPPED[Role.GRADIENTS], Part.TRAINING)
    assert found
    assert not any("DDP" in text or "DistributedDataParallel" in text for text in found)


@pytest.mark.parametrize("base", ["pytorch", "tensorflow", "jax", "unknown"])
@pytest.mark.parametrize("hardware", [(), (Part.GPU,), (Part.TPU,), (Part.CPU_ONLY,)])
def test_every_framework_has_a_remedy(base: str, hardware: tuple[Part, ...]) -> None:
    assert fitting_to(OVERLAPPED[Role.UNKNOWN], *hardware, base=base)
    assert fitting_to(("link-path",), *hardware, base=base)


def test_commands_are_those_of_the_vendor() -> None:
    (nvidia,) = fitting_to(("link-path",), Part.GPU, Part.NVIDIA)
    (amd,) = fitting_to(("link-path",), Part.GPU, Part.AMD)
    assert "nvidia-smi" in nvidia
    assert "nvidia-smi" not in amd
    assert "amd-smi" in amd
