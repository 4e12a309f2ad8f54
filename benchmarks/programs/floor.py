"""The minimum that any reader in Python must do: inflate, and decode the events that it needs."""

import importlib.util
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

_began = perf_counter()

import msgspec  # noqa: E402 - importing is timed
from isal import igzip  # noqa: E402

_SCHEMA = Path(__file__).parents[2] / "tb_perfadvisor/ingest/kineto/decode/schema.py"


def _event() -> Any:
    """The fields that our reader decodes, without importing the reader."""
    spec = importlib.util.spec_from_file_location("kineto_schema", _SCHEMA)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["kineto_schema"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Event


File = msgspec.defstruct("File", [("traceEvents", list[_event()])])  # type: ignore[misc]

_imported = perf_counter()
for path in sys.argv[1:]:
    data = Path(path).read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = igzip.decompress(data)
    document = msgspec.json.decode(data, type=File)
print(json.dumps({"imports_s": _imported - _began, "work_s": perf_counter() - _imported}))
