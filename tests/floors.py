"""The floors of the house, and what is in each room: the table of ARCHITECTURE.md.

An import goes to the same room or to a lower floor, never sideways or up. A room is a folder, or a
module of its own. `python -m tests.floors` prints the table, and tests/test_layers.py compares.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent

FLOORS: tuple[dict[str, str], ...] = (
    {
        "shm": "shared memory: words, regions, write buffers, counters; needs numpy only",
    },
    {
        "status": "the outcomes of an append, of a message, and of the stop of a store",
    },
    {
        "receipt": "what `send` returns, and the levels that it waits for",
    },
    {
        "errors": "every error by name, and the errno that a stage says it with",
    },
    {
        "config": "every knob, its default and what is allowed",
        "native": "the native core: a crate in Rust, and the one place that decides whether it runs",
        "system": "what a process has of its own: the one clock, threads, forks, its title, a terminal's keys",
        "text": "what people read and write: lines, quantities, tables of a notebook, files that may be compressed",
    },
    {
        "config_file": "a configuration in TOML",
    },
    {
        "record": "the bytes of a record: one at a time, or many by columns",
    },
    {
        "disk": "the one door to the disk, locks, and RocketMQ's files",
        "message": "a message as users see it",
    },
    {
        "reading": "from files and positions to messages: limits, indexes, walks and scans, readers with a name",
        "schemas": "a topic's schema and its versions; rows of users as Arrow record batches",
    },
    {
        "columns": "slices of a log as Arrow columns; the rows of typed topics",
    },
    {
        "appending": "what a producer does below `send`: its lane, its place in the buffers, waits, wakeups",
        "opening": "how a store comes back at a start: with its pool (adoption), or from its files (recovery)",
        "inspecting": "looks and changes nothing: verify, dump, logs, profiles",
    },
    {
        "planning": "what a read takes: options become offsets, and those tasks; of a directory or of a served store",
    },
    {
        "remote": "the client's side of a served store: what is asked, connections, errors on their way",
    },
    {
        "client": "what users' programs hold: `Store`, `Producer`, `Reader`, `read`, `read_arrow`, statistics",
        "tracing": "traces of OpenTelemetry that go on from a producer to the readers",
        "backups": "a second directory that is brought up to date and can take a store's place",
    },
    {
        "logging": "a handler that sends what a program logs to a store",
        "watching": "a snapshot of a store, for all the tools that show one; its health, its metrics",
    },
    {
        "spark.launching": "a session that finds Java and Python, starts quickly, and has its JVM read",
    },
    {
        "spark": "the format for Spark: source, sink, tasks",
        "ui": "the page of `commitlog ui`: its server, what it asks, its files",
        "serving": "the server of `commitlog serve`: its processes, tokens, and answers over Arrow Flight",
        "forwarding": "feeds a Kafka cluster, each message exactly once: transactions, positions, topics",
        "replicas": "copies of a store on other machines: what both sides say, the copy, promoting, rejoining",
    },
    {
        "ingest": "the main job of `scripts/run`: samplers, query, dashboard, report, verdict",
    },
    {
        "__init__": "the names for users, each loaded when it is first asked for",
    },
    {
        "demo": "`commitlog demo`: producers, two live tables, kills, and the notebook that shows the same",
        "doctor": "what `commitlog doctor` checks",
    },
    {
        "cli": "the command line, one module a command",
    },
    {
        "__main__": "its door for `python -m commitlog`",
        "stages.allocating": "what the allocator does besides: retention, what readers and replicas need, the pool",
        "stages.replicating": "what the HAService does for each peer: what may be sent, connections, who is in sync",
        "stages.supervising": "the parts of the supervisor: locks, opening, watching, stopping, logs",
    },
    {
        "stages": "the processes: committer, flusher, allocator, dispatcher, HAService, supervisor; one stage alone",
    },
)
"""From the ground up: room → what is in it. A room is named as below `commitlog`."""


TESTED_IN = {
    "client": "commitlog",
    "system": "commitlog",
    "text": "commitlog",
    "remote": "serving",
    "doctor": "cli",
    "spark.launching": "spark",
    "stages.allocating": "stages",
    "stages.replicating": "replicating",
    "stages.supervising": "stages",
}
"""Rooms whose tests are in another folder. `commitlog` also has those of modules of their own."""


def place(room: str) -> str:
    """Where a room is in the repository."""
    path = room.replace(".", "/")
    if not (ROOT / "commitlog" / path).is_dir():
        return f"commitlog/{path}.py"
    return f"{path}/" if path.split("/")[0] in ("shm", "stages") else f"commitlog/{path}/"


def table() -> str:
    """The table of ARCHITECTURE.md, the top floor first."""
    lines = ["| floor | room | what is in it |", "| --- | --- | --- |"]
    for number, rooms in reversed([*enumerate(FLOORS)]):
        lines += [f"| {number} | `{place(room)}` | {what} |" for room, what in rooms.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
