package commitlog.spark;

import org.apache.spark.sql.types.DataType;

/** Whole numbers, or times in microseconds. */
final class NumberVector extends ReadOnlyVector {
    final long[] values;

    NumberVector(DataType type, int rows) {
        super(type);
        this.values = new long[rows];
    }

    public int getInt(int row) {
        return (int) this.values[row];
    }

    public long getLong(int row) {
        return this.values[row];
    }
}
