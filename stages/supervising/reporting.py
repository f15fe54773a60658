"""The supervisor's reports to the owner of a store: a JSON object a line, on standard output."""

from __future__ import annotations

import logging
import os
from typing import Any

from commitlog.errors import CommitLogError
from commitlog.text.lines import to_json

_STDOUT = 1

log = logging.getLogger(__name__)


def tell(message: dict[str, Any]) -> None:
    """Sends one report. If the owner is gone, the report is lost."""
    try:
        os.write(_STDOUT, to_json(message) + b"\n")
    except BrokenPipeError:
        log.info("the owner is gone: %s", message)


def tell_error(error: CommitLogError) -> None:
    """Reports an error to the owner by its name, and logs it."""
    log.error(str(error))
    tell({"error": type(error).__name__, "message": str(error)})


def warn(text: str) -> None:
    """Sends a warning to the owner and to the log."""
    log.warning(text)
    tell({"warning": text})
