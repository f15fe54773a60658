package commitlog.spark;

import org.apache.spark.sql.connector.read.streaming.PartitionOffset;

/** How far a task of Real-Time Mode has come. Queues that stand where the plan ends may be missing. */
final class TaskPosition implements PartitionOffset {
    private static final long serialVersionUID = 1;

    final QueuePosition[] queues;
    /** The lanes of which messages were read before they were flushed. */
    final LanePosition[] lanes;

    TaskPosition(QueuePosition[] queues, LanePosition[] lanes) {
        this.queues = queues;
        this.lanes = lanes;
    }
}
