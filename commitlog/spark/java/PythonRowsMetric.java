package commitlog.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** How many rows Python has read, because something was not as good records are. */
public final class PythonRowsMetric extends CustomSumMetric {
    static final String NAME = "pythonRows";

    public String name() {
        return NAME;
    }

    public String description() {
        return "rows read by Python";
    }
}
