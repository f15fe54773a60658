package commitlog.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;

/** Names and values: a list of pairs in each row (null if it is empty), or a map. */
final class PairsVector extends ReadOnlyVector {
    private final int[] ends;
    private final ColumnVector names;
    private final ColumnVector values;
    private final ColumnVector pairs;

    /** `ends` has the end of each row's pairs among all pairs. `pairs` is null for maps. */
    PairsVector(DataType type, int[] ends, ColumnVector names, ColumnVector values, ColumnVector pairs) {
        super(type);
        this.ends = ends;
        this.names = names;
        this.values = values;
        this.pairs = pairs;
    }

    private int start(int row) {
        return row == 0 ? 0 : this.ends[row - 1];
    }

    private int pairsOf(int row) {
        return this.ends[row] - this.start(row);
    }

    public boolean hasNull() {
        return this.numNulls() > 0;
    }

    public int numNulls() {
        int count = 0;
        for (int row = 0; row < this.ends.length; row++) {
            count += this.isNullAt(row) ? 1 : 0;
        }
        return count;
    }

    public boolean isNullAt(int row) {
        return this.pairs != null && this.pairsOf(row) == 0;
    }

    public ColumnarArray getArray(int row) {
        return this.isNullAt(row) ? null : new ColumnarArray(this.pairs, this.start(row), this.pairsOf(row));
    }

    public ColumnarMap getMap(int row) {
        return new ColumnarMap(this.names, this.values, this.start(row), this.pairsOf(row));
    }
}
