"""What `ps` and `top` show of a process of the package: its role, and the store that it works for.

Most processes are started as `python -m …` or forked, so their command lines say neither.
"""

from __future__ import annotations

import os

from setproctitle import setproctitle, setthreadtitle


def set_process_title(role: str, *stores: str | os.PathLike[str]) -> None:
    """Makes the command line `commitlog: ROLE STORE…`, and the short name the role.

    `role` is what the process does, such as `committer`; the kernel keeps 15 bytes of the short
    name. `stores` are paths or URLs. A path that is not UTF-8 is shown with question marks. A title
    that does not fit over the old command line and environment is cut.
    """
    title = " ".join([f"commitlog: {role}", *map(str, stores)])
    setproctitle(title.encode(errors="replace").decode())  # this sets the short name to the title's begin
    setthreadtitle(role)
