package commitlog.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** Collects the pairs of many records as columns of names and values. */
final class PairColumns {
    /** The end of each row's pairs among all. */
    final int[] ends;
    private final ByteBuffer bytes;
    private final DataType valueType;
    private int count;
    private int[] nameAt = new int[64];
    private int[] nameBytes = new int[64];
    private int[] valueAt = new int[64];
    private int[] valueBytes = new int[64];

    PairColumns(CheckedRecords records, DataType valueType) {
        this.ends = new int[records.count];
        this.bytes = records.bytes;
        this.valueType = valueType;
    }

    void add(Properties pair) {
        if (this.count == this.nameAt.length) {
            this.nameAt = Arrays.copyOf(this.nameAt, 2 * this.count);
            this.nameBytes = Arrays.copyOf(this.nameBytes, 2 * this.count);
            this.valueAt = Arrays.copyOf(this.valueAt, 2 * this.count);
            this.valueBytes = Arrays.copyOf(this.valueBytes, 2 * this.count);
        }
        this.nameAt[this.count] = pair.nameAt;
        this.nameBytes[this.count] = pair.nameEnd - pair.nameAt;
        this.valueAt[this.count] = pair.valueAt();
        this.valueBytes[this.count] = pair.valueEnd - pair.valueAt();
        this.count++;
    }

    void endRow(int row) {
        this.ends[row] = this.count;
    }

    BytesVector names() {
        return new BytesVector(DataTypes.StringType, this.bytes, this.nameAt, this.nameBytes);
    }

    BytesVector values() {
        return new BytesVector(this.valueType, this.bytes, this.valueAt, this.valueBytes);
    }
}
