package commitlog.spark;

import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.types.StructType;

/** Takes from Spark which columns a query needs. */
final class LogScanBuilder implements SupportsPushDownRequiredColumns {
    private final PlannedBatch planned;
    private final ScanBuilder python;
    private StructType wanted;

    LogScanBuilder(PlannedBatch planned, StructType schema, ScanBuilder python) {
        this.planned = planned;
        this.wanted = schema;
        this.python = python;
    }

    public void pruneColumns(StructType required) {
        this.wanted = required;
    }

    public Scan build() {
        return new LogScan(this.planned, this.wanted, this.python);
    }
}
