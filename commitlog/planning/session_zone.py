"""The time zone of a session, for times that are given without one.

Spark does not tell a source in Python what `spark.sql.session.timeZone` is. So
`commitlog.spark.session` passes it on in an environment variable, which Spark's workers inherit. In
other sessions, a time without a zone is local time, as it is in Spark by default.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from commitlog.errors import OptionError

VARIABLE = "COMMITLOG_SESSION_TIMEZONE"
SETTING = "spark.sql.session.timeZone"

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d\d))?", re.IGNORECASE)


def session_zone() -> tzinfo | None:
    """The session's time zone, or None for local time.

    It is a region or an offset from UTC, such as `Asia/Tokyo`, `UTC` and `+09:00`. Raises
    OptionError for a name that Python does not know.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    if found := _OFFSET.fullmatch(name):
        minutes = int(found[2]) * 60 + int(found[3] or 0)
        return timezone(timedelta(minutes=-minutes if found[1] == "-" else minutes))
    try:
        return ZoneInfo("UTC" if name == "Z" else name)
    except (OSError, ValueError, LookupError):
        raise OptionError(f"{SETTING} is {name!r}, which Python does not know: give times with a zone") from None
