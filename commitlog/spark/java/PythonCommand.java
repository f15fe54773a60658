package commitlog.spark;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.SparkEnv;

/** How a module of the package is started in a Python process of its own. */
final class PythonCommand {
    private PythonCommand() {
    }

    /** The interpreter that Spark's Python workers have. */
    static String interpreter() {
        SparkEnv environment = SparkEnv.get();
        String set = environment == null ? null : environment.conf().get("spark.pyspark.python", null);
        String given = set == null ? System.getenv("PYSPARK_PYTHON") : set;
        return given == null ? "python3" : given;
    }

    /** Starts a module. Its errors go to the terminal. It ends at the end of its standard input. */
    static Process start(String interpreter, String module) throws CommitLogException {
        List<String> command = new ArrayList<String>();
        command.add(interpreter);
        command.add("-P");
        command.add("-m");
        command.add(module);
        ProcessBuilder process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT);
        if (!module.equals(RowsProcess.MODULE)) { // a user's function may need numpy's threads; our modules do not
            process.environment().putIfAbsent("OPENBLAS_NUM_THREADS", "1");
        }
        try {
            return process.start();
        } catch (IOException error) {
            throw new CommitLogException("PythonNotFound", interpreter + " can't be started (" + error.getMessage()
                + "), and Spark's JVM needs it to read a store: set PYSPARK_PYTHON to the interpreter that has commitlog");
        }
    }
}
