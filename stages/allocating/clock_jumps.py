"""Whether the wall clock has jumped since the store was started: then no age can be believed."""

from __future__ import annotations

from commitlog.shm.control_region import ControlRegion
from commitlog.shm.layout import Header
from commitlog.system.clock import Clock

TOLERANCE_MS = 1_000


class ClockJumps:
    """Compares wall time with the time since boot, which never jumps.

    The first allocator of a start notes both in shared memory. Later allocators of this start use
    its note.
    """

    def __init__(self, control: ControlRegion, clock: Clock) -> None:
        self._words = words = control.words
        self._clock = clock
        if words[Header.CLOCK_GENERATION] != control.generation:
            words[Header.CLOCK_WALL_MS] = clock.wall_ms()
            words[Header.CLOCK_BOOT_MS] = clock.boot_ns() // 1_000_000
            words[Header.CLOCK_GENERATION] = control.generation

    def drift_ms(self) -> int:
        """How far wall time has jumped since the store's start; positive: forwards."""
        wall = self._clock.wall_ms() - self._words[Header.CLOCK_WALL_MS]
        return wall - (self._clock.boot_ns() // 1_000_000 - self._words[Header.CLOCK_BOOT_MS])
