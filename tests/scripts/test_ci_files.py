"""The files of CI for the usual forges are well formed, and call scripts that are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FILES = [*WORKFLOWS, ROOT / ".gitlab-ci.yml"]
STYLE = """\
extends: default
rules:
  comments: {min-spaces-from-content: 1}
  document-start: disable
  line-length: {max: 120}
  truthy: {check-keys: false}
"""


def look(tool: str, *words: str | Path) -> tuple[int, str]:
    """The exit code of a tool of this environment, and what it says."""
    command = [Path(sys.executable).with_name(tool), *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def test_actions_are_pinned_and_nobody_can_put_commands_into_a_job(tmp_path: Path) -> None:
    """As zizmor sees it; and it sees an action without a commit's number."""
    code, said = look("zizmor", "--offline", "--no-progress", *WORKFLOWS)
    assert code == 0, said
    loose = tmp_path / ".github" / "workflows" / "loose.yml"
    loose.parent.mkdir(parents=True)
    loose.write_text(re.sub(r"@[0-9a-f]{40}", "@v7", WORKFLOWS[0].read_text()))
    code, said = look("zizmor", "--offline", "--no-progress", loose)
    assert code != 0
    assert "unpinned-uses" in said


@pytest.mark.parametrize(
    ("schema", "files"), [("vendor.github-workflows", WORKFLOWS), ("vendor.gitlab-ci", [ROOT / ".gitlab-ci.yml"])]
)
def test_each_forge_understands_its_file(schema: str, files: list[Path]) -> None:
    code, said = look("check-jsonschema", "--builtin-schema", schema, *files)
    assert code == 0, said


def test_yaml_has_no_doubled_key_and_one_style() -> None:
    code, said = look("yamllint", "--strict", "-d", STYLE, *FILES)
    assert code == 0, said


def test_each_forge_runs_the_same_scripts() -> None:
    """They are scripts of the checkout, with the same options. Only GitHub has an ARM machine."""
    github, gitlab = (
        set(re.findall(r"\b(scripts/[\w-]+)((?: --\w+(?: \d+)?)*)", "".join(file.read_text() for file in files)))
        for files in (WORKFLOWS, [ROOT / ".gitlab-ci.yml"])
    )
    assert github - gitlab == {("scripts/test-arm", "")}
    assert gitlab <= github
    assert {script for script, _ in github} >= {"scripts/test", "scripts/matrix", "scripts/wheels"}
    assert all(os.access(ROOT / script, os.X_OK) for script, _ in github)


@pytest.mark.parametrize(
    ("github", "gitlab"),
    [
        ("ISSUE_TEMPLATE/bug.md", "issue_templates/bug.md"),
        ("ISSUE_TEMPLATE/wish.md", "issue_templates/wish.md"),
        ("PULL_REQUEST_TEMPLATE.md", "merge_request_templates/Default.md"),
    ],
)
def test_each_forge_asks_the_same(github: str, gitlab: str) -> None:
    """GitHub's, which Forgejo and Gitea take too, has a heading for the list of templates."""
    asked = (ROOT / ".github" / github).read_text()
    assert re.sub(r"\A---\n.*?\n---\n\n", "", asked, flags=re.DOTALL) == (ROOT / ".gitlab" / gitlab).read_text()
