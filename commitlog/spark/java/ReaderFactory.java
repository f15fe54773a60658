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
    private final long limit;
    private final StructType wanted;

    ReaderFactory(ReadPlan plan, RowFilter[] filters, long limit, StructType wanted) {
        this.plan = plan;
        this.filters = filters;
        this.limit = limit;
        this.wanted = wanted;
    }

    public boolean supportColumnarReads(InputPartition partition) {
        return true;
    }

    public PartitionReader createColumnarReader(InputPartition partition) {
        return new TaskReader(this.plan, ((TaskSlices) partition).slices, this.filters, this.limit, this.wanted);
    }

    public PartitionReader createReader(InputPartition partition) {
        throw new UnsupportedOperationException("rows are read as columns");
    }
}
