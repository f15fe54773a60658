package commitlog.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** How many bytes of the log these messages have. */
public final class BytesMetric extends CustomSumMetric {
    static final String NAME = "bytes";

    public String name() {
        return NAME;
    }

    public String description() {
        return "bytes read";
    }
}
