"""`commitlog metrics STORE…`: what Prometheus scrapes, printed, written to a file, or served."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import StoresArgument
from commitlog.cli.end_signals import on_end_signal
from commitlog.cli.output import only_says
from commitlog.errors import IllegalArgument, ServingRefused
from commitlog.system.clock import SignalEvent
from commitlog.text.lines import printable

if TYPE_CHECKING:
    from commitlog.watching.exposition import StoreCollector

LOOPBACK = "127.0.0.1"


def metrics(
    store: StoresArgument,
    textfile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.prom", help="Write them to a file, for node_exporter's textfile collector."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve them at http://HOST:PORT/metrics until Ctrl-C or SIGTERM; HOST is 127.0.0.1 if there is none.",
        ),
    ] = None,
) -> None:
    """Print the metrics of stores for Prometheus, or serve them.

        commitlog metrics data/events
        commitlog metrics data/events data/logs --listen 9877

    It works while the stages hang, and when the store is stopped or was killed.
    """
    if textfile and listen is not None:
        raise IllegalArgument("--textfile writes once and --listen goes on: give one of them")
    from commitlog.watching.exposition import StoreCollector

    if listen is not None:
        _serve(StoreCollector(store, _show), listen)
        return
    errors: list[Exception] = []
    collector = StoreCollector(store, errors.append)
    try:
        if textfile:
            _write(collector, textfile)
        else:
            _print(collector)
    finally:
        collector.close()
    if errors:  # the others are written
        raise errors[0]


def _print(collector: StoreCollector) -> None:
    from prometheus_client.exposition import choose_encoder

    encode, _ = choose_encoder("application/openmetrics-text")
    typer.echo(encode(collector.registry), nl=False)


def _write(collector: StoreCollector, file: Path) -> None:
    """Writes Prometheus' older text format: node_exporter reads no other."""
    from prometheus_client import write_to_textfile

    if file.suffix != ".prom":
        raise IllegalArgument(f"--textfile {file}: node_exporter reads only files whose names end in .prom")
    try:
        write_to_textfile(str(file), collector.registry)
    except OSError as error:
        raise IllegalArgument(f"--textfile {file}: {error.strerror}; give a file in a directory to write to") from error


def _serve(collector: StoreCollector, listen: str) -> None:
    from commitlog.watching.metrics_server import MetricsServer

    stop = SignalEvent()

    host, port = _address(listen)
    only_says()
    on_end_signal(stop.set)
    try:
        server = MetricsServer(host, port, collector.registry)
    except OSError as error:
        raise ServingRefused(
            f"--listen {listen}: {error.strerror}; give an address of this machine and a free port"
        ) from error
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics", daemon=True)
    thread.start()
    list(collector.collect())  # says which stores can't be read
    name = f"[{host}]" if ":" in host else host
    typer.echo(f"serving http://{name}:{server.server_port}/metrics; Ctrl-C ends it")
    stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()
    collector.close()


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise IllegalArgument(f"--listen {listen}: it is HOST:PORT or PORT, such as {LOOPBACK}:9877")
    return host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port)


def _show(error: Exception) -> None:
    sys.stderr.write(f"commitlog: {printable(' '.join(str(error).split()))} [{type(error).__name__}]\n")
