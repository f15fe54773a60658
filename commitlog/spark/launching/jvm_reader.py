"""Has the JVM of a Spark session read stores itself, instead of by Python workers.

For that the jar of format_jar.py must be on the JVM's class path. A session takes it while it runs.
So nothing depends on how the JVM was started, and the archive of classes stays valid
(class_data.py).

    python -m commitlog.spark.launching.jvm_reader

prints the path of the jar, for sessions that no Python program of ours starts.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commitlog.errors import JarNotUsable, JavaNotFound
from commitlog.spark.launching.format_jar import PROVIDER, built_jar
from commitlog.spark.launching.java import find_java
from commitlog.spark.launching.spark_home import spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "COMMITLOG_SPARK_JAR"
_LOADER = "org.apache.spark.util.MutableURLClassLoader"


def main() -> None:
    """Prints the path of the jar."""
    try:
        print(jar_of_this_machine())
    except (JarNotUsable, JavaNotFound) as error:
        sys.exit(f"{type(error).__name__}: {error}")


def use(spark: SparkSession) -> None:
    """Has the JVM of a running session read stores itself, from the next read on.

    The sessions of `commitlog.spark.session` do so already. All sessions of the same JVM share it;
    with Spark Connect it is the server that reads, for this session only. Raises JarNotUsable.
    """
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        spark.addArtifact(str(jar_of_this_machine()))
        return
    jvm: Any = spark._jvm
    java = jvm.java.lang.System.getProperty
    jar = built_jar(Path(java("java.home")), int(java("java.specification.version")), spark_home())
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(PROVIDER):
        _class_loader(jvm, jar).addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    if not context.isLocal() and jar.name not in context.listJars().mkString(" "):
        context.addJar(str(jar))  # for the executors


def use_if_possible(spark: SparkSession) -> None:
    """Does the same, or warns that Python reads and why. COMMITLOG_SPARK_JAR=off does nothing."""
    if os.environ.get(VARIABLE) == "off":
        return
    try:
        use(spark)
    except JarNotUsable as error:
        warnings.warn(f"Python reads for Spark: {error}; {VARIABLE}=off says this no more", stacklevel=3)


def jar_of_this_machine() -> Path:
    """The jar for the Java and the Spark of a session here. Raises JarNotUsable, JavaNotFound."""
    java = find_java()
    return built_jar(java.runtime, java.version, spark_home())


def _class_loader(jvm: Any, jar: Path) -> Any:
    """The class loader of the whole JVM that takes a jar: all threads' loaders ask it.

    The one of this thread may be above it, and known to this thread only, as after `ADD JAR`.
    """
    kind = jvm.java.lang.Class.forName(_LOADER)
    loader, found = jvm.java.lang.Thread.currentThread().getContextClassLoader(), None
    while loader is not None:
        found = loader if kind.isInstance(loader) else found
        loader = loader.getParent()
    if found is None:
        raise JarNotUsable(f"the JVM of this session takes no jar while it runs: start it with `--jars {jar}`")
    return found


if __name__ == "__main__":
    main()
