"""replicate: the log on other machines. What a replica costs, and how soon it has a message."""

from __future__ import annotations

from scripts.benchmarks import replicas
from scripts.benchmarks.harness import Bench


def run(bench: Bench) -> None:
    replicas.run(bench)
