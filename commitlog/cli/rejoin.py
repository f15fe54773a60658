"""`commitlog rejoin OLD`: makes an old primary a replica of the store that was promoted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commitlog.cli.arguments import print_lines
from commitlog.cli.replica import AuthorityOption, CertificateOption, FromOption, KeyOption, NameOption, replica_name
from commitlog.text.lines import for_shell
from commitlog.text.quantities import counted


def rejoin(
    old: Annotated[
        Path, typer.Argument(readable=False, metavar="OLD", help="Directory of the store that was the primary.")
    ],
    source: FromOption,
    certificate: CertificateOption,
    key: KeyOption,
    authority: AuthorityOption,
    name: NameOption = None,
) -> None:
    """Make an old primary a replica of the store that was promoted.

        commitlog rejoin old --from db2:4440 --certificate c --key k --authority a

    What only OLD has goes to the quarantine of each lane, and is counted. Then `commitlog replica
    OLD` with the same options brings it up to date.
    """
    from commitlog.replicas.rejoining import rejoin as make_replica
    from commitlog.replicas.tls import Credentials
    from commitlog.text.lines import printable

    credentials = Credentials(certificate, key, authority)
    made = make_replica(
        old, source, credentials, replica_name(name), lambda line: print_lines([printable(line)], err=True)
    )
    print_lines(
        f"lane {lane.lane}: {counted(lane.messages, 'message')} behind offset {lane.end:,} were only here "
        f"({counted(lane.bytes, 'byte')}): they are in {old}/lanes/{lane.lane}/quarantine"
        for lane in made
    )
    print_lines(
        [
            f"{old} is a replica of {source} now; `commitlog replica {for_shell(old)} --from {source} …` brings it up to date"
        ]
    )
