package commitlog.spark;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructType;

/** The table of the Python source. `explain` shows by its name why the JVM does not read it. */
final class ReadByPython extends PythonTable {
    private final String reason;

    ReadByPython(PythonDataSourceV2 source, StructType schema, String reason) {
        super(source, Provider.NAME, schema);
        this.reason = reason;
    }

    public String name() {
        return Provider.NAME + " (read by Python: " + this.reason + ")";
    }
}
