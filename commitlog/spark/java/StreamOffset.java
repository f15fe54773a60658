package commitlog.spark;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** An offset of a query, by the text that the checkpoint has (commitlog/spark/checkpoint_offsets.py). */
final class StreamOffset extends Offset {
    private final String text;

    StreamOffset(String text) {
        this.text = text;
    }

    public String json() {
        return this.text;
    }
}
