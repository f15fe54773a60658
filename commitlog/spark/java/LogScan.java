package commitlog.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** One scan of a frame, with the columns that a query needs. */
final class LogScan implements Scan, Batch {
    static final int NO_LIMIT = Integer.MAX_VALUE;

    private final PlannedBatch planned;
    private final StructType wanted;
    private final Predicate[] pushed;
    private final TimeFilter times;
    private final int limit;
    private LogStream stream;

    /** A limit of NO_LIMIT is none. */
    LogScan(PlannedBatch planned, StructType wanted, Predicate[] pushed, TimeFilter times, int limit) {
        this.planned = planned;
        this.wanted = wanted;
        this.pushed = pushed;
        this.times = times;
        this.limit = limit;
    }

    public StructType readSchema() {
        return this.wanted;
    }

    public String description() {
        return Provider.NAME + " (read by the JVM) PushedFilters: " + Arrays.toString(this.pushed)
            + (this.times.isGiven() ? " Times: " + this.times : "")
            + (this.limit == NO_LIMIT ? "" : " Limit: " + this.limit);
    }

    /** It is known to have columns, or rows. Else Spark would plan its tasks to find out, also for `explain`. */
    public Scan.ColumnarSupportMode columnarSupportMode() {
        boolean isInRows = this.planned.json != null || (this.stream != null && this.stream.isRealTime());
        return isInRows ? Scan.ColumnarSupportMode.UNSUPPORTED : Scan.ColumnarSupportMode.SUPPORTED;
    }

    /** Equal scans of one frame have the same rows, so that Spark reads them once. */
    public boolean equals(Object other) {
        return other instanceof LogScan && ((LogScan) other).planned == this.planned
            && ((LogScan) other).wanted.equals(this.wanted) && Arrays.equals(((LogScan) other).pushed, this.pushed)
            && ((LogScan) other).times.toString().equals(this.times.toString()) && ((LogScan) other).limit == this.limit;
    }

    public int hashCode() {
        return 31 * System.identityHashCode(this.planned) + this.wanted.hashCode();
    }

    /**
     * What Spark's UI shows of a scan; nothing where its own thread does not see the jar.
     *
     * That is so where a session has taken the jar while it ran, as with Connect. Spark would log a
     * stack trace at each query.
     */
    public CustomMetric[] supportedCustomMetrics() {
        if (!JarClasses.areSeenBySpark()) {
            return new CustomMetric[0];
        }
        return new CustomMetric[] {new MessagesMetric(), new BytesMetric(), new PythonRowsMetric()};
    }

    public Batch toBatch() {
        return this;
    }

    /** A stream is of all columns: Spark prunes none of it. */
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        this.stream = new LogStream(this.planned.options, this.wanted, this.planned.json);
        return this.stream;
    }

    public InputPartition[] planInputPartitions() {
        RowFilter[] filters = this.filters();
        List<TaskSlices> kept = new ArrayList<TaskSlices>();
        TaskSlices[] tasks = this.planned.tasks();
        long missing = this.limit;
        for (int i = 0; i < tasks.length && missing > 0; i++) {
            TaskSlices cut = tasks[i].cut(filters);
            if (cut != null) {
                kept.add(cut);
                missing -= this.planned.plan().isComplete && this.limit != NO_LIMIT ? cut.messages(filters) : 0;
            }
        }
        TaskSlices[] cut = (TaskSlices[]) kept.toArray(new TaskSlices[0]);
        return this.times.isGiven() ? this.times.narrowed(cut, this.planned) : cut;
    }

    private RowFilter[] filters() {
        RowFilter[] filters = new RowFilter[this.pushed.length];
        for (int i = 0; i < filters.length; i++) {
            filters[i] = RowFilter.of(this.pushed[i], this.planned.prefix);
        }
        return filters;
    }

    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(this.planned.plan(), this.filters(), this.planned.json, this.wanted);
    }
}
