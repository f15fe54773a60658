package commitlog.spark;

import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the readers of tasks, where the tasks are. */
final class ReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1;

    private final ReadPlan plan;
    private final RowFilter[] filters;
    private final JsonValues json;
    private final StructType wanted;

    /** `json` is null if values are not parsed. */
    ReaderFactory(ReadPlan plan, RowFilter[] filters, JsonValues json, StructType wanted) {
        this.plan = plan;
        this.filters = filters;
        this.json = json;
        this.wanted = wanted;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return this.json == null && partition instanceof TaskSlices;
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new TaskReader(this.plan, ((TaskSlices) partition).slices, this.filters, this.wanted);
    }

    /** Spark's parser makes rows: columns of them would be one step more. Real-Time Mode takes rows only. */
    public PartitionReader createReader(InputPartition partition) {
        if (partition instanceof FollowingTask) {
            return new RealTimeReader(this.plan, (FollowingTask) partition, this.json, this.wanted);
        }
        StructType columns = JsonReader.columnsOfMessages(this.json, this.wanted);
        return new JsonReader(
            new TaskReader(this.plan, ((TaskSlices) partition).slices, this.filters, columns), this.json, this.wanted);
    }
}
