"""Which lanes a stage works on: those whose words in shared memory can be true.

Any process that has the pool mapped can write anything into a lane's words. Such a lane is set
aside until the next start, which recovers it from its files. All other lanes go on.
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from commitlog.shm.control_region import ControlRegion
from commitlog.shm.row_check import WORDS_DAMAGED, check_row, is_sound

log = logging.getLogger(__name__)


class SoundLanes:
    """The lanes that a stage has not set aside.

    A lane that was set aside has the fault WORDS_DAMAGED in its `fault_word`, also for a stage that
    is started again. `mask` has a value for each lane: False for those that were set aside.
    """

    def __init__(
        self, control: ControlRegion, lanes: npt.NDArray[np.uint64], fault_word: int, segment_bytes: int
    ) -> None:
        self._control, self._fault_word, self._segment_bytes = control, fault_word, segment_bytes
        self.mask: npt.NDArray[np.bool_] = lanes[:, fault_word] != WORDS_DAMAGED

    def has(self, lane: int) -> bool:
        """Whether the words of a lane can be true. If not, the lane is set aside.

        A stage asks before each step of a lane, so it is quick.
        """
        if not self.mask[lane]:
            return False
        return is_sound(self._control.row(lane), self._segment_bytes) or not self.is_damaged(lane)

    def is_damaged(self, lane: int) -> bool:
        """Whether a lane is set aside now, after a look at all its words.

        A stage asks now and then, and where a step fails over a word. No stage works on a lane that
        is not in the table.
        """
        if lane >= len(self.mask) or not self.mask[lane]:
            return True
        row = self._control.row(lane)
        # twice: words may have been stored while the first look loaded them
        wrong = check_row(row, self._segment_bytes) and check_row(row, self._segment_bytes)
        if not wrong:
            return False
        self.set_aside(lane, wrong)
        return True

    def set_aside(self, lane: int, wrong: str) -> None:
        """Sets a lane aside, and says what is wrong with its words."""
        row = self._control.row(lane)
        self.mask[lane] = False
        row[self._fault_word] = WORDS_DAMAGED
        text = "lane %d: its words in %s are damaged: %s; it is set aside until the next start, which recovers it"
        log.error(text, lane, self._control.region.path, wrong)
