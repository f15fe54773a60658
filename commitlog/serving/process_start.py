"""The first module of a server's process: it sets variables for its libraries, then loads them.

Python from 3.13 on has PyArrow's allocator, mimalloc, in itself. If the variables were there when
Python starts, it would reserve that memory a second time.
"""

from __future__ import annotations

import logging
import os
import sys

import orjson


def main() -> None:
    """The variables are the first line of its standard input, as JSON."""
    os.environ.update(orjson.loads(sys.stdin.readline()))
    from commitlog.serving.process import main as serve

    serve()
    logging.shutdown()
    os._exit(0)  # a call that waits for its client would keep the interpreter from ending


if __name__ == "__main__":
    main()
