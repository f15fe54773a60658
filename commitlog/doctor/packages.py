"""Checks of the packages that ours needs: those of the core, and those of each extra."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from commitlog.doctor.finding import Code, Finding, Surroundings, good, note, problem
from commitlog.errors import how_to_install

DISTRIBUTION = "pyspark-commitlog"
_REQUIREMENT = re.compile(r"""([\w.-]+)\s*([^;]*?)\s*(?:;.*extra\s*==\s*['"](\w+)['"].*)?""")
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")


def packages(_here: Surroundings) -> Iterator[Finding]:
    """Which packages are installed, and whether their versions will do."""
    try:
        lines = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        yield note(
            Code.PACKAGES,
            f"{DISTRIBUTION} is not installed, and its modules were found nevertheless: nothing tells what it needs",
            "`pip install .` in the checkout",
        )
        return
    wanted: dict[str, dict[str, str]] = defaultdict(dict)
    for line in lines:
        if found := _REQUIREMENT.fullmatch(line):
            wanted[found[3] or ""][found[1]] = found[2]
    yield from _core(wanted.pop("", {}))
    absent = []
    for extra in sorted(wanted):
        missing, unfit, there = _sorted(wanted[extra])
        if unfit or (there and _is_asked_for(extra, wanted)):
            yield from _extra(extra, wanted[extra], missing, unfit, there)
        else:
            absent.append(extra)
    if absent:
        yield good(Code.EXTRA, f"not installed, and not needed by the core: the extras {', '.join(absent)}")


def _is_asked_for(extra: str, wanted: dict[str, dict[str, str]]) -> bool:
    """Whether something is installed that this extra has and no other one.

    pip does not note which extras were named, and what two of them need tells nothing.
    """
    others = {name for other, names in wanted.items() if other != extra for name in names}
    own = {name: bounds for name, bounds in wanted[extra].items() if name not in others}
    return not _sorted(wanted[extra])[0] or bool(_sorted(own)[2])


def _core(wanted: dict[str, str]) -> Iterator[Finding]:
    missing, unfit, there = _sorted(wanted)
    bad = [name + wanted[name] for name in (*missing, *unfit)]
    if bad:
        text = f"the core needs {', '.join(bad)}; there is {', '.join(unfit.values()) or 'none of them'}"
        yield problem(Code.PACKAGES, text, f"`pip install {_quoted(bad)}`")
    else:
        yield good(Code.PACKAGES, f"the core has {', '.join(there.values())}")


def _extra(
    extra: str, wanted: dict[str, str], missing: list[str], unfit: dict[str, str], there: dict[str, str]
) -> Iterator[Finding]:
    if unfit:
        needed = [name + wanted[name] for name in unfit]
        text = f"the extra {extra} needs {', '.join(needed)}; there is {', '.join(unfit.values())}"
        yield problem(Code.EXTRA, text, how_to_install(extra, _quoted(needed)))
    if missing:
        text = f"the extra {extra} is not complete: {', '.join(missing)} not installed"
        yield note(Code.EXTRA, text, f"where you need it: {how_to_install(extra, _quoted(missing))}")
    if not unfit and not missing:
        yield good(Code.EXTRA, f"the extra {extra} has {', '.join(there.values())}")


def _sorted(wanted: dict[str, str]) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Names that are missing, and those whose version is unfit or fit, each with its version."""
    missing: list[str] = []
    unfit: dict[str, str] = {}
    fit: dict[str, str] = {}
    for name in sorted(wanted):
        try:
            found = version(name)
        except PackageNotFoundError:
            missing.append(name)
            continue
        (fit if is_in_range(found, wanted[name]) else unfit)[name] = f"{name} {found}"
    return missing, unfit, fit


def is_in_range(found: str, bounds: str) -> bool:
    """Whether a version keeps bounds such as `<5,>=4.2`.

    Bounds with other signs count as kept.
    """
    number = _number(found)
    return all(number >= _number(at) if sign == ">=" else number < _number(at) for sign, at in _BOUND.findall(bounds))


def _number(text: str) -> tuple[int, ...]:
    """The release of a version as numbers, without zeros at its end: 5.0 is 5."""
    leading = re.match(r"\d+(\.\d+)*", text)
    numbers = list(map(int, leading[0].split("."))) if leading else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _quoted(names: list[str]) -> str:
    """The names for a shell, to which < and > mean something."""
    return " ".join(f"'{name}'" if set("<>") & set(name) else name for name in names)
