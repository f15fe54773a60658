"""`commitlog ui STORE…`: stores as a page in a browser on this machine."""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated

import typer

from commitlog.cli.arguments import StoresArgument
from commitlog.cli.end_signals import on_end_signal
from commitlog.cli.output import only_says
from commitlog.errors import CommitLogError
from commitlog.system.clock import SignalEvent


class PageError(CommitLogError):
    """The page can't be served."""


def ui(
    store: StoresArgument,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of this machine; port 0 takes a free one.")
    ] = "127.0.0.1:0",
) -> None:
    """Serve a page for the browser: plots, and messages of a topic.

        commitlog ui data/events --listen 127.0.0.1:8080
        commitlog ui data/events data/logs

    It shows what `top` shows. It only reads, and only this machine reaches it. The address that it
    prints has a token: who has it sees the messages. Ctrl-C ends it.
    """
    from commitlog.ui.looks import Looks
    from commitlog.ui.page_server import PageServer

    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise typer.BadParameter(f"{listen!r} is not HOST:PORT, such as 127.0.0.1:8080", param_hint="--listen")
    ends = SignalEvent()
    on_end_signal(ends.set)
    with contextlib.ExitStack() as opened:
        looks = [opened.enter_context(Looks(one)) for one in dict.fromkeys(store)]
        try:
            server = PageServer(looks, host, int(port))
        except OSError as error:
            raise PageError(f"can't listen on {listen}: {error.strerror}; another port, or 0 for a free one") from error
        with server:
            serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="page")
            serving.start()
            try:
                typer.echo(f"{server.url}\nCtrl-C ends it")
                only_says()  # from here on: nobody could open a page whose address was not printed
                ends.wait()
            finally:
                server.shutdown()
                serving.join()
