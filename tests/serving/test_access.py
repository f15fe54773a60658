"""The file of tokens: what is in it, who may write it, and what a token is for."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from commitlog.cli.app import app
from commitlog.errors import AccessDenied, CommitLogError, IllegalArgument, ServingRefused
from commitlog.serving.access import Access, Tokens, add_token, remove_token


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def test_only_the_hash_of_a_token_is_kept(file: Path) -> None:
    token = add_token(file, Access("billing", ("orders*",)))
    assert token.startswith("clog_")
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Tokens(file).find(token) == Access("billing", ("orders*",), read=True, write=False)
    assert Tokens(file).find(token[:-1]) is None
    assert Tokens(file).find("") is None


def test_a_change_is_seen_at_once(file: Path) -> None:
    first = add_token(file, Access("first"))
    tokens = Tokens(file)
    second = add_token(file, Access("second"))
    assert tokens.find(second) == Access("second")
    remove_token(file, "first")
    assert tokens.find(first) is None
    assert [token.access.name for token in tokens.all()] == ["second"]


def test_a_name_is_taken_once(file: Path) -> None:
    add_token(file, Access("billing"))
    with pytest.raises(ServingRefused, match="there is a token billing; remove it first"):
        add_token(file, Access("billing"))
    with pytest.raises(ServingRefused, match="there is no token other; those there are: billing"):
        remove_token(file, "other")


def test_changes_at_the_same_time(file: Path) -> None:
    """None of them undoes another one, and no file of the lock is left."""
    names = [f"n{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as threads:
        made = list(threads.map(lambda name: add_token(file, Access(name)), names))
    tokens = Tokens(file)
    assert [tokens.find(token) for token in made] == [Access(name) for name in names]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: remove_token(file, name), names))
    assert tokens.all() == []
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\nb", "a/b", "ä", "x" * 101])
def test_what_is_no_name(name: str, file: Path) -> None:
    with pytest.raises(IllegalArgument, match="a name has letters, digits"):
        add_token(file, Access(name))
    assert not file.exists()


@pytest.mark.parametrize("access", [Access("billing", topics=()), Access("billing", read=False)])
def test_a_token_for_nothing(access: Access, file: Path) -> None:
    with pytest.raises(IllegalArgument, match="token billing: it would be for nothing; give it topics"):
        add_token(file, access)
    assert not file.exists()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write(mode: int, file: Path) -> None:
    add_token(file, Access("billing"))
    file.chmod(mode)
    with pytest.raises(ServingRefused, match="others may write it; chmod 600 it"):
        Tokens(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not JSON",
        b"[]",
        b"{}",
        b'{"format": 2, "tokens": []}',
        b'{"format": 1, "tokens": [{}]}',
        b'{"format": 1, "tokens": [{"name": "x", "sha256": 1, "topics": [], "read": true, "write": true}]}',
        b'{"format": 1, "tokens": [{"name": "x", "sha256": "", "topics": [], "read": "yes", "write": true}]}',
    ],
)
def test_a_file_that_is_none_of_tokens(content: bytes, file: Path) -> None:
    """A server refuses to start with it, and one that runs lets nobody in."""
    token = add_token(file, Access("billing"))
    tokens = Tokens(file)
    file.write_bytes(content)
    for use in (lambda: Tokens(file), lambda: tokens.find(token)):
        with pytest.raises(ServingRefused, match="not a file of tokens"):
            use()


def test_a_file_that_is_gone_or_no_file(file: Path) -> None:
    with pytest.raises(ServingRefused, match=r"tokens\.json: No such file or directory"):
        Tokens(file)
    file.mkdir()
    with pytest.raises(ServingRefused, match=r"tokens\.json: "):
        Tokens(file)
    os.rmdir(file)
    file.symlink_to(file.parent / "elsewhere.json")
    with pytest.raises(ServingRefused, match=r"tokens\.json: "):
        Tokens(file)


def test_a_file_that_kubernetes_mounts(file: Path) -> None:
    """A secret's file is a link by way of `..data`, which each change replaces by another link."""
    for name in ("first", "second"):
        (file.parent / name).mkdir()
        add_token(file.parent / name / file.name, Access(name))
    data = file.parent / "..data"
    data.symlink_to("first")
    file.symlink_to("..data/tokens.json")
    tokens = Tokens(file)
    assert [token.access.name for token in tokens.all()] == ["first"]
    (file.parent / "next").symlink_to("second")
    (file.parent / "next").rename(data)
    assert [token.access.name for token in tokens.all()] == ["second"]


def test_a_change_by_a_link_goes_to_its_file(file: Path) -> None:
    """The link stays, and the file that it points to has the new token."""
    target = file.with_name("target.json")
    file.symlink_to(target.name)
    token = add_token(file, Access("billing"))
    add_token(file, Access("other"))
    remove_token(file, "other")
    assert file.is_symlink()
    assert Tokens(target).find(token) == Access("billing")


def test_what_a_token_is_for() -> None:
    access = Access("billing", ("orders*", "refunds"), read=True, write=False)
    access.check_reads(["orders", "orders-eu", "refunds"])
    for topic in ("refunds2", "Orders", ""):
        with pytest.raises(AccessDenied, match="the token billing is not for topic"):
            access.check_reads([topic])
    with pytest.raises(AccessDenied, match="is not one to write with"):
        access.check_writes(["orders"])
    with pytest.raises(AccessDenied, match="is not one to read with"):
        Access("writer", read=False, write=True).check_reads()


# ---- the command --------------------------------------------------------------------------------


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["token", *map(str, words)])
    if isinstance(done.exception, CommitLogError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_adds_lists_and_removes(file: Path) -> None:
    token = run("add", file, "billing", "--topics", "orders*, refunds").strip()
    run("add", file, "sensors", "--write", "--no-read")
    assert run("list", file).splitlines() == [
        "billing: read, topics orders*, refunds",
        "sensors: write, topics *",
    ]
    access = Tokens(file).find(token)
    assert access == Access("billing", ("orders*", "refunds"))
    listed = orjson.loads(run("list", file, "--json"))["tokens"]
    assert [(one["name"], one["read"], one["write"]) for one in listed] == [
        ("billing", True, False),
        ("sensors", False, True),
    ]
    run("remove", file, "billing")
    assert run("list", file) == "sensors: write, topics *\n"


def test_the_command_without_a_name_and_with_one_too_many(file: Path) -> None:
    with pytest.raises(IllegalArgument, match="add needs a NAME"):
        run("add", file)
    with pytest.raises(IllegalArgument, match="list takes no NAME"):
        run("list", file, "billing")
