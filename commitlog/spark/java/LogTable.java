package commitlog.spark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A loaded frame. As a batch the JVM reads it, as a stream Python does. */
final class LogTable implements Table, SupportsRead {
    private final StructType schema;
    private final PlannedBatch planned;
    private final SupportsRead python;

    LogTable(StructType schema, Map<String, String> options, SupportsRead python) {
        this.schema = schema;
        this.planned = new PlannedBatch(options);
        this.python = python;
    }

    public String name() {
        return Provider.NAME + " (read by the JVM)";
    }

    @SuppressWarnings("deprecation")
    public StructType schema() {
        return this.schema;
    }

    public Set<TableCapability> capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new LogScanBuilder(this.planned, this.schema, this.python.newScanBuilder(options));
    }
}
