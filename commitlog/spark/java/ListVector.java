package commitlog.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;

/** Lists, or maps: a row has a range of the items, or of the keys and the values. */
final class ListVector extends NullableVector {
    private final int offsetsAt;
    private final ColumnVector items;
    private final ColumnVector values;

    /** `items` are the keys of maps. Lists have no `values`. */
    ListVector(DataType type, Validity validity, int offsetsAt, ColumnVector items, ColumnVector values) {
        super(type, validity);
        this.offsetsAt = offsetsAt;
        this.items = items;
        this.values = values;
    }

    private int start(int row) {
        return this.bytes.getInt(this.offsetsAt + Integer.BYTES * row);
    }

    private int length(int row) {
        return this.start(row + 1) - this.start(row);
    }

    public ColumnarArray getArray(int row) {
        return this.isNullAt(row) ? null : new ColumnarArray(this.items, this.start(row), this.length(row));
    }

    public ColumnarMap getMap(int row) {
        return this.isNullAt(row) ? null
            : new ColumnarMap(this.items, this.values, this.start(row), this.length(row));
    }

    public ColumnVector getChild(int ordinal) {
        return ordinal == 0 ? this.items : this.values;
    }
}
