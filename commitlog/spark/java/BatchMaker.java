package commitlog.spark;

import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes the rows of checked records, batch by batch. */
interface BatchMaker {
    /** Begins with other records. Those before are done. */
    void begin(CheckedRecords records);

    /** The next batch; null when all records are done. It holds until the next call. */
    ColumnarBatch next() throws Unreadable;

    /** The queue offset of the first record whose rows no batch has had yet. */
    long nextOffset();
}
