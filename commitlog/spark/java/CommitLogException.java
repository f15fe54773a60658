package commitlog.spark;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.QueryContext;
import org.apache.spark.api.python.PythonException;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.sql.errors.QueryExecutionErrors;
import scala.jdk.javaapi.CollectionConverters;

/**
 * An error of commitlog/errors.py, by its name and with its words.
 *
 * Users get it in the form that Spark gives to an error of a source in Python.
 */
final class CommitLogException extends IOException {
    private static final long serialVersionUID = 1;

    final String name;

    CommitLogException(String name, String words) {
        super("commitlog.errors." + name + ": " + words);
        this.name = name;
    }

    /** The error of a task. */
    PythonException ofTask() {
        Map<String, String> texts = new HashMap<String, String>();
        texts.put("msg", "An exception was thrown from the Python worker");
        texts.put("traceback", this.getMessage() + "\n");
        PythonException made = new PythonException(
            "PYTHON_EXCEPTION",
            (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(texts)),
            null, new QueryContext[0], "");
        made.setStackTrace(new StackTraceElement[0]); // the words say what is wrong
        return made;
    }

    /** The error of a plan. */
    Throwable ofPlan() {
        return QueryCompilationErrors.pythonDataSourceError("generate", "read partitions", this.getMessage() + "\n");
    }

    /** The error of a stream, in what Spark asked it to do. */
    Throwable ofStream(String act) {
        return QueryExecutionErrors.pythonStreamingDataSourceRuntimeError(act, this.getMessage() + "\n");
    }

    /** The error of a frame that is made. */
    Throwable ofFrame() {
        return QueryCompilationErrors.pythonDataSourceError("create", "instance", this.getMessage() + "\n");
    }
}
