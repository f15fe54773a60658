"""Builds the site of the docs with MkDocs.

The pages are those of the repository as they are, at the same places, so that links among them hold
here as on a code host. Beside them each public name has a page, which is made from its docstrings.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import commitlog

ROOT = Path(__file__).parent.parent
INDEX = "docs/README.md"
"""It links the pages of docs/, in the order of the site."""
MODULES = ("config", "errors", "logging", "spark", "tracing")
"""Public modules, as `commitlog` names them."""
_LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")


def public_names() -> list[str]:
    """What users import, without the version."""
    return sorted({*commitlog.__all__, *MODULES} - {"__version__"}, key=str.lower)


def linked(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links."""
    for link in _LINK.findall(page.read_text()):
        if "://" not in link and (target := (page.parent / link).resolve()).is_file():
            yield target


def copy_pages(directory: Path) -> None:
    """Copies README, its sisters and docs/, and the pictures and files that they link."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for file in {*pages, *(target for page in pages for target in linked(page))}:
        target = directory / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def write_names(directory: Path) -> None:
    """A page for each public name, and one that lists them."""
    directory.mkdir()
    lines = ["# Public names\n", f"Version {commitlog.__version__} (`commitlog.__version__`).\n"]
    for name in public_names():
        options = "    options:\n      inherited_members: false\n" if name in MODULES else ""
        (directory / f"{name}.md").write_text(f"# {name}\n\n::: commitlog.{name}\n{options}")
        lines.append(f"- [`commitlog.{name}`]({name}.md)")
    (directory / "README.md").write_text("\n".join(lines) + "\n")


def navigation() -> list[object]:
    """The order of the pages: of docs/ as its index has them."""
    inside = [f"docs/{page}" for page in _LINK.findall((ROOT / INDEX).read_text()) if page.endswith(".md")]
    how_tos = [page for page in inside if "/internals/" not in page and ".." not in page]
    internals = [page for page in inside if "/internals/" in page]
    return [
        "README.md",
        {"How-to pages": [INDEX, *dict.fromkeys(how_tos)]},
        {"Public names": ["api/README.md", *(f"api/{name}.md" for name in public_names())]},
        {"Inside": ["ARCHITECTURE.md", *dict.fromkeys(internals)]},
        {"Project": ["CONTRIBUTING.md", "BENCHMARKS.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]},
    ]


def build(target: Path) -> int:
    """Builds the site, and returns MkDocs' exit code: not 0 for a broken link or a missing name."""
    with tempfile.TemporaryDirectory() as temporary:
        pages = Path(temporary) / "pages"
        copy_pages(pages)
        write_names(pages / "api")
        own = {
            "INHERIT": str(ROOT / "scripts/mkdocs.yml"),
            "docs_dir": str(pages),
            "site_dir": str(target.absolute()),
            "nav": navigation(),
        }
        config = Path(temporary) / "mkdocs.yml"
        config.write_text(json.dumps(own))  # JSON is YAML
        command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
