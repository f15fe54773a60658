"""The verdict: is every message that was sent in the Parquet files exactly once?

It is counted from the files alone. For each message of a producer, one byte counts how often its
sequence number was met. The files are read in batches of rows, so that memory does not grow with
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

EXACTLY_ONCE = "exactly once"
BATCH_ROWS = 1 << 17
_NAMED_MAX = 3
_SLACK = 1 << 20
"""How far above a producer's last note a sequence number may be and is still believed.

The producer may have died before its next note.
"""


@dataclass
class ProducerCount:
    """What was found of one producer.

    `sent` is what it had noted; `ended` says whether this is its final number.
    """

    producer: int
    sent: int
    ended: bool = True
    counts: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    beyond: int = 0

    def add(self, sequences: npt.NDArray[np.int64]) -> None:
        """Counts sequence numbers of one batch of rows."""
        limit = self.sent + (0 if self.ended else _SLACK)
        known = sequences[(sequences >= 0) & (sequences < limit)]
        self.beyond += len(sequences) - len(known)
        if not len(known):
            return
        low, high = int(known.min()), int(known.max()) + 1
        if high > len(self.counts):
            grown = np.zeros(min(max(high, 2 * len(self.counts), self.sent), limit), np.uint8)
            grown[: len(self.counts)] = self.counts
            self.counts = grown
        found = np.bincount(known - low, minlength=high - low) + self.counts[low:high]
        self.counts[low:high] = np.minimum(found, 255)

    @property
    def missing(self) -> int:
        """Messages that were sent and are not in the files."""
        return self.sent - int(np.count_nonzero(self.counts[: self.sent]))

    @property
    def doubled(self) -> int:
        """Messages that are in the files more than once."""
        return int(np.count_nonzero(self.counts > 1))

    @property
    def unnoted(self) -> int:
        """Messages that a producer sent, but died before it could note them.

        They are in the files, and no `sent` counts them.
        """
        return int(np.count_nonzero(self.counts[self.sent :]))

    def examples(self, what: str) -> list[int]:
        """The first sequence numbers that are missing or doubled."""
        if what == "doubled":
            return [int(number) for number in np.flatnonzero(self.counts > 1)[:_NAMED_MAX]]
        there = np.zeros(self.sent, bool)
        there[: min(len(self.counts), self.sent)] = self.counts[: self.sent] > 0
        return [int(number) for number in np.flatnonzero(~there)[:_NAMED_MAX]]


@dataclass(frozen=True)
class Verdict:
    """How a run ended: `text` is "exactly once" or names what is wrong."""

    text: str
    rows: int
    producers: tuple[ProducerCount, ...]

    @property
    def exactly_once(self) -> bool:
        return self.text == EXACTLY_ONCE

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"producer": c.producer, "sent": c.sent, "missing": c.missing, "doubled": c.doubled, "unnoted": c.unnoted}
            for c in self.producers
        ]


def judge(out: Path, run: str, sent: Mapping[int, int], ended: Mapping[int, bool] | None = None) -> Verdict:
    """Reads `out/batch=*/` and compares it with what each producer had noted.

    `ended` says for each producer whether its number is final. One that was killed may have sent
    more.
    """
    counts = {number: ProducerCount(number, amount, (ended or {}).get(number, True)) for number, amount in sent.items()}
    rows = foreign = 0
    wrong: list[str] = []
    for path in parquet_files(out):
        try:
            for runs, producers, sequences in _batches(path):
                rows += len(sequences)
                ours = runs == run
                foreign += int(np.count_nonzero(~ours))
                for number in np.unique(producers[ours]).tolist():
                    chosen = sequences[ours & (producers == number)]
                    if number in counts:
                        counts[number].add(chosen)
                    else:
                        foreign += len(chosen)
        except (OSError, ValueError) as error:
            wrong.append(f"{path} can't be read: {error}")
    for count in counts.values():
        wrong += _faults(count)
    if foreign:
        wrong.append(f"{foreign} rows are not of this run")
    return Verdict("; ".join(wrong) or EXACTLY_ONCE, rows, tuple(counts.values()))


def _faults(count: ProducerCount) -> list[str]:
    wrong = []
    for what, amount in (("missing", count.missing), ("doubled", count.doubled)):
        if amount:
            named = ", ".join(map(str, count.examples(what))) + (", …" if amount > _NAMED_MAX else "")
            wrong.append(f"producer {count.producer}: {amount} of {count.sent} messages {what} (sequence {named})")
    if count.beyond:
        wrong.append(f"producer {count.producer}: {count.beyond} rows with a sequence number that was never sent")
    return wrong


def parquet_files(out: Path) -> list[Path]:
    """The data files of all batches."""
    return [path for directory in sorted(out.glob("batch=*")) for path in parquet_files_of(directory)]


def parquet_files_of(batch: Path) -> list[Path]:
    """The data files of one batch, without the files that Spark marks as its own (`_`, `.`)."""
    return sorted(path for path in batch.glob("*.parquet") if path.name[0] not in "._")


def _batches(path: Path) -> Iterator[tuple[Any, Any, npt.NDArray[np.int64]]]:
    """(run, producer, sequence) of the rows of one file, some rows at a time.

    A null run becomes no run, another null −1.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["run", "producer", "sequence"]):
            run, producer, sequence = batch.columns
            encoded = run.dictionary_encode()
            runs = np.array([*encoded.dictionary.to_pylist(), ""], dtype=str)
            indices = encoded.indices.fill_null(len(runs) - 1)
            yield (
                runs[indices.to_numpy(zero_copy_only=False)],
                producer.fill_null(-1).to_numpy(zero_copy_only=False),
                sequence.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64),
            )
