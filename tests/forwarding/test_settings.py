"""Addresses, topic maps and files of settings: what a user gives to `commitlog forward`."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog.errors import ForwardError, IllegalArgument, IllegalTopic
from commitlog.forwarding.cluster import Cluster
from commitlog.forwarding.forward_settings import ForwardSettings, servers_of, settings_of, topic_map_of
from commitlog.forwarding.kafka_properties import load_properties, without_secrets
from tests.another_user import as_root
from tests.children import in_child, may_have


@pytest.mark.parametrize(
    ("url", "servers"),
    [
        ("kafka://one", "one:9092"),
        ("kafka://one:1,two.example:2/", "one:1,two.example:2"),
        ("KAFKA://[::1]:9093", "[::1]:9093"),
    ],
)
def test_an_address_has_brokers(url: str, servers: str) -> None:
    assert servers_of(url) == servers


@pytest.mark.parametrize(
    "url", ["one:9092", "http://one", "kafka://", "kafka://one:0", "kafka://one:99999", "kafka://a b", "kafka://one,"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(IllegalArgument, match="kafka://HOST:PORT"):
        servers_of(url)


def test_an_address_has_no_password() -> None:
    with pytest.raises(IllegalArgument, match="--config") as caught:
        servers_of("kafka://me:hidden@one:9092")
    assert "hidden" not in str(caught.value)


def test_topics_get_other_names() -> None:
    assert topic_map_of(["a=b", "%RETRY%x=retry.x"]) == {"a": "b", "%RETRY%x": "retry.x"}


@pytest.mark.parametrize("text", ["a", "a=", "a=b%", "a=..", "=b"])
def test_a_wrong_topic_map_is_refused(text: str) -> None:
    with pytest.raises((IllegalArgument, IllegalTopic)):
        topic_map_of([text])


def test_two_names_for_a_topic_are_refused() -> None:
    with pytest.raises(IllegalArgument, match="two names: b and c"):
        topic_map_of(["a=b", "a=c"])


def test_a_name_that_kafka_does_not_allow_leads_to_the_topic_map() -> None:
    settings = settings_of("store", "kafka://one")
    assert settings.kafka_topic("orders") == "orders"
    with pytest.raises(ForwardError, match=r"--topic-map '%RETRY%g=NAME'"):
        settings.kafka_topic("%RETRY%g")


PROPERTIES = r"""
# a comment
! another
security.protocol=SASL_SSL
sasl.mechanism : SCRAM-SHA-512
sasl.username  forwarder
sasl.password=a=b\:c \
    d\u00e9
linger.ms = 20
empty=
"""


def test_a_properties_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(PROPERTIES)
    assert load_properties(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "forwarder",
        "sasl.password": "a=b:c dé",
        "linger.ms": "20",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("linger.ms=1\nacks=0\n", "line 2: acks can't be set: a forwarder always waits"),
        ("transactional.id=x", "line 1: transactional.id can't be set"),
        ("sasl.password", "line 1: not a setting"),
        ("\n\nhidden-and-no-name", "line 3: not a setting"),
    ],
)
def test_what_a_file_may_not_set_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    with pytest.raises(ForwardError, match=said) as caught:
        load_properties(file)
    assert "hidden" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForwardError, match=r"client\.properties: can't be read"):
        load_properties(tmp_path / "client.properties")


def test_no_text_has_a_secret() -> None:
    properties = {"sasl.password": "hidden", "ssl.key.pem": "-----KEY", "sasl.username": "me"}
    assert without_secrets("me, hidden and -----KEY", properties) == "me, *** and ***"


def test_a_setting_that_librdkafka_does_not_know_is_refused_without_its_value() -> None:
    from commitlog.forwarding.cluster import Cluster

    for name, value, said in (("sasl.jaas.config", "hidden", "JAAS"), ("batch.size", "many", '"batch.size"')):
        settings = ForwardSettings("store", "one:9092", properties={name: value})
        with pytest.raises(ForwardError, match=f"a setting for Kafka is not possible: .*{said}") as caught:
            Cluster(settings)
        assert "hidden" not in str(caught.value)


@as_root
def test_a_client_that_gets_no_threads_is_an_error_by_name() -> None:
    """With two or three of them librdkafka ends the process by an assertion."""

    def make() -> None:
        may_have(threads=3)
        Cluster(ForwardSettings("store", "localhost:1"))

    assert in_child(make).startswith("NotEnoughThreads: a client of Kafka takes up to 8 threads")
