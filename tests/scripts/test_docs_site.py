"""`scripts/docs` builds a site of all pages, without a broken link and without the network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import commitlog

ROOT = Path(__file__).parents[2]
MODULES = {"config", "errors", "logging", "spark", "tracing"}

pytestmark = [
    pytest.mark.skipif(
        find_spec("mkdocs") is None or find_spec("material") is None or find_spec("mkdocstrings") is None,
        reason="MkDocs is not here: the group `docs` of pyproject.toml is not installed",
    ),
    pytest.mark.nightly,
]


def build(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "scripts.documenting", str(target)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target


def test_each_public_name_has_its_page(site: Path) -> None:
    """The page has the name's own place, which its docstring follows."""
    names = {*commitlog.__all__, *MODULES} - {"__version__"}
    assert {page.stem for page in (site / "api").glob("*.html")} - {"index"} == names
    missing = {name for name in names if f'id="commitlog.{name}"' not in (site / f"api/{name}.html").read_text()}
    assert not missing
    assert f'id="commitlog.{commitlog.Store.__name__}.open"' in (site / "api/Store.html").read_text()
    assert commitlog.__version__ in (site / "api/index.html").read_text()


def test_each_page_is_in_the_site(site: Path) -> None:
    """At the place that it has in the repository, so that links hold in both."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    wanted = {page.relative_to(ROOT).with_suffix(".html") for page in pages}
    wanted = {page.with_name("index.html") if page.stem == "README" else page for page in wanted}
    assert len(wanted) > 25
    assert not {page for page in wanted if not (site / page).is_file()}


def test_no_page_asks_the_network(site: Path) -> None:
    """No font, style, script or picture comes from elsewhere."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    foreign = re.compile(r"""<(?:link|script|img|iframe)\b[^>]*(?:src|href)=["']?(?:https?:)?//|class="mermaid""")
    assert not [str(page) for page in pages if foreign.search(page.read_text())]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("docs/sensors.md", "# ", "[gone](nowhere.md)\n\n# ", "nowhere.md"),
        ("docs/sensors.md", "# ", "[gone](spark.md#nowhere)\n\n# ", "#nowhere"),
        ("scripts/documenting.py", "::: commitlog.{name}", "::: commitlog.{name}Gone", "could not be found"),
    ],
)
def test_what_leads_nowhere_is_an_error(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    """A page, an anchor, and a name."""
    for folder in ("docs", "scripts", "commitlog", "shm", "stages"):
        ignored = shutil.ignore_patterns("target", "__pycache__", "results")
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True, ignore=ignored)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tmp_path)
    changed = tmp_path / file
    changed.write_text(changed.read_text().replace(old, new, 1))
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert said in done.stderr
