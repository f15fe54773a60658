"""Tells which messages a store had already before a promotion, a restore, or damage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from commitlog.disk.consume_queue import ConsumeQueue
from commitlog.disk.epochs import OFFSET_MAX, Epoch, is_of_history, parted_at, shared_end
from commitlog.errors import DataLoss
from commitlog.reading.lane_choice import LaneChoice
from commitlog.reading.queue_bounds import QueueBounds
from commitlog.reading.topic_index import TopicIndex
from commitlog.reading.view import LogView


def shared_ends(
    view: LogView, epoch: int, queues: Iterable[tuple[str, int]], history: tuple[Epoch, ...] = ()
) -> dict[tuple[str, int], int]:
    """Returns the queue offset up to which each queue has the messages of an earlier epoch.

    From this offset on, the queue's messages may be others. A queue is a topic and a lane. Queues
    whose messages are all the same are left out. Raises DamagedFile, and DataLoss for an epoch that
    this store was never in; but not where `history` has the epochs of the store that was.
    """
    is_own = is_of_history(view.epochs, epoch)
    if not is_own and not is_of_history(history, epoch):
        raise DataLoss(
            f"{view.path} was never in epoch {epoch}, which was read before: another replica of this store was promoted "
            "then, or another backup started, and nobody knows how much of what was read is here; read that store, or "
            "begin anew: a query with a new checkpoint, a forwarder with another --name, which sends all again"
        )
    found: dict[tuple[str, int], int] = {}
    lanes = view.lanes()
    for topic, lane in queues:
        end = shared_end(view.epochs, epoch, lane) if is_own else parted_at(view.epochs, history, lane)
        if end == OFFSET_MAX:
            continue
        if lane not in lanes:
            found[topic, lane] = 0
            continue
        with ConsumeQueue(view.lane_directory(lane).queue_path(topic)) as queue:
            found[topic, lane] = QueueBounds(queue, view.limits(lane).first, end).find()[1]
    return found


def refuse_lost(
    place: str, shared: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int], read_anew: str
) -> None:
    """Raises DataLoss if queues no longer have all messages before `ends`: see `shared_ends`."""
    for (topic, lane), end in sorted(shared.items()):
        had = ends[topic, lane]
        if end < had:
            raise DataLoss(
                f"{place}: the messages {end:,} to {had - 1:,} of topic {topic}, lane {lane} are lost, and new ones get "
                f"their offsets. {read_anew}"
            )


def check_read(index: TopicIndex, topics: Collection[str] | None, lanes: LaneChoice) -> None:
    """Checks that the store still has all messages that the index saw at its last look.

    Only these topics (None: all) and lanes count. In the same epoch, there is nothing to check.
    Raises DataLoss, DamagedFile.
    """
    view, epoch = index.view, index.epoch
    if view.epoch == epoch:
        return
    ends = {
        (topic, lane): known.end
        for lane, lane_index in index.lanes.items()
        for topic, known in lane_index.queues.items()
        if lane in lanes and (topics is None or topic in topics)
    }
    for (topic, lane), end in sorted(shared_ends(view, epoch, ends).items()):
        had = ends[topic, lane]
        if end < had:
            raise DataLoss(
                f"{view.path}: the messages {end:,} to {had - 1:,} of topic {topic}, lane {lane} are lost, and new ones get "
                "their offsets: make a new reader. One with a name begins with the new messages"
            )
