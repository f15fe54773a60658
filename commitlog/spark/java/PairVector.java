package commitlog.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;

/** Structs of a name and a value. */
final class PairVector extends ReadOnlyVector {
    private final ColumnVector name;
    private final ColumnVector value;

    PairVector(DataType type, ColumnVector name, ColumnVector value) {
        super(type);
        this.name = name;
        this.value = value;
    }

    public ColumnVector getChild(int ordinal) {
        return ordinal == 0 ? this.name : this.value;
    }
}
