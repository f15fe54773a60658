package commitlog.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A loaded frame, or a table of a catalog. The JVM reads it. */
final class LogTable implements Table, SupportsRead {
    private final StructType schema;
    private final TableOptions options;
    private final PlannedBatch planned;
    /** All options of a query that has some of its own → the table that it reads. */
    private final Map<CaseInsensitiveStringMap, SupportsRead> ofQueries =
        new HashMap<CaseInsensitiveStringMap, SupportsRead>();

    LogTable(StructType schema, TableOptions options, PlannedBatch planned) {
        this.schema = schema;
        this.options = options;
        this.planned = planned;
    }

    public String name() {
        return Provider.NAME + " (read by the JVM)";
    }

    @SuppressWarnings("deprecation")
    public StructType schema() {
        return this.schema;
    }

    public Map<String, String> properties() {
        return this.options.properties;
    }

    public Set<TableCapability> capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap query) {
        CaseInsensitiveStringMap all = this.options.with(query);
        if (all.equals(new CaseInsensitiveStringMap(this.options.values))) {
            return new LogScanBuilder(this.planned, this.schema);
        }
        return this.ofQuery(all).newScanBuilder(all);
    }

    /** The table with a query's own options: `spark.read.option(…).table(…)`, or SQL's `WITH (…)`. */
    synchronized SupportsRead ofQuery(CaseInsensitiveStringMap all) {
        SupportsRead found = (SupportsRead) this.ofQueries.get(all);
        if (found == null) {
            found = (SupportsRead) new Provider().getTable(this.schema, new Transform[0], all.asCaseSensitiveMap());
            this.ofQueries.put(all, found);
        }
        return found;
    }
}
