package commitlog.spark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A topic as a table of a catalog: a source, and a sink unless it is typed. */
final class TopicTable implements SupportsRead, SupportsWrite {
    private final String name;
    private final SupportsRead source;
    private final SupportsWrite sink;

    /** `sink` is null for a typed topic: Spark writes bytes only. */
    TopicTable(String name, SupportsRead source, SupportsWrite sink) {
        this.name = name;
        this.source = source;
        this.sink = sink;
    }

    public String name() {
        return this.name;
    }

    @SuppressWarnings("deprecation")
    public StructType schema() {
        return this.source.schema();
    }

    public Map<String, String> properties() {
        return this.source.properties();
    }

    /** A topic takes other columns than it gives: a value, a key, headers. Its sink checks them. */
    public Set<TableCapability> capabilities() {
        Set<TableCapability> all = EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
        if (this.sink != null) {
            all.add(TableCapability.BATCH_WRITE);
            all.add(TableCapability.STREAMING_WRITE);
            all.add(TableCapability.ACCEPT_ANY_SCHEMA);
        }
        return all;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap query) {
        return this.source.newScanBuilder(query);
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo write) {
        return this.sink.newWriteBuilder(write);
    }
}
