"""Which advice fits a program."""

from __future__ import annotations

from tb_perfadvisor.advice import Remedy, advise
from tb_perfadvisor.signals.workload.fit import fitting
from tb_perfadvisor.signals.workload.workload import Fact, Part, Workload

PLAIN = Remedy(text="Start workers.", framework="pytorch", change="workers", needs=(Part.LOADER,))
TRAINER = Remedy(
    text="Set dataloader_num_workers.",
    framework="pytorch",
    change="workers",
    needs=(Part.LOADER, Part.HF_TRAINER),
)
GRAPHS = Remedy(text="Record graphs.", unless=(Part.DEVICE_GRAPHS,))


def program(*parts: Part, base: str = "pytorch") -> Workload:
    return Workload(base, tuple(Fact(part, "seen") for part in parts))


def test_a_remedy_needs_evidence_of_the_part_that_it_changes() -> None:
    assert fitting([PLAIN], program()) == ()
    assert fitting([PLAIN], program(Part.LOADER)) == (PLAIN,)


def test_a_remedy_for_another_framework_does_not_fit() -> None:
    assert fitting([PLAIN], program(Part.LOADER, base="jax")) == ()
    assert fitting([PLAIN], program(Part.LOADER, base="unknown")) == (PLAIN,)


def test_what_the_program_does_already_is_not_advised() -> None:
    assert fitting([GRAPHS], program()) == (GRAPHS,)
    assert fitting([GRAPHS], program(Part.DEVICE_GRAPHS)) == ()


def test_a_server_that_overlaps_its_schedule_is_not_told_to() -> None:
    (advice,) = fitting(advise("overlapped-schedule"), program(Part.SERVER, Part.SGLANG))
    assert "leave --disable-overlap-schedule out" in advice.text
    overlapped = program(Part.SERVER, Part.SGLANG, Part.OVERLAPPED_SCHEDULE)
    (advice,) = fitting(advise("overlapped-schedule"), overlapped)
    assert "already prepares the next step" in advice.text


def test_the_first_variant_that_fits_stands_for_the_change() -> None:
    variants = [TRAINER, PLAIN, GRAPHS]
    assert fitting(variants, program(Part.LOADER)) == (PLAIN, GRAPHS)
    assert fitting(variants, program(Part.LOADER, Part.HF_TRAINER)) == (TRAINER, GRAPHS)
