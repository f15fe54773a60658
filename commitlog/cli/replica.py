"""`commitlog replica DIR`: keeps a copy of a store of another machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import print_lines
from commitlog.cli.end_signals import on_end_signal
from commitlog.cli.output import only_says

ReplicaArgument = Annotated[Path, typer.Argument(readable=False, metavar="DIR", help="Directory of the copy.")]
FromOption = Annotated[
    str, typer.Option("--from", metavar="HOST:PORT", help="The store to follow: its replication.listen.")
]
CertificateOption = Annotated[Path, typer.Option(metavar="FILE.pem", help="This machine's certificate.")]
KeyOption = Annotated[Path, typer.Option(metavar="FILE.pem", help="The key of the certificate.")]
AuthorityOption = Annotated[
    Path, typer.Option(metavar="FILE.pem", help="The authority that has signed the store's certificate.")
]
NameOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="What the store calls this copy; by default this host's name.")
]

VerifyAllOption = Annotated[
    bool, typer.Option("--verify-all", help="Read the whole copy first, each record, to find what it has lost.")
]


def replica(
    directory: ReplicaArgument,
    source: FromOption,
    certificate: CertificateOption,
    key: KeyOption,
    authority: AuthorityOption,
    name: NameOption = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Rename a copy that the store refuses, and begin a new one in its place."),
    ] = False,
    verify_all: VerifyAllOption = False,
) -> None:
    """Keep a copy of a store of another machine up to date.

        commitlog replica dir --from db:4440 --certificate c --key k --authority a

    It goes on with a copy that is there, and connects again by itself. DIR can be read all the
    while. `commitlog promote DIR` makes it a store. Ctrl-C or SIGTERM ends it.
    """
    from commitlog.cli.service_manager import ServiceManager
    from commitlog.replicas.replica import Replica
    from commitlog.replicas.tls import Credentials
    from commitlog.text.lines import printable

    only_says()
    manager = ServiceManager()

    def tell(line: str) -> None:
        print_lines([printable(line)])
        manager.tell(f"STATUS={printable(line)}")

    credentials = Credentials(certificate, key, authority)
    keeper = Replica(directory, source, credentials, replica_name(name), again=again, verify_all=verify_all, tell=tell)
    on_end_signal(keeper.stop)
    print_lines([f"replica of {source} in {directory}; Ctrl-C ends it"])
    manager.tell("READY=1")
    keeper.run()
    manager.tell("STOPPING=1")
    typer.echo("stopped; the same command goes on")


def replica_name(given: str | None) -> str:
    """The name of this replica. Raises typer.BadParameter for one that no file may have."""
    from commitlog.disk.replica_files import is_replica_name

    name = given or socket.gethostname()
    if not is_replica_name(name):
        raise typer.BadParameter(
            f"{name!r} is no name: it has letters, digits and . _ : -, at most 100", param_hint="--name"
        )
    return name
