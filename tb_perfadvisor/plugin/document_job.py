"""Jobs that make one document: the request comes as a file, and the document replaces it.

Does not import TensorBoard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tb_perfadvisor.engine.result_cache import ResultCache
from tb_perfadvisor.plugin.worker import DOCUMENT, REQUEST, parser_of_options, run_job


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
        path = options.output / REQUEST
        request = msgspec.json.decode(path.read_bytes(), type=request_type)
        path.unlink()
        (options.output / DOCUMENT).write_bytes(make(request, ResultCache(options.cache)))

    return run_job(job, options)
