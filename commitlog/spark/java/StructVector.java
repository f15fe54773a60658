package commitlog.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;

/** Structs: a vector for each field. */
final class StructVector extends NullableVector {
    private final ColumnVector[] fields;

    StructVector(DataType type, Validity validity, ColumnVector[] fields) {
        super(type, validity);
        this.fields = fields;
    }

    public ColumnVector getChild(int ordinal) {
        return this.fields[ordinal];
    }
}
