"""Appends messages to a lane at memory speed: no lock, no system call, no round trip.

A producer leases a lane and is the only writer of its log, so it knows queue offset, physical
offset and message id at append. It encodes a record in its final bytes, copies it into the lane's
write buffer, and publishes it by storing `wrote`. This is RocketMQ's DefaultAppendMessageCallback,
with the lane in place of the put-message lock.

**Threads.** A producer has one token. A call takes the token first and puts it back last. A call
may find that the token is taken. If another thread has it, the call waits for that thread. If an
outer call of the same thread has it (the stack shows that), the call comes from a signal handler or
a finalizer. It raises ConcurrentUse before it has stored anything.

**Interrupts.** KeyboardInterrupt can hit between any two steps. A call that was interrupted, or has
failed, puts back UNSURE as the token. Then the next call reads `wrote` again, and learns from the
buffer which records were published. Token and local variable are exchanged in one statement that
calls nothing: CPython neither switches threads nor raises an interrupt in it. So a producer that
only one thread uses needs no lock.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Self

from commitlog.appending.acknowledgements import LaneProgress
from commitlog.appending.appender import Appender
from commitlog.appending.attachment import Attachment
from commitlog.appending.last_record import last_record
from commitlog.appending.lease import Lease
from commitlog.appending.message_arguments import Value, Values, as_bytes, check_keys, check_numbers
from commitlog.appending.program_end import close_at_end
from commitlog.appending.row_producer import RowProducer
from commitlog.appending.size_limits import checked_batch_size, record_bytes_max, too_large
from commitlog.appending.thread_turns import FREE, INSIDE, UNSURE, Turns, is_inside
from commitlog.appending.topic_state import NoTopics, TopicState
from commitlog.appending.write_place import WritePlace
from commitlog.client.statistics import LaneStatistics, lane_statistics
from commitlog.disk.writable_topic import WritableTopic, check_writable_name
from commitlog.errors import ConcurrentUse, ForkedProducer, ProducerClosed, disk_error, refuse_copy
from commitlog.message import Message, message_of
from commitlog.native import core
from commitlog.receipt import BatchReceipt, Level, Receipt
from commitlog.record.batch import encode_batch
from commitlog.record.bodies import Bodies
from commitlog.record.host import Host
from commitlog.record.properties import RESERVED_NAMES, encode_keyed_properties, encode_properties
from commitlog.record.record import RecordEncoder, decode
from commitlog.record.record_layout import MAGIC_BLANK, size_and_magic
from commitlog.shm.layout import COUNTER_MAX, Lane, segment_start
from commitlog.shm.memory_order import observe, publish
from commitlog.system.clock import SYSTEM_CLOCK, Clock
from commitlog.system.forks import settle

STORE_ADDRESS, STORE_PORT = "127.0.0.1", 10911


class Producer(Appender, RowProducer):
    """Leases a lane of a running store and appends messages to it.

    Threads may share a producer: their calls come one after the other. A forked child makes its
    own. The end of the program closes a producer that is still open.

    - `lane`: the number of its lane, which is the partition of its messages
    - `message_bytes_max`: size of the largest record, in bytes
    - `store_host`: the host in its message ids

    Raises:
    - StoreNotFound, StoreNotRunning, StoreStopped: there is no store that runs at `path`
    - NoFreeLane: other producers hold all lanes
    - NotEnoughSharedMemory, DiskError: there is no place for a lane's buffers or files
    """

    __slots__ = (
        "__weakref__", "_attachment", "_closed", "_encoder", "_known_offsets", "_lease", "_messages_at", "_place",
        "_progress", "_row_sending", "_sleep_at", "_turns", "_typed", "_words", "_wrote_at", "lane", "store_host",
    )  # fmt: skip

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._attachment = attachment = Attachment(path, clock)
        try:
            self._lease: Lease = attachment.lease()
        except BaseException:
            attachment.close()
            raise
        try:
            end = self._lease.log_end()
        except BaseException as error:
            self._lease.release()
            attachment.close()
            if isinstance(error, OSError):
                doing = f"{attachment.directory.path}: reading the end of lane {self._lease.lane}"
                raise disk_error(error.errno or errno.EIO, doing) from error
            raise
        lease, config = self._lease, attachment.config
        self.lane = lease.lane
        self.store_host = Host.of(STORE_ADDRESS, STORE_PORT + lease.lane)
        self._progress = LaneProgress(attachment, lease.lane, self.store_host, clock)
        self._place = WritePlace(attachment, lease, self._progress, clock)
        self.message_bytes_max = record_bytes_max(self._place.segment_bytes)
        self._encoder = RecordEncoder(lease.lane, Host.of(STORE_ADDRESS, 0), self.store_host, config.store.record_crc)
        self._row_sending = None
        self._topics: dict[str, TopicState] = {}
        self._typed: dict[str, TopicState] = {}
        self._known_offsets = end.queue_offsets
        self._words = words = attachment.words
        first_word = attachment.control.row_at(lease.lane)
        self._wrote_at, self._messages_at = first_word + Lane.WROTE, first_word + Lane.MESSAGES
        self._sleep_at, self._seen = attachment.sleep_at, 0
        self._wrote, self._messages = observe(words, self._wrote_at), words[self._messages_at]
        self._timestamp, self._next_tick = end.store_timestamp, 0  # ms; ns
        self._sync = self._progress.promised != "accepted"
        self._turns = Turns(clock)
        self._take_lane(
            words, self._wrote_at, self._messages_at, self._sleep_at, self._progress, Receipt, RESERVED_NAMES
        )
        self._is_ahead = False
        self._token: bool | None = True
        self._closed = False  # last: from here on its finalizer closes it
        close_at_end(self, Producer._die_after_fork, holds_data=False)
        if attachment.forked:  # a signal handler of this thread has just forked: the lane is the parent's
            self._die_after_fork()
            raise ForkedProducer(f"lane {self.lane}: a fork came while this producer was made; make one in the child")

    # ---- append ---------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Value,
        key: str | None = None,  # by keyword, all from here on; `*` would cost each call 50 ns
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        wait: bool = True,
        flag: int = 0,
        born_timestamp: int | None = None,
    ) -> Receipt:
        """Appends one message and returns when it is *accepted*: no kill of a process loses it now.

        `headers` are the message's own names and values. `key` and `tags` become RocketMQ's KEYS
        and TAGS. In a store with SYNC_FLUSH the call returns when the message is flushed;
        `wait=False` does not wait. `flag` and `born_timestamp` (ms since 1970, None: now) go into
        the record as they are.

        Raises, and nothing was appended:
        - IllegalMessage, IllegalProperty: an argument can't be stored
        - TopicNotWritable: IllegalTopic, or ValuesRefused where the topic has a schema, and no
          headers say that the value has its rows
        - MessageTooLarge, PropertiesTooLarge
        - NoBufferAvailable, DiskError: the disk does not keep up, or refuses
        - StoreStopped, ProducerClosed, ForkedProducer, ConcurrentUse

        Raises, and the message *is* in the log, so that sending it again would double it: in a
        store with SYNC_FLUSH what `Receipt.wait` does. `error.receipt` is the receipt then.

        PoolUnlinked without a receipt: the store stops because somebody removed its memory, and
        this message came too late to reach the disk.
        """
        settle()
        token = None
        try:
            token, self._token = self._token, None
            if not token:
                while token is None:
                    self._wait_outside()
                    token, self._token = self._token, None
                if not token:
                    self._learn_published()
            state = self._topics.get(topic) or self._open_topic(topic, headers)
            if type(value) is not bytes:
                value = as_bytes(value)
            encoded = (
                b""
                if key is None and tags is None and headers is None and wait
                else self._properties(key, tags, headers, wait)
            )
            size = state.overhead + len(value) + len(encoded)
            if size > self.message_bytes_max:
                raise too_large(size, self._place.segment_bytes)
            place, where, offset = self._place, self._wrote, state.next_offset
            if where + size > place.limit:
                where = self._make_room(where, size)
            elif self._is_ahead:
                self._catch_up(where)
            end = where + size
            if time_ns() >= self._next_tick:
                self._tick()
            now = self._timestamp
            if born_timestamp is None and not flag:
                place.append(state.encode(value, encoded, offset, where, now))
            else:
                born = now if born_timestamp is None else born_timestamp
                check_numbers(flag, born)
                place.append(self._encoder.encode(state.encoded, value, encoded, offset, where, born, now, flag))
            # all objects first: what is published never fails for want of memory
            words, messages, next_offset = self._words, self._messages + 1, offset + 1
            receipt = Receipt((self._progress, topic, offset, where, end))
            publish(words, self._wrote_at, end)  # publishes the record: accepted
            words[self._messages_at] = self._messages = messages
            # `wrote` last: a call that is interrupted before this finds the record between the two
            state.next_offset, self._wrote = next_offset, end
            self._token, token = FREE, None
        except BaseException as error:
            if token is not None:
                self._token, token = UNSURE, None
            if type(error) is TypeError:
                check_writable_name(topic)  # one that can't be looked up
            raise
        try:
            if observe(words, self._sleep_at) != self._seen:
                self._answer_changed_word(end)
        except MemoryError:
            self._seen = -1  # the next call tries it again
        return self._progress.wait_put(receipt) if self._sync and wait else receipt

    def _properties(self, key: str | None, tags: str | None, headers: Mapping[str, str] | None, wait: bool) -> bytes:
        return encode_properties(key, tags, headers, wait, append_crc=self._encoder.append_crc)

    def _tick(self) -> None:
        """Takes STORETIMESTAMP from the clock.

        If the clock has gone back, the last timestamp is kept.
        """
        self._timestamp = max(time_ns() // 1_000_000, self._timestamp)
        self._next_tick = (self._timestamp + 1) * 1_000_000

    def send_batch(
        self,
        topic: str,
        values: Values,
        *,
        key: str | None = None,
        keys: Sequence[str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        tags: str | None = None,
        wait: bool = True,
    ) -> BatchReceipt:
        """Appends a message for each value, all of them or none.

        They get consecutive offsets, one timestamp, and places in one segment. `values` is a list
        of bytes, a numpy array of uint8 and shape (messages, bytes), or a pyarrow array of
        binaries. Every message gets `key`, `headers` and `tags`. In place of `key`, `keys` has a
        key or None for each message.

        Raises what `send` does. MessageTooLarge is also raised for a batch that no segment holds,
        and IllegalMessage for more or fewer keys than values.
        """
        settle()
        token = None
        try:
            token, self._token = self._token, None
            if not token:
                while token is None:
                    self._wait_outside()
                    token, self._token = self._token, None
                if not token:
                    self._learn_published()
            made = Bodies.of(values)
            state = self._topics.get(topic) or self._open_topic(topic, headers)
            append_crc = self._encoder.append_crc
            encoded: bytes | list[bytes]
            if keys is None:
                encoded = encode_properties(key, tags, headers, wait, append_crc=append_crc)
            else:
                check_keys(keys, key, made.count)
                encoded = encode_keyed_properties(keys, tags, headers, wait, append_crc=append_crc)
            place, where, offset, words = self._place, self._wrote, state.next_offset, self._words
            size = checked_batch_size(self._encoder, state.encoded, made, encoded, place.segment_bytes)
            if where + size > place.limit:
                where = self._make_room(where, size)
            self._tick()
            now, out = self._timestamp, place.view(where, size)
            places = encode_batch(self._encoder, state.encoded, made, encoded, offset, where, now, now, out, state)
            place.store(out, where)
            end, messages, next_offset = where + size, self._messages + made.count, offset + made.count
            receipt = BatchReceipt((self._progress, topic, offset, where, end, places))
            publish(words, self._wrote_at, end)  # publishes them all
            words[self._messages_at] = self._messages = messages
            state.next_offset, self._wrote = next_offset, end
            self._token, token = FREE, None
        except BaseException as error:
            if token is not None:
                self._token, token = UNSURE, None
            if type(error) is TypeError:
                check_writable_name(topic)  # one that can't be looked up
            raise
        try:
            if observe(words, self._sleep_at) != self._seen:
                self._answer_changed_word(end)
        except MemoryError:
            self._seen = -1
        return self._progress.wait_put(receipt) if self._sync and wait else receipt

    def last(self, topic: str) -> Message | None:
        """The last accepted message of a topic in this producer's lane, from any producer.

        None means that there was no such message yet, or that retention has deleted it. A program
        that numbers its messages learns here, after a crash, with which number it goes on. Each
        lane has a last message of its own.

        Raises:
        - IllegalTopic
        - DiskError, CorruptRecord, DamagedFile: the message can't be read
        - StoreStopped, StoreMoved, ProducerClosed, ForkedProducer, ConcurrentUse
        """
        settle()
        token = None
        try:
            token, self._token = self._token, None
            if not token:
                while token is None:
                    self._wait_outside()
                    token, self._token = self._token, None
                if not token:
                    self._learn_published()
            check_writable_name(topic)
            end = (self._topics.get(topic) or self._state_of(topic)).next_offset
            record = last_record(self._lease, topic, end - 1) if end else None
            self._token, token = FREE, None
        except BaseException:
            if token is not None:
                self._token, token = UNSURE, None
            raise
        return None if record is None else message_of(record)

    def _make_room(self, where: int, size: int) -> int:
        where = self._place.make_room(where, size)
        self._write_to(self._place.buffer(), self._place.start, self._place.limit)
        return where

    def _catch_up(self, where: int) -> None:
        """Moves Python's place in the log behind the records that the native core has written."""
        self._place.continue_at(where)
        self._is_ahead = False

    def _leave_place(self) -> None:
        """Makes the next message look for its place again."""
        self._write_to(None, 0, -1)
        self._place.leave()

    def _open_topic(self, topic: str, headers: object) -> TopicState:
        """Returns the facts about a topic that is not in `_topics`: a new topic, or a typed one.

        Typed topics are not in `_topics`, so only messages with rows pay for the look at their
        headers. A schema is not deleted while a producer runs. Raises TopicNotWritable.
        """
        state = self._state_of(topic)
        state.writable.check(headers)
        return state

    def _state_of(self, topic: str) -> TopicState:
        name = check_writable_name(topic).decode()  # a str of a subclass may have a hash of its own
        state = self._topics.get(name) or self._typed.get(name)
        if state is None:
            next_offset = self._known_offsets.get(name)
            if next_offset is None:
                next_offset = self._lease.queue_end(name)
            writable = WritableTopic.of(self._attachment.directory, name)
            state = TopicState.of(self._encoder, writable, next_offset)
            (self._typed if writable.versions else self._topics)[name] = state
        return state

    def _is_inside(self) -> bool:
        return is_inside(self, _TAKING_TOKENS, sys._getframe(1))

    def _wait_outside(self) -> None:
        """Waits for the call that has the token. When this returns, the token may be taken again.

        Raises ConcurrentUse if that call can't end first, because this call is inside it.
        """
        if self._is_inside():
            raise ConcurrentUse(f"lane {self.lane}: {INSIDE}")
        self._turns.wait(lambda: self._token is not None, self._ask)
        if self._token is None and sys.is_finalizing():  # the thread that has it may be stopped for good
            raise ConcurrentUse(f"lane {self.lane}: the program ends while another thread is inside this producer")

    def _ask(self) -> None:
        """Makes the next call that sends take its slow path, where it gives way to the others."""
        self._seen = -1

    def _learn_published(self) -> None:
        """Learns which records the last call had published before it was interrupted or failed."""
        if self._closed:
            return  # the topics say why
        place, published = self._place, observe(self._words, self._wrote_at)
        where = self._wrote
        while where < published:
            data, at = place.read(where, published), 0
            while at < len(data) and size_and_magic(data, at)[1] != MAGIC_BLANK:
                record = decode(data, at)
                state = self._topics.get(record.topic) or self._state_of(record.topic)
                state.next_offset = record.queue_offset + 1
                self._timestamp = max(self._timestamp, record.store_timestamp)
                at += record.total_size
            segment_end = segment_start(where, place.segment_bytes) + place.segment_bytes
            where = where + at if where + at >= published else segment_end
        self._wrote = published
        self._leave_place()

    # ---- acknowledgements -----------------------------------------------------------------------

    def flush(self, level: Level = "flushed", timeout: float | None = None) -> None:
        """Returns when everything sent so far has reached the level.

        Raises what `Receipt.wait` does: WaitTimeout after `timeout` seconds (None: never), and so
        on. Whatever it raises, the messages stay in the log.
        """
        self._progress.flush(level, timeout)

    def statistics(self) -> LaneStatistics:
        """Returns the counters of this lane since the store's start, of all its producers."""
        return lane_statistics(self._attachment.control, self.lane, SYSTEM_CLOCK.monotonic_ns())

    def _answer_changed_word(self, end: int) -> None:
        """Answers a change of the word that `send` looks at.

        There are three reasons. The committer went to sleep: this wakes it. Another thread waits
        for its turn: this gives way. The store is closing: the next `send` raises that. Messages
        that were accepted meanwhile stay in the pool for the next start. If the pool was removed,
        they would be lost in silence, so this raises PoolUnlinked.
        """
        seen = observe(self._words, self._sleep_at)
        self._attachment.wake("committer")
        if not self._attachment.closing:
            self._seen = seen if seen <= COUNTER_MAX else -1  # garbage: the next call looks again
            self._turns.give_way()
            return
        self._seen = -1  # for other threads' messages that are on their way
        token = None
        try:
            token, self._token = self._token, None
        finally:
            if token is not None:  # otherwise the call that has it comes here next
                self._token = False
        if self._lease.is_unlinked():
            self._progress.wait_for_the_last(end)

    # ---- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Gives the lane back. If another thread is inside a call, `close` waits for its end.

        The stages write the sent messages to disk later; call `flush` first to wait for that.
        Raises ConcurrentUse inside a call of the same thread. Does nothing in a forked child.
        """
        if self._attachment.forked:
            return
        gone = NoTopics(ProducerClosed(f"lane {self.lane}: this producer was closed"))
        token = None
        try:
            token, self._token = self._token, None
            while token is None:
                self._wait_outside()
                token, self._token = self._token, None
            if self._closed:
                return
            self._topics = gone
            self._closed = True
        finally:
            if token is not None:
                self._token, token = UNSURE, None
        self._write_to(None, 0, -1)
        self._place.close()
        self._lease.release()
        self._attachment.close_sockets()

    def _die_after_fork(self) -> None:
        self._closed, self._token = True, False  # a thread that was inside is the parent's
        why = f"lane {self.lane}: this producer belongs to the parent process; make one in the child"
        self._topics = NoTopics(ForkedProducer(why))

    __reduce_ex__ = refuse_copy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):  # the attribute is missing if __init__ raised
            self.close()

    def __repr__(self) -> str:
        return f"Producer({str(self._attachment.directory.path)!r}, lane={self.lane})"


_TAKING_TOKENS = frozenset(
    call.__code__ for call in (Producer.send, Producer.send_batch, Producer.last, Producer.close)
)
"""The calls that hold the token in a local variable `token`."""

if core is not None:  # the core's `send` is that of Appender: it calls `_send` for what is unusual
    Producer._send = Producer.send  # type: ignore[attr-defined]  # noqa: SLF001
    del Producer.send
