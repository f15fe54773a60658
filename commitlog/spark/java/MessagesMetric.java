package commitlog.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** How many messages Spark's JVM has read. Spark makes one by its name, to show the sum of all tasks. */
public final class MessagesMetric extends CustomSumMetric {
    static final String NAME = "messages";

    public String name() {
        return NAME;
    }

    public String description() {
        return "messages read";
    }
}
