package commitlog.spark;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.unsafe.Platform;

/**
 * A stream of the Python source, which refuses Real-Time Mode.
 *
 * Spark would refuse it too, but name a class of its own, and no way out.
 */
final class StreamByPython implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode {
    private final SupportsTriggerAvailableNow python;
    private final String reason;

    /** `reason` says why the JVM does not read. */
    StreamByPython(MicroBatchStream python, String reason) {
        this.python = (SupportsTriggerAvailableNow) python;
        this.reason = reason;
    }

    public void prepareForRealTimeMode() {
        CommitLogException refused = new CommitLogException("OptionError",
            "trigger(realTime=...) is for what Spark's JVM reads, and Python reads this (" + this.reason
                + "); take .trigger(processingTime='0 seconds'), which looks again at once");
        Platform.throwException(refused.ofStream("prepareForRealTimeMode"));
    }

    public InputPartition[] planInputPartitions(Offset start) {
        throw new UnsupportedOperationException("it is refused before");
    }

    public Offset mergeOffsets(PartitionOffset[] tasks) {
        throw new UnsupportedOperationException("it is refused before");
    }

    // ---- what the Python source does -------------------------------------------------------------

    private MicroBatchStream stream() {
        return (MicroBatchStream) this.python;
    }

    public void prepareForTriggerAvailableNow() {
        this.python.prepareForTriggerAvailableNow();
    }

    public ReadLimit getDefaultReadLimit() {
        return this.python.getDefaultReadLimit();
    }

    public Offset initialOffset() {
        return this.python.initialOffset();
    }

    public Offset deserializeOffset(String text) {
        return this.python.deserializeOffset(text);
    }

    public Offset latestOffset() {
        return this.stream().latestOffset();
    }

    public Offset latestOffset(Offset start, ReadLimit limit) {
        return this.python.latestOffset(start, limit);
    }

    public Offset reportLatestOffset() {
        return this.python.reportLatestOffset();
    }

    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        return this.stream().planInputPartitions(start, end);
    }

    public PartitionReaderFactory createReaderFactory() {
        return this.stream().createReaderFactory();
    }

    public void commit(Offset end) {
        this.python.commit(end);
    }

    public void stop() {
        this.python.stop();
    }

    public String toString() {
        return this.python.toString();
    }
}
