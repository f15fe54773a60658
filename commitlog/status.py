"""The outcomes of an append, of a message and of the stop of a store.

The first two have RocketMQ's names (AppendMessageStatus, PutMessageStatus).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class AppendMessageStatus(Enum):
    """What became of an append (RocketMQ's DefaultAppendMessageCallback).

    No caller sees END_OF_FILE: an append that meets the end of a segment writes a BLANK there and
    goes on in the next segment, here as in RocketMQ.
    """

    PUT_OK = "PUT_OK"
    END_OF_FILE = "END_OF_FILE"
    MESSAGE_SIZE_EXCEEDED = "MESSAGE_SIZE_EXCEEDED"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class PutMessageStatus(Enum):
    """What became of a message, in the words that its sender gets.

    FLUSH_DISK_TIMEOUT means that the message is in the log, and that it is not known to be flushed.
    """

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


@dataclass(frozen=True)
class StopReport:
    """How a stop ended.

    `drained` means that everything that was sent is on disk, and that the pool is gone. Otherwise
    each line of `kept` is a reason why the pool stays. Nothing in it is lost.
    """

    drained: bool
    kept: tuple[str, ...] = ()
