"""Which names a topic may have: those that RocketMQ takes, and a directory can have."""

from __future__ import annotations

import re

from commitlog.errors import IllegalTopic

TOPIC_BYTES_MAX = 255
"""A topic is a directory's name in the consume queue, and file systems allow no longer names."""
_TOPIC = re.compile(r"[%|A-Za-z0-9_.-]+")


def check_topic(topic: object) -> bytes:
    """The topic's bytes, if RocketMQ's TopicValidator accepts it.

    It accepts `[%|A-Za-z0-9_.-]+`, 1 to 255 bytes. `.` and `..` are refused as well, because a
    topic is also a directory's name. Raises IllegalTopic.
    """
    if not isinstance(topic, str):
        raise IllegalTopic(f"a topic is a str, not {type(topic).__name__}")
    if not topic:
        raise IllegalTopic("the topic is empty; give it a name such as 'orders'")
    if _TOPIC.fullmatch(topic) is None:
        raise IllegalTopic(f"topic {topic[:80]!r}: only letters, digits and % | _ . - are allowed")
    if topic in (".", ".."):
        raise IllegalTopic(f"topic {topic!r} would be a directory that exists already; choose another name")
    if len(topic) > TOPIC_BYTES_MAX:
        raise IllegalTopic(f"topic of {len(topic)} bytes; at most {TOPIC_BYTES_MAX} are allowed")
    return topic.encode("ascii")
