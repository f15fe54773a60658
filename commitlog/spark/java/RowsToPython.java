package commitlog.spark;

import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.python.streaming.PythonForeachWriter;
import org.apache.spark.sql.types.StructType;

/**
 * Hands the rows of a streaming query to a Python function as they come (commitlog/spark/rows_to_python.py).
 *
 * PySpark's own `foreach` collects rows until its buffer is full, which takes seconds where few come.
 * Only a class of this kind gets Spark's own rows, so nothing is converted before Arrow.
 */
public final class RowsToPython extends PythonForeachWriter {
    private static final long serialVersionUID = 1;

    private final RowsFunction function;
    private transient RowsProcess process;

    /** The function is packed (rows_to_python.py), the zone is the session's. Refuses a type that Arrow has not. */
    public RowsToPython(byte[] packed, StructType columns, String zone) {
        super(null, columns);
        this.function = new RowsFunction(packed, columns, zone);
        this.function.arrowSchema();
    }

    public boolean open(long partition, long epoch) {
        try {
            this.process = IdleProcesses.take(this.function, run());
        } catch (CommitLogException error) {
            throw error.ofTask();
        }
        return true;
    }

    /** What tells a start of a query from any other: Spark names its jobs by it. */
    private static String run() {
        return String.valueOf(TaskContext.get().getLocalProperty("spark.jobGroup.id"));
    }

    public void process(UnsafeRow row) {
        try {
            this.process.add(row.copy());
        } catch (CommitLogException error) {
            throw error.ofTask();
        }
    }

    /** Ends when the function has had all rows. Spark notes a position after that. */
    public void close(Throwable error) {
        if (this.process == null) {
            return;
        }
        RowsProcess used = this.process;
        this.process = null;
        boolean isWhole = false;
        try {
            if (error == null) {
                used.finish();
                isWhole = true;
            }
        } catch (CommitLogException failed) {
            throw failed.ofTask();
        } finally {
            if (isWhole) {
                IdleProcesses.give(used);
            } else {
                used.stop();
            }
        }
    }
}
