"""Who is in sync, and what counts as replicated: every in-sync replica has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.config import ReplicationConfig
from commitlog.shm.layout import Lane
from commitlog.stages.replicating.in_sync import InSync
from tests.builders.idle_store import IdleStore, idle_store
from tests.fake_clock import SetClock

CONFIG = ReplicationConfig(listen="h:1", fall_behind_max_bytes=1_000)
Notices = list[tuple[int, int, int]]


@pytest.fixture
def store(tmp_path: Path, shm_root: Path) -> Iterator[IdleStore]:
    with idle_store(tmp_path / "store", shm_root / "pool", lanes=(0, 1)) as made:
        made.set(0, FLUSHED=500)
        yield made


def in_sync(store: IdleStore, config: ReplicationConfig = CONFIG, notices: Notices | None = None) -> InSync:
    said = [] if notices is None else notices
    return InSync(store.control, 2, config, SetClock(), lambda *notice: said.append(notice))


def acknowledge(replicas: InSync, peer: str, lane: int, where: int) -> int:
    """What a peer says that has a name of its own. It comes with its first word."""
    if peer not in replicas._names:
        replicas.come(peer, peer)
    return replicas.acknowledge(peer, lane, where)


def facts(store: IdleStore) -> tuple[int, int]:
    return store.get(0, Lane.REPLICATED), store.get(0, Lane.IN_SYNC)


def test_a_replica_comes_in_when_it_has_all_and_goes_out_when_it_is_far_behind(store: IdleStore) -> None:
    """What was flushed before is what it has to have: an earlier pool may have counted it."""
    replicas = in_sync(store)
    acknowledge(replicas, "a", 0, 499)
    assert facts(store) == (0, 0)
    assert acknowledge(replicas, "a", 0, 500) == 500
    assert facts(store) == (500, 1)
    store.set(0, FLUSHED=1_499)
    replicas.look()
    assert facts(store) == (500, 1)
    store.set(0, FLUSHED=1_500)
    replicas.look()
    assert facts(store) == (500, 0)
    assert acknowledge(replicas, "a", 0, 1_500) == 1_000
    assert facts(store) == (1_500, 1)


def test_what_counts_is_what_every_member_has(store: IdleStore) -> None:
    """So any of them can be promoted."""
    replicas = in_sync(store)
    acknowledge(replicas, "a", 0, 500)
    acknowledge(replicas, "b", 0, 500)
    store.set(0, FLUSHED=600)
    acknowledge(replicas, "a", 0, 600)
    assert facts(store) == (500, 2)
    acknowledge(replicas, "b", 0, 550)
    assert facts(store) == (550, 2)
    replicas.leave("b")
    assert facts(store) == (600, 1)


def test_two_connections_of_one_replica_count_as_one(store: IdleStore) -> None:
    """The older one is half open. RocketMQ's slaves have no names of their own, but places."""
    replicas = in_sync(store, ReplicationConfig(listen="h:1", min_in_sync=2))
    replicas.come("half open", "slave")
    replicas.acknowledge("half open", 0, 500)
    store.set(0, FLUSHED=600)
    replicas.come("new", "slave")
    replicas.acknowledge("half open", 0, 600)  # it was on its way, and comes late
    replicas.acknowledge("new", 0, 600)
    assert facts(store) == (0, 1)
    store.set(0, FLUSHED=700)
    replicas.acknowledge("new", 0, 700)
    assert facts(store) == (0, 1)
    acknowledge(replicas, "other", 0, 700)
    assert facts(store) == (600, 2)


def test_two_slaves_of_one_address_count_as_two(store: IdleStore) -> None:
    """Both come through a tunnel. Each has what was flushed after the other one had come."""
    replicas = in_sync(store, ReplicationConfig(listen="h:1", min_in_sync=2))
    for peer in ("one", "two"):
        replicas.come(peer, "slave")
        replicas.acknowledge(peer, 0, 500)
    assert facts(store) == (0, 1)
    store.set(0, FLUSHED=600)
    replicas.acknowledge("one", 0, 600)
    assert facts(store) == (0, 1)
    replicas.acknowledge("two", 0, 550)
    assert facts(store) == (550, 2)
    replicas.come("three", "slave")  # may be one of them, which comes again
    replicas.acknowledge("three", 0, 600)
    assert facts(store) == (550, 1)
    replicas.leave("one")
    store.set(0, FLUSHED=700)
    replicas.acknowledge("two", 0, 700)
    replicas.acknowledge("three", 0, 700)
    assert facts(store) == (700, 2)


def test_an_acknowledgement_of_a_lost_replica_does_not_count(store: IdleStore) -> None:
    replicas = in_sync(store, ReplicationConfig(listen="h:1", min_in_sync=2))
    acknowledge(replicas, "a", 0, 500)
    acknowledge(replicas, "b", 0, 500)
    assert facts(store) == (500, 2)
    store.set(0, FLUSHED=600)
    acknowledge(replicas, "a", 0, 600)
    replicas.leave("a")
    acknowledge(replicas, "b", 0, 600)
    assert facts(store) == (500, 1)
    acknowledge(replicas, "c", 0, 550)
    assert facts(store) == (550, 2)


def test_one_that_comes_again_has_to_have_what_counted(store: IdleStore) -> None:
    replicas = in_sync(store)
    acknowledge(replicas, "a", 0, 500)
    replicas.leave("a")
    acknowledge(replicas, "stale", 0, 400)
    assert facts(store) == (500, 0)
    acknowledge(replicas, "stale", 0, 500)
    assert facts(store) == (500, 1)


def test_a_service_that_starts_again_counts_nobody_and_forgets_nothing(store: IdleStore) -> None:
    acknowledge(in_sync(store), "a", 0, 500)
    store.set(0, FLUSHED=700)
    replicas = in_sync(store)
    assert facts(store) == (500, 0)
    acknowledge(replicas, "a", 0, 600)
    assert facts(store) == (600, 1)


def test_who_listens_gets_a_notice(store: IdleStore) -> None:
    notices: Notices = []
    replicas = in_sync(store, notices=notices)
    acknowledge(replicas, "a", 0, 500)
    assert notices == []
    store.set(0, FLUSHED=600, LISTENING=1)
    acknowledge(replicas, "a", 0, 600)
    assert notices == [(0, 600, 600)]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("flush"), st.integers(1, 400)),
        st.tuples(st.just("acknowledge"), st.sampled_from("abc"), st.integers(0, 400)),
        st.tuples(st.just("leave"), st.sampled_from("abc")),
    ),
    max_size=60,
)


@given(steps=STEPS, least=st.integers(1, 2))
def test_whoever_is_in_sync_has_what_counted(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]], least: int
) -> None:
    """At any time, each member has everything up to REPLICATED, and that only grows."""
    base = tmp_path_factory.mktemp("model")
    with idle_store(base / "store", base / "pool") as store:
        replicas = in_sync(store, ReplicationConfig(listen="h:1", fall_behind_max_bytes=1_000, min_in_sync=least))
        has: dict[object, int] = {}
        before = 0
        for step, *values in steps:
            flushed = store.get(0, Lane.FLUSHED)
            if step == "flush":
                store.set(0, FLUSHED=flushed + int(str(values[0])))
                replicas.look()
            elif step == "acknowledge":
                has[values[0]] = min(has.get(values[0], 0) + int(str(values[1])), flushed)
                acknowledge(replicas, str(values[0]), 0, has[values[0]])
            else:
                has.pop(values[0], None)
                replicas.leave(values[0])
            replicated, count = facts(store)
            members = [peer for peer in has if replicas.is_member(peer, 0)]
            assert len(members) == count
            assert all(has[peer] >= replicated for peer in members)
            assert replicated >= before
            assert count >= least or replicated == before
            before = replicated
