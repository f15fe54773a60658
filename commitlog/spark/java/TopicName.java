package commitlog.spark;

import org.apache.spark.sql.connector.catalog.Identifier;

/** A topic as the name of a table. `Identifier.of` makes the same, but Janino calls no static method of an interface. */
final class TopicName implements Identifier {
    private final String topic;

    TopicName(String topic) {
        this.topic = topic;
    }

    public String[] namespace() {
        return new String[0];
    }

    public String name() {
        return this.topic;
    }
}
