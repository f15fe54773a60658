"""The command that starts Spark's Python workers: this Python, and its own PySpark.

Spark puts `pyspark.zip` and py4j's archive first on the PYTHONPATH of its workers. Python keeps no
bytecode of modules in an archive, so each worker process compiles PySpark anew. That takes 0.8 to
1 s of CPU in place of 0.3, in five or six processes of a session. Where this Python has the same
PySpark installed, a script in the user's cache leaves the archives out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import site
import sys
from pathlib import Path

from commitlog.spark.launching.java import cache_directory, write_script

_PLAIN = '#!/bin/sh\nexec {python} "$@"\n'
_WITHOUT_ARCHIVES = """\
#!/bin/sh
# Python for Spark's workers, without Spark's archives on its path: PySpark is installed in this Python, with bytecode.
path=
IFS=:
set -f
for entry in $PYTHONPATH; do
    case $entry in
    {spark}/python/lib/*.zip | {spark}/jars/*.jar) ;;
    *) path=$path${{path:+:}}$entry ;;
    esac
done
export PYTHONPATH="$path"
exec {python} "$@"
"""


def worker_python(spark: Path, *, same_machine: bool) -> str:
    """The value for PYSPARK_PYTHON: the path of this Python, or of a script that starts it.

    `spark` is the home of Spark. On other machines there is no script, so the path is plain there.
    Spark asks a shell whether the command exists, and does not quote it. A path with a space would
    not be found, so a script is used then too.
    """
    python = shlex.quote(sys.executable)
    if same_machine and _is_installed(spark):
        return _script(_WITHOUT_ARCHIVES.format(spark=shlex.quote(str(spark)), python=python))
    return sys.executable if python == sys.executable else _script(_PLAIN.format(python=python))


def _is_installed(spark: Path) -> bool:
    """Whether this Python, started anew, imports the PySpark whose archive is in Spark's home."""
    import pyspark

    package = Path(pyspark.__path__[0])
    found_by_all = [*site.getsitepackages(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    if site.ENABLE_USER_SITE:
        found_by_all.append(site.getusersitepackages())
    try:
        is_this_spark = (spark / "python" / "lib").samefile(package / "python" / "lib")
    except OSError:
        return False  # one of the two has no archive
    return is_this_spark and package.resolve().parent in {Path(entry).resolve() for entry in found_by_all if entry}


def _script(text: str) -> str:
    script = cache_directory() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    write_script(script, text)
    return str(script)
