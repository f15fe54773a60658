"""Stores that another machine serves: STORE as a URL, and the options that go with one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commitlog.cli.arguments import STORE_VARIABLE

if TYPE_CHECKING:
    from commitlog.planning.address import Address

StoreOrUrlArgument = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Directory of the store, or URL of a served one: commitlog+tls://HOST:PORT/STORE.",
        envvar=STORE_VARIABLE,
    ),
]
TokenFileOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="With a URL: the file that holds your token.")
]
CaFileOption = Annotated[
    Path | None, typer.Option("--ca-file", metavar="FILE.pem", help="With a URL: who signs the server's certificate.")
]
CertFileOption = Annotated[
    Path | None, typer.Option("--cert-file", metavar="FILE.pem", help="With a URL: your own certificate.")
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE.pem", help="With a URL: the key of your certificate.")
]


def served_address(
    store: str, token_file: Path | None, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> Address | None:
    """The address that STORE is, with its credentials; None for a directory.

    Raises IllegalArgument.
    """
    files = (token_file, ca_file, cert_file, key_file)
    if "://" not in store and not any(files):
        return None  # PyArrow is not needed
    from commitlog.planning.address import OF_COMMAND_LINE, Credentials, address_of

    credentials = Credentials(None, *(None if file is None else str(file) for file in files))
    return address_of(store, credentials, OF_COMMAND_LINE)
