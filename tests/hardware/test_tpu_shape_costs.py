"""The model of what shapes cost, against answers of XLA's TPU compiler (libtpu 0.0.52)."""

from __future__ import annotations

from statistics import median

import pytest

from tb_perfadvisor.hardware.tpu_shape_costs import fitted_with, least_padded, shape_costs

# Device, kind, sizes, cycles. None of these shapes was used to fit the model.
ANSWERS = [
    ("TPU v5e", "product", (1024, 520, 2048), 27_653),
    ("TPU v5e", "product", (1024, 512, 2048), 19_865),
    ("TPU v5e", "product", (1024, 520, 2100), 36_611),
    ("TPU v5e", "product", (1024, 512, 2176), 26_481),
    ("TPU v5e", "product", (2100, 1024, 520), 26_384),
    ("TPU v5e", "product", (8192, 4096, 128), 128_928),
    ("TPU v5e", "product", (8192, 4096, 130), 129_289),
    ("TPU v5e", "product", (8192, 4096, 256), 134_701),
    ("TPU v5e", "product", (8192, 4096, 4096), 2_097_152),
    ("TPU v5e", "product", (8192, 4096, 4098), 2_098_176),
    ("TPU v5e", "product", (4, 8192, 8192), 246_551),
    ("TPU v5e", "product", (8, 8192, 8192), 246_791),
    ("TPU v5e", "elementwise", (4096, 128, 128), 738_930),
    ("TPU v5e", "elementwise", (4096, 130, 130), 797_381),
]


def _cycles(device: str, kind: str, sizes: tuple[int, ...]) -> float:
    costs = shape_costs(device)
    assert costs is not None
    return costs.cycles(kind, sizes)


def test_it_is_fitted_to_the_version_that_gave_these_answers() -> None:
    assert fitted_with() == "0.0.52"


def test_half_of_the_answers_are_foretold_within_15_percent() -> None:
    errors = [
        abs(_cycles(device, kind, sizes) / cycles - 1) for device, kind, sizes, cycles in ANSWERS
    ]
    assert median(errors) <= 0.15
    assert max(errors) <= 0.4


@pytest.mark.parametrize(
    ("one", "other", "least", "most"),
    [
        # Transfers are the limit: 130 columns cost 0.3 % more than 128.
        ((8192, 4096, 128), (8192, 4096, 130), 0.99, 1.02),
        # 4 rows cost what 8 rows cost, because the weights are read in any case.
        ((4, 8192, 8192), (8, 8192, 8192), 0.99, 1.01),
        # 520 contracted terms cost 39 % more than 512.
        ((1024, 512, 2048), (1024, 520, 2048), 1.1, 1.4),
    ],
)
def test_neighbors_cost_what_the_compiler_says(
    one: tuple[int, ...], other: tuple[int, ...], least: float, most: float
) -> None:
    ratio = _cycles("TPU v5e", "product", other) / _cycles("TPU v5e", "product", one)
    assert least <= ratio <= most


def test_drivers_names_are_known_and_other_devices_are_not() -> None:
    costs = shape_costs("TPU v5 lite")
    assert costs is not None
    assert costs.generation == "v5e"
    assert shape_costs("NVIDIA H100 80GB HBM3") is None
    assert shape_costs("TPU v3") is None


@pytest.mark.parametrize(
    ("sizes", "elements"),
    [
        ((130,), 256),
        ((130, 4096), 136 * 4096),  # 4096 fills lanes, 130 is rounded up to 136
        ((4096, 130, 130), 4096 * 130 * 136),
        ((100, 30), 128 * 32),  # less than 104 x 128
    ],
)
def test_the_layout_with_the_least_padding(sizes: tuple[int, ...], elements: int) -> None:
    assert least_padded(sizes) == elements
