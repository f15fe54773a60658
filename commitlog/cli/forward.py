"""`commitlog forward STORE kafka://HOST:PORT`: feeds a Kafka cluster, each message exactly once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import AnyStoreArgument, print_lines
from commitlog.cli.end_signals import on_end_signal
from commitlog.system.clock import SignalEvent
from commitlog.text.lines import log_to

EXIT_FENCED = 3
"""Another forwarder has taken over, so a service manager should not start this one again."""


ClusterArgument = Annotated[
    str, typer.Argument(metavar="URL", help="kafka://HOST:PORT, or several brokers with commas.")
]
NameOption = Annotated[
    str, typer.Option(metavar="NAME", help="The reader's name; another one forwards everything anew.")
]
TopicOption = Annotated[
    list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be given again. Without it, all.")
]
TopicMapOption = Annotated[
    list[str] | None, typer.Option(metavar="TOPIC=NAME", help="Its name in Kafka, if another; may be given again.")
]
ByKeyOption = Annotated[
    bool, typer.Option("--by-key", help="Choose the partition by key. Without it, lane n goes to partition n.")
]
PartitionsOption = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Topics have so many partitions in Kafka, or more.")
]
ConfigOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Settings of librdkafka, as a .properties file.")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for a cluster that does not answer at the start.")]
OnceOption = Annotated[bool, typer.Option("--once", help="End when all is forwarded that is there now.")]
AcceptLossOption = Annotated[
    bool, typer.Option("--accept-loss", help="Go on without messages that are deleted or damaged.")
]
NewTargetOption = Annotated[
    str,
    typer.Option(
        metavar="stop|again|continue",
        help="Where the cluster or a topic is another than before: stop, forward again, or continue.",
    ),
]


def forward(
    store: AnyStoreArgument,
    cluster: ClusterArgument,
    name: NameOption = "kafka",
    topic: TopicOption = None,
    topic_map: TopicMapOption = None,
    by_key: ByKeyOption = False,
    partitions: PartitionsOption = None,
    config: ConfigOption = None,
    wait: WaitOption = False,
    once: OnceOption = False,
    accept_loss: AcceptLossOption = False,
    new_target: NewTargetOption = "stop",
) -> None:
    """Feed a Kafka cluster from STORE, each message exactly once.

        commitlog forward data/events kafka://localhost:9092
        commitlog forward data/events kafka://one,two --config kafka.properties

    It goes on until Ctrl-C or SIGTERM, and the next one goes on from there. Exit code 3: another
    forwarder of the same name has taken over.
    """
    from commitlog.cli.service_manager import ServiceManager
    from commitlog.errors import ForwarderFenced
    from commitlog.forwarding.forward_settings import settings_of
    from commitlog.forwarding.forwarder import Forwarder
    from commitlog.forwarding.kafka_properties import load_properties

    if new_target not in ("stop", "again", "continue"):
        raise typer.BadParameter(f"{new_target!r}: give stop, again or continue", param_hint="--new-target")
    settings = settings_of(
        store,
        cluster,
        name=name,
        topics=topic or (),
        topic_map=topic_map or (),
        by_key=by_key,
        partitions=partitions,
        properties=load_properties(config) if config else {},
        wait=wait,
        once=once,
        accept_loss=accept_loss,
        new_target=new_target,
    )
    log_to(sys.stderr, line="%(message)s")
    stop, manager = SignalEvent(), ServiceManager()
    on_end_signal(stop.set)
    manager.tell("READY=1", f"STATUS=forwarding to {settings.url}")
    try:
        Forwarder(settings, stop).run()
    except ForwarderFenced as error:
        print_lines([f"commitlog: {error} [ForwarderFenced]"], err=True)
        raise typer.Exit(EXIT_FENCED) from None
    finally:
        manager.tell("STOPPING=1")
