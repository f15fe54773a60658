"""The signatures of the native core; `src/lib.rs` has the list of what is exported."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from commitlog.message import Message
from commitlog.receipt import Receipt
from commitlog.record.properties import BytesKey
from commitlog.record.record_layout import Buffer

_Bytes = Buffer | npt.NDArray[np.uint8]
_Ints = npt.NDArray[np.int64]
_Words = memoryview | npt.NDArray[np.uint64]
_Demands = tuple[int | None, int | None, bool, bool]

ABI: int
LAYOUT: dict[str, int]

class Topic:
    next_offset: int
    def __init__(self, head: bytes, topic_part: bytes, has_crc: bool, next_offset: int) -> None: ...

class Appender:
    message_bytes_max: int
    _topics: dict[str, Any]
    _token: bool | None
    _wrote: int
    _is_ahead: bool
    _messages: int
    _seen: int
    _timestamp: int
    _next_tick: int
    _sync: bool
    def _take_lane(
        self,
        words: memoryview,
        wrote: int,
        messages: int,
        sleep: int,
        progress: object,
        receipt: type[Receipt],
        reserved: frozenset[str],
    ) -> None: ...
    def _write_to(self, buffer: Buffer | None, start: int, limit: int) -> None: ...

def publish(words: _Words, at: int, value: int) -> None: ...
def observe(words: _Words, at: int) -> int: ...
def confirm(words: _Words, at: int) -> int: ...
def measure(bodies: list[Any]) -> tuple[int, int, int] | None: ...
def keyed_properties(keys: list[Any], same: bytes, most: int) -> list[bytes] | None: ...
def encode_batch(
    topic: object,
    bodies: list[bytes] | Buffer | npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64] | None,
    properties: bytes | list[bytes],
    first_queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    store_timestamp: int,
    out: memoryview,
    places: npt.NDArray[np.int64],
) -> int: ...
def scan(
    buffer: _Bytes, start: int, last: int, end: int, demands: _Demands, most: int, columns: _Bytes
) -> tuple[int, int, int, list[str]]: ...
def tabulate(
    buffer: _Bytes, positions: _Ints, sizes: _Ints, demands: _Demands, columns: _Bytes
) -> tuple[int, list[str]]: ...
def message_class(
    reserved: frozenset[str], bytes_key_name: str, bytes_key: Callable[[Mapping[str, str]], BytesKey | None]
) -> type[Message]: ...
def follow(
    buffer: _Bytes,
    start: int,
    end: int,
    place: tuple[int, int, int],
    following: Mapping[str, int],
    wanted: set[str] | None,
) -> tuple[list[Message], int, dict[str, int]]: ...
def messages(buffer: _Bytes, columns: Sequence[_Ints], born_timestamps: _Ints, topics: list[str]) -> list[Message]: ...

class Watch:
    def __init__(self, words: memoryview, first: int, stride: int, count: int, counter: int) -> None: ...
    def look(self, seen: bytes) -> tuple[bytes, list[int]]: ...
    def wait(self, seen: bytes, limit: int) -> None: ...
    def look_for(self, seen: bytes, idle: int, part: int, shortest: int, limit: int) -> None: ...

def wake(words: memoryview, index: int) -> None: ...
def take(buffer: _Bytes, starts: _Ints, ends: _Ints, out: _Bytes, offsets: _Bytes) -> None: ...
