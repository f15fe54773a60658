"""The demo as a notebook of Jupyter: its cells use what the package gives to everybody."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from commitlog.demo import producing
from commitlog.demo.scene import SCHEMA
from commitlog.errors import StoreRefused
from commitlog.text.lines import to_json

PAGE = Path(__file__).with_name("notebook.md")
_CODE = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)


def notebook() -> dict[str, Any]:
    """The notebook as Jupyter stores it (nbformat 4.5): the page's texts and its code, as cells."""
    program = Path(producing.__file__).read_text().strip().replace('"""', "'''")  # it stands within """ there
    page = PAGE.read_text().replace("$SCHEMA", SCHEMA).replace("$PRODUCER", program)
    cells: list[dict[str, Any]] = []
    for number, source in enumerate(_CODE.split(page)):
        is_code = number % 2 == 1
        if text := source.strip():
            code: dict[str, Any] = {"execution_count": None, "outputs": []} if is_code else {}
            kind = "code" if is_code else "markdown"
            cells.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text, **code})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def write(file: Path) -> None:
    """Writes the notebook to a new file: all of it or none.

    Raises StoreRefused if there is one already, or it can't be written.
    """
    data = to_json(notebook(), indent=2)
    try:
        with contextlib.ExitStack() as halves:
            with file.open("xb") as made:
                halves.callback(file.unlink)
                made.write(data)
            halves.pop_all()
    except FileExistsError:
        raise StoreRefused(f"{file} is there already: name another one, or remove it") from None
    except OSError as error:
        raise StoreRefused(f"{file}: {error.strerror}; give a file in a directory of yours that has room") from error
