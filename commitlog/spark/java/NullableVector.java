package commitlog.spark;

import java.nio.ByteBuffer;
import org.apache.spark.sql.types.DataType;

/** A column over the bytes of a message. Its buffers were checked. */
abstract class NullableVector extends ReadOnlyVector {
    final ByteBuffer bytes;
    private final Validity validity;

    NullableVector(DataType type, Validity validity) {
        super(type);
        this.bytes = validity.bytes;
        this.validity = validity;
    }

    public boolean hasNull() {
        return this.validity.nulls > 0;
    }

    public int numNulls() {
        return this.validity.nulls;
    }

    public boolean isNullAt(int row) {
        return this.validity.isNull(row);
    }
}
