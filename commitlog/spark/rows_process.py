"""Gives rows to a function, in a process of a task of Spark (spark/java/RowsProcess.java).

Standard input has a size, so many bytes, and a stream of Arrow batches. The bytes are a line of
JSON, which says where modules are looked for, and the function as Spark packs it. Each batch gets
an answer, a line of JSON on standard output: {} or the error. A batch without rows asks for the
function's `flush`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, BinaryIO

import pyarrow as pa

from commitlog.disk.descriptors import occupy_standard_descriptors, point_nowhere
from commitlog.errors import CommitLogError
from commitlog.system.process_title import set_process_title

_SIZE_BYTES = 4


def main() -> None:
    """Answers batches until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the query ends it
    set_process_title("rows_process")  # of a query, and of no store
    with os.fdopen(os.dup(0), "rb") as source, os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.close(0)  # the function's own input and output are others
        occupy_standard_descriptors()
        os.dup2(2, 1)
        _keep_from_children(source.fileno(), answers.fileno())
        packed = source.read(int.from_bytes(source.read(_SIZE_BYTES), "big"))
        if packed:
            _answer(packed, source, answers)


def _keep_from_children(*pipes: int) -> None:
    """Gives each forked child of the function /dev/null in place of these pipes.

    A child would keep them open when this process has ended: Spark's JVM would wait for an answer
    for ever. And one that returns from the function would take rows, and answer, as this process
    does.
    """
    os.register_at_fork(after_in_child=lambda: point_nowhere(*pipes))


def _answer(packed: bytes, source: BinaryIO, answers: Any) -> None:
    function: Any = None
    try:
        function = _unpacked(packed)
        for batch in pa.ipc.open_stream(source):
            if batch.num_rows:
                _check_run(function(batch))
            else:
                _call(function, "flush")
            answers.write(b"{}\n")
    except CommitLogError as error:
        answers.write(_line(type(error).__name__, str(error)))
    except (Exception, SystemExit) as error:
        answers.write(_line("FunctionFailed", f"the Python function that rows are handed to: {_told(error)}"))
    finally:
        _call(function, "close")


def _unpacked(packed: bytes) -> Any:
    """The function. Its modules may be where the driver finds them."""
    from pyspark.serializers import CPickleSerializer

    paths, function = packed.split(b"\n", 1)
    sys.path += [path for path in json.loads(paths) if path not in sys.path]
    serializer: Any = CPickleSerializer()
    return serializer.loads(function)


def _check_run(returned: object) -> None:
    """Raises TypeError if the function has only begun: its rows would count as handed over."""
    if isinstance(returned, CoroutineType | GeneratorType | AsyncGeneratorType):
        kind = type(returned).__name__
        if isinstance(returned, CoroutineType):
            returned.close()  # Python would warn of it, too
        raise TypeError(f"it returned a {kind}, which nobody runs: it must be no async function, and have no yield")


def _call(function: Any, name: str) -> None:
    method = getattr(function, name, None)
    if method is not None:
        method()


def _told(error: BaseException) -> str:
    """An error with the lines where it was raised, those of the function alone."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    words = "".join(traceback.format_exception_only(error)).strip()
    return f"{words}\n{''.join(traceback.format_list(own))}".rstrip()


def _line(name: str, words: str) -> bytes:
    return json.dumps({"error": name, "words": words}).encode() + b"\n"


if __name__ == "__main__":
    main()
