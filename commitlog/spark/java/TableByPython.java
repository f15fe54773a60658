package commitlog.spark;

import java.util.Map;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The table of the Python source. `explain` shows by its name why the JVM does not read it.
 *
 * Spark gives a source in Python the options of a query only. So those of the table are added here.
 */
final class TableByPython extends PythonTable {
    private final PythonDataSourceV2 source;
    private final StructType schema;
    private final TableOptions options;
    private final String reason;

    /** `reason` is empty if the JVM reads the table, or if it is written. */
    TableByPython(PythonDataSourceV2 source, StructType schema, TableOptions options, String reason) {
        super(source, Provider.NAME, schema);
        this.source = source;
        this.schema = schema;
        this.options = options;
        this.reason = reason;
    }

    public String name() {
        return this.reason.isEmpty() ? Provider.NAME : Provider.NAME + " (read by Python: " + this.reason + ")";
    }

    public Map<String, String> properties() {
        return this.options.properties;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap query) {
        final String description = this.name();
        final String why = this.reason;
        return new PythonScanBuilder(this.source, Provider.NAME, this.schema, this.options.with(query)) {
            public Scan build() {
                return new ScanByPython(super.build(), description, why);
            }
        };
    }

    public WriteBuilder newWriteBuilder(final LogicalWriteInfo write) {
        final CaseInsensitiveStringMap all = this.options.with(write.options());
        return super.newWriteBuilder(new LogicalWriteInfo() {
            public CaseInsensitiveStringMap options() {
                return all;
            }

            public String queryId() {
                return write.queryId();
            }

            public StructType schema() {
                return write.schema();
            }
        });
    }
}
