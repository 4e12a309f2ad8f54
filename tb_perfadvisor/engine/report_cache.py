"""Caches results between runs of the command, so that unchanged files are not read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.engine.result_cache import ResultCache, capture_key
from tb_perfadvisor.ingest.captures import Capture
from tb_perfadvisor.ingest.files.containment import NotPrivateError, private_directory
from tb_perfadvisor.note import Note
from tb_perfadvisor.training.training import RunOptions

# A file that could not be read may become readable without changing, for example after an upgrade.
# One that changed while it was read is not as the key says.
_NOT_CACHED = frozenset({"unsupported-file", "file-changed"})

T = TypeVar("T", bound=msgspec.Struct)


class ReportCache(Generic[T]):
    """Results of one type, computed under one configuration.

    Results are reports, or the facts for a comparison.
    """

    def __init__(self, cache: ResultCache, kind: type[T], config: Config) -> None:
        self._cache = cache
        self._kind = kind
        self._name = f"{kind.__name__.lower()}.json"
        # What the user says about the run and its findings is joined with what is shown.
        settings = msgspec.structs.replace(config, run=RunOptions(), remarks=())
        self._settings = f"{kind.__name__} {msgspec.json.encode(settings, enc_hook=dict).decode()}"

    def read(self, root: str, capture: Capture) -> T | None:
        """The result of a capture; None if anything it depends on has changed."""
        content = self._cache.read(self._key(root, capture), self._name)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=self._kind)
        except msgspec.MsgspecError:  # otherwise it would stay, and be made again each time
            self._cache.remove(self._key(root, capture))
            return None

    def write(self, root: str, capture: Capture, result: T, notes: Iterable[Note]) -> None:
        """Store a result. If that fails, for example on a full disk, do without.

        `root` is what the capture's paths are relative to.
        """
        if any(note.id in _NOT_CACHED for note in notes):
            return
        self._cache.store(self._key(root, capture), self._name, msgspec.json.encode(result))

    def _key(self, root: str, capture: Capture) -> str:
        return capture_key(root, capture, self._settings)


def open_report_cache(
    kind: type[T], config: Config, warn: Callable[[str], None] | None = None
) -> ReportCache[T] | None:
    """Open the cache in the user's cache directory; None if that cannot be used.

    `warn` is called if others could write to the directory.
    """
    try:
        return ReportCache(ResultCache(private_directory()), kind, config)
    except NotPrivateError as error:
        if warn is not None:
            warn(error.note)
    except OSError:
        pass
    return None
