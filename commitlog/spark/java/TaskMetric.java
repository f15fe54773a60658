package commitlog.spark;

import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What one task has of a metric. */
final class TaskMetric implements CustomTaskMetric {
    private final String name;
    private final long value;

    TaskMetric(String name, long value) {
        this.name = name;
        this.value = value;
    }

    public String name() {
        return this.name;
    }

    public long value() {
        return this.value;
    }
}
