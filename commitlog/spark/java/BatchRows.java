package commitlog.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The rows of batches, one by one. A row holds until the next one. */
final class BatchRows implements PartitionReader {
    private final PartitionReader batches;
    private ColumnarBatch batch;
    private int next;
    private InternalRow row;

    BatchRows(PartitionReader batches) {
        this.batches = batches;
    }

    public boolean next() throws IOException {
        while (this.batch == null || this.next == this.batch.numRows()) {
            this.batch = null;
            if (!this.batches.next()) {
                return false;
            }
            this.batch = (ColumnarBatch) this.batches.get();
            this.next = 0;
        }
        this.row = this.batch.getRow(this.next++);
        return true;
    }

    public Object get() {
        return this.row;
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return this.batches.currentMetricsValues();
    }

    public void close() throws IOException {
        this.batches.close();
    }
}
