"""How far each stage is, in messages.

It is read from the control region, which costs the stages nothing. Positions there are bytes. A
lane's producer also counts its messages, so each look at a lane gives a pair (wrote, messages). A
position between two pairs is turned into messages in proportion. At the end, when all positions are
the same, the count is exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from commitlog.shm.control_region import ControlRegion
from commitlog.shm.counters import Histogram
from commitlog.shm.layout import STAGES, Header, Lane, Stage
from commitlog.shm.memory_order import observe
from commitlog.shm.write_buffers import available_buffers

STEPS = ("sent", "committed", "flushed", "dispatched")
"""What happens to a message before Spark reads it; `sent` is what the dashboard calls wrote."""
_POSITIONS = (Lane.WROTE, Lane.COMMITTED, Lane.FLUSHED, Lane.DISPATCHED)


@dataclass(frozen=True)
class Reading:
    """One look at the pipeline, counted from the run's start. Bytes are those of whole records."""

    at: float
    messages: dict[str, float]
    bytes: dict[str, int]
    buffers: int
    buffers_free: int
    syncs: Histogram
    pids: dict[str, int]
    restarts: dict[str, int]
    faults: dict[str, int]


@dataclass
class _Track:
    """One lane: its positions when the run began, and the pairs between which to interpolate."""

    lane: int
    wrote_at_start: int
    messages_at_start: int
    pairs: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, wrote: int, messages: int) -> None:
        """Adds a pair.

        It replaces an older one at the same position, whose count may have been seen too early.
        """
        if self.pairs and self.pairs[-1][0] == wrote:
            self.pairs.pop()
        self.pairs.append((wrote, messages))

    def messages_at(self, position: int) -> float:
        """Messages of this run that end at or below a position."""
        below = self.pairs[0]  # is never above the position: see forget_below
        for pair in self.pairs:
            if pair[0] >= position:
                span = pair[0] - below[0]
                share = (position - below[0]) / span if span else 1.0
                return max(below[1] + (pair[1] - below[1]) * share - self.messages_at_start, 0.0)
            below = pair
        return float(below[1] - self.messages_at_start)

    def forget_below(self, position: int) -> None:
        """Drops the pairs that are not needed for any later position."""
        while len(self.pairs) > 1 and self.pairs[1][0] <= position:
            self.pairs.popleft()


class Meter:
    """Follows the lanes of this run's producers."""

    def __init__(self, control: ControlRegion) -> None:
        self.control = control
        self._tracks: dict[int, _Track] = {}
        self._flusher_row = control.stage_row("flusher")
        self._syncs_at_start = Histogram.load(self._flusher_row, Stage.HISTOGRAM)
        self._restarts_at_start = {name: self._stage_word(name, Stage.RESTARTS) for name in STAGES}

    def follow(self, lane: int) -> None:
        """Counts what is written to a lane from now on.

        The lane's producer holds it and has not sent anything yet.
        """
        row = self.control.row(lane)
        wrote, messages = observe(row, Lane.WROTE), row[Lane.MESSAGES]
        track = _Track(lane, wrote, messages)
        track.add(wrote, messages)
        self._tracks[lane] = track

    def _stage_word(self, stage: str, index: int) -> int:
        return self.control.stage_row(stage)[index]

    def read(self, at: float) -> Reading:
        """Reads the positions of all lanes, and what the stages say of themselves.

        The last stage is loaded first, so that no stage seems to be ahead of the one before it.
        """
        messages = dict.fromkeys(STEPS, 0.0)
        amounts = dict.fromkeys(STEPS, 0)
        faults: dict[str, int] = {}
        buffers = free = 0
        for track in self._tracks.values():
            row = self.control.row(track.lane)
            positions = [observe(row, index) for index in reversed(_POSITIONS)][::-1]
            track.add(positions[0], row[Lane.MESSAGES])
            for step, position in zip(STEPS, positions, strict=True):
                messages[step] += track.messages_at(position)
                amounts[step] += max(position - track.wrote_at_start, 0)
            track.forget_below(positions[-1])
            if slots := row[Lane.SLOTS]:
                buffers += slots
                free += available_buffers(positions[0], positions[2], row[Lane.SEGMENT_SIZE], slots)
            for name in ("COMMITTER", "FLUSHER", "DISPATCHER", "ALLOCATOR"):
                if fault := row[getattr(Lane, f"{name}_FAULT")]:
                    faults[f"{name.lower()} of lane {track.lane}"] = fault
        pids = {name: self._stage_word(name, Stage.PID) for name in STAGES}
        return Reading(
            at,
            messages,
            amounts,
            buffers,
            max(free, 0),
            Histogram.load(self._flusher_row, Stage.HISTOGRAM) - self._syncs_at_start,
            pids | {"supervisor": self.control.words[Header.SUPERVISOR_PID]},
            {name: self._stage_word(name, Stage.RESTARTS) - self._restarts_at_start[name] for name in STAGES},
            faults,
        )


class Series:
    """Cumulative counts over time: at most about two thousand points, thinned out in a long run."""

    POINTS_MAX = 2_000

    def __init__(self, names: tuple[str, ...], interval: float = 0.2) -> None:
        self.names = names
        self.interval = interval
        self.points: list[tuple[float, ...]] = []

    def add(self, at: float, *values: float) -> None:
        """Keeps a point, unless the one before it is too near."""
        if self.points and at - self.points[-1][0] < self.interval * 0.9:
            return
        self.points.append((at, *values))
        if len(self.points) > self.POINTS_MAX:
            self.points = self.points[::2]
            self.interval *= 2

    def column(self, name: str) -> list[float]:
        index = self.names.index(name) + 1
        return [point[index] for point in self.points]

    @property
    def seconds(self) -> list[float]:
        return [point[0] for point in self.points]
