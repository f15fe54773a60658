"""`commitlog serve STORE…`: stores over Arrow Flight, for Spark clusters and other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import STORE_VARIABLE
from commitlog.cli.end_signals import on_end_signal
from commitlog.cli.output import only_says
from commitlog.errors import ServingRefused
from commitlog.system.clock import SignalEvent


def serve(
    store: Annotated[
        list[Path],
        typer.Argument(metavar="STORE", help="Stores: PATH, or NAME=PATH.", envvar=STORE_VARIABLE, readable=False),
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 takes a free one.")
    ] = "127.0.0.1:4433",
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="The server's certificate, with its chain: TLS.")
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="The key of the certificate.")] = None,
    client_authority: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pem", help="Only clients with a certificate of this authority (mutual TLS)."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only clients with a token of this file: `commitlog token`.")
    ] = None,
    writable: Annotated[bool, typer.Option("--writable", help="Let clients append, too.")] = False,
    processes: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Processes, each on a port of its own from HOST:PORT on.")
    ] = 1,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST", help="The host by which clients reach this machine.")
    ] = None,
) -> None:
    """Serve stores to Spark, pandas and others on other machines.

        commitlog serve data/events
        commitlog serve data/events --tokens tokens.json --processes 2
        commitlog serve events=data/events --certificate cert.pem --key key.pem

    It runs beside the stages, also of a stopped store and of a RocketMQ store root. Clients give
    the URL that it prints. Ctrl-C or SIGTERM ends it.
    """
    from commitlog.cli.service_manager import ServiceManager
    from commitlog.serving.server_processes import Server
    from commitlog.serving.server_settings import settings_of

    only_says()
    settings = settings_of(
        list(map(str, store)),
        listen,
        certificate=certificate,
        key=key,
        client_authority=client_authority,
        tokens=tokens,
        writable=writable,
        advertise=advertise,
    )
    ended, manager = SignalEvent(), ServiceManager()
    on_end_signal(ended.set)
    try:
        server = Server(settings, processes, ended.is_set)
    except ServingRefused:
        if ended.is_set():
            return
        raise
    with server:
        for name in settings.stores:
            typer.echo(str(server.address(name)))
        typer.echo("Ctrl-C ends it")
        manager.tell("READY=1", f"STATUS=serving on port {', '.join(map(str, server.ports))}")
        ended.wait()
        manager.tell("STOPPING=1")
