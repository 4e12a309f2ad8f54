"""Jobs that make one document: the request comes as a file, and the document replaces it.

Does not import TensorBoard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.plugin.worker import parser_of_options, run_job

DOCUMENT = "document"
_REQUEST = "request.json"


def stage_request(cache: ResultCache, request: Any) -> Path:
    """Create a directory for a document, with the request for it."""
    directory = cache.stage()
    (directory / _REQUEST).write_bytes(msgspec.json.encode(request))
    return directory


def run_document_job(
    module: str,
    request_type: Any,
    make: Callable[[Any, ResultCache], bytes],
    arguments: Sequence[str] | None,
) -> int:
    """Make the document that the output directory has a request for.

    The document is made from the request and the stored results. `module` is what the process runs;
    the arguments are its own by default. Returns the exit status.
    """
    parser = parser_of_options(module)
    parser.add_argument("--cache", required=True, type=Path, help="where the results are")
    options = parser.parse_args(arguments)

    def job() -> None:
        path = options.output / _REQUEST
        request = msgspec.json.decode(path.read_bytes(), type=request_type)
        path.unlink()
        (options.output / DOCUMENT).write_bytes(make(request, ResultCache(options.cache)))

    return run_job(job, options)
