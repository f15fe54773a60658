package commitlog.spark;

import org.apache.spark.sql.types.DataType;

/**
 * Whole numbers, or times in microseconds, looked up in the records.
 *
 * A stream is of all columns. So one that its query does not want costs nothing.
 */
final class NumberVector extends ReadOnlyVector {
    private final CheckedRecords records;
    private final String name;

    NumberVector(DataType type, CheckedRecords records, String name) {
        super(type);
        this.records = records;
        this.name = name;
    }

    public int getInt(int row) {
        return (int) this.getLong(row);
    }

    public long getLong(int row) {
        return ColumnBuilder.number(this.records, this.name, row);
    }
}
