"""docs/first-hour.md: its steps run as they stand there, and its pictures are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.first_hour import PAGE, Step, draw, steps


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_page_runs(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    found = list(steps(room))
    assert [step.picture for step in found] == [f"images/first-hour-{number}.svg" for number in range(1, 6)]
    sent, python, rows, spark, killed = (step.printed for step in found)
    assert "orders 0 2  three plums" in sent
    assert "0 3 PUT_OK" in python
    assert '{"id":2,"fruit":"pear","price":0.75}' in rows
    assert re.search(r"\| +2\| +pear\| +0.75\|", spark)
    assert "$ commitlog cat data/events --topic orders --from 'last 1'\nthe last words\n" in killed
    assert "good: data/events" in killed
    assert "stopped: the store does not run" in killed


def test_a_step_is_drawn(tmp_path: Path) -> None:
    draw(Step(["echo x"], "images/x.svg", "$ echo x\nx < y\n"), tmp_path / "x.svg")
    assert "x&#160;&lt;&#160;y" in (tmp_path / "x.svg").read_text()


def test_its_pictures_are_there() -> None:
    pictures = re.findall(r"\((images/[^)]+)\)", PAGE.read_text())
    assert len(pictures) == 6
    assert all((PAGE.parent / picture).is_file() for picture in pictures)
