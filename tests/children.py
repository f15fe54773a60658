"""Forked children of a test: what they do, or become, ends with them."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_child(action: Callable[[], object]) -> str:
    """What the action returns as text, or the error it raises, with its class, in a forked child."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.close(reading)
            said = str(action())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    said = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode()
    os.close(reading)
    os.waitpid(child, 0)
    return said
