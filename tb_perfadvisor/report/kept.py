"""Reports kept between starts of the command: files that have not changed are not read again."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from tb_perfadvisor.bounded_directory import default_directory
from tb_perfadvisor.engine.cache import ResultCache, capture_key
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.ingest.discovery import Capture, Listing
from tb_perfadvisor.report import model

_NAME = "report.json"
# A file that could not be read may be readable next time without having changed.
_NOT_KEPT = frozenset({"unsupported-file"})


class KeptReports:
    """The reports of a listing's captures under some settings.

    Args:
        cache: Where they are.
        listing: The listing.
        config: The settings.
    """

    def __init__(self, cache: ResultCache, listing: Listing, config: Config) -> None:
        """Look at nothing yet."""
        self._cache = cache
        self._root = listing.root
        self._settings = msgspec.json.encode(config, enc_hook=dict).decode()

    def read(self, capture: Capture) -> model.Report | None:
        """The report of a capture, if its files and everything else are as they were."""
        content = self._cache.read(self._key(capture), _NAME)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=model.Report)
        except msgspec.MsgspecError:
            return None

    def keep(self, capture: Capture, report: model.Report) -> None:
        """Keep a report; where that fails, for a full disk say, it is made again next time."""
        if any(note.id in _NOT_KEPT for note in report.notes):
            return
        with suppress(OSError):
            staged = self._cache.stage()
            (staged / _NAME).write_bytes(msgspec.json.encode(report))
            self._cache.commit(staged, self._key(capture))

    def _key(self, capture: Capture) -> str:
        return capture_key(self._root, capture, self._settings)


def open_kept(listing: Listing, config: Config) -> KeptReports | None:
    """The reports in the user's cache directory; None where it cannot be written."""
    try:
        return KeptReports(ResultCache(default_directory()), listing, config)
    except OSError:
        return None
