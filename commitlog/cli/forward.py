"""`commitlog forward STORE kafka://HOST:PORT`: feeds a Kafka cluster, each message exactly once."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from commitlog.cli.arguments import AnyStoreArgument, print_lines

EXIT_FENCED = 3
"""Another forwarder has taken over, so a service manager should not start this one again."""


def forward(
    store: AnyStoreArgument,
    cluster: Annotated[str, typer.Argument(metavar="URL", help="kafka://HOST:PORT, or several brokers with commas.")],
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The reader's name; another one forwards everything anew.")
    ] = "kafka",
    topic: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only this topic; may be given again. Without it, all.")
    ] = None,
    topic_map: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC=NAME", help="Its name in Kafka, if another; may be given again.")
    ] = None,
    by_key: Annotated[
        bool, typer.Option("--by-key", help="Choose the partition by key. Without it, lane n goes to partition n.")
    ] = False,
    partitions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Topics have so many partitions in Kafka, or more.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings of librdkafka, as a .properties file.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a cluster that does not answer at the start.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when all is forwarded that is there now.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on without messages that are deleted or damaged.")
    ] = False,
    new_target: Annotated[
        str,
        typer.Option(
            metavar="stop|again|continue",
            help="Where the cluster or a topic is another than before: stop, forward again, or continue.",
        ),
    ] = "stop",
) -> None:
    """Feed a Kafka cluster from STORE, each message exactly once.

        commitlog forward data/events kafka://localhost:9092
        commitlog forward data/events kafka://one:9092,two:9092 --config client.properties

    It goes on until Ctrl-C or SIGTERM, and the next one goes on from there. Exit code 3: another
    forwarder of the same name has taken over.
    """
    from commitlog.cli.service_manager import ServiceManager
    from commitlog.errors import ForwarderFenced
    from commitlog.forwarding.forwarder import Forwarder
    from commitlog.forwarding.properties import load_properties
    from commitlog.forwarding.settings import settings_of

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
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    stop, manager = threading.Event(), ServiceManager()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    manager.tell("READY=1", f"STATUS=forwarding to {settings.url}")
    try:
        Forwarder(settings, stop).run()
    except ForwarderFenced as error:
        print_lines([f"commitlog: {error} [ForwarderFenced]"], err=True)
        raise typer.Exit(EXIT_FENCED) from None
    finally:
        manager.tell("STOPPING=1")
