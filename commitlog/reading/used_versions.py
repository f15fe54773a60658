"""Which version of a topic's schema the log knows.

Somebody may have put an older copy of `topics` back. A new version never takes a number that
messages have: they would be read by another schema.
"""

from __future__ import annotations

import warnings

from commitlog.disk.store_directory import StoreDirectory
from commitlog.errors import CommitLogError, ReadingWarning
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import StoreView
from commitlog.record.row_headers import version_of


def used_version(directory: StoreDirectory, topic: str) -> int:
    """The highest version that the newest message of a lane names; 0 if there is none.

    Versions only rise. A lane that can't be read counts as one without messages.
    """
    view = StoreView(directory.path, directory.channel)
    try:
        index = TopicIndex(view)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReadingWarning)  # they are for readers
            index.refresh()
        return max((_version_in(index, topic, lane) for lane in index.ranges(topic)), default=0)
    except (CommitLogError, OSError):
        return 0
    finally:
        view.close()


def _version_in(index: TopicIndex, topic: str, lane: int) -> int:
    queue = index.ranges(topic)[lane]
    last = min(queue.indexed, queue.end) - 1
    if last < queue.first:
        return 0
    try:
        return version_of(index.lanes[lane].consume_queues.record(topic, last).properties) or 0
    except (CommitLogError, OSError):
        return 0
