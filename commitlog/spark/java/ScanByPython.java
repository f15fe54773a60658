package commitlog.spark;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** A scan of the Python source. `explain` of a stream shows its description, and so who reads, and why. */
final class ScanByPython implements Scan {
    private final Scan python;
    private final String description;
    private final String reason;

    /** `reason` says why the JVM does not read. */
    ScanByPython(Scan python, String description, String reason) {
        this.python = python;
        this.description = description;
        this.reason = reason;
    }

    public String description() {
        return this.description;
    }

    public StructType readSchema() {
        return this.python.readSchema();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
        return this.python.columnarSupportMode();
    }

    public Batch toBatch() {
        return this.python.toBatch();
    }

    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return new StreamByPython(this.python.toMicroBatchStream(checkpoint), this.reason);
    }

    public CustomMetric[] supportedCustomMetrics() {
        return this.python.supportedCustomMetrics();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
        return this.python.reportDriverMetrics();
    }
}
