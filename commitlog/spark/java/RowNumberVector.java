package commitlog.spark;

import org.apache.spark.sql.types.DataTypes;

/** The number of each row in its message. */
final class RowNumberVector extends ReadOnlyVector {
    RowNumberVector() {
        super(DataTypes.IntegerType);
    }

    public int getInt(int row) {
        return row;
    }
}
