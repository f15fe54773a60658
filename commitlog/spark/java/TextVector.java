package commitlog.spark;

import java.util.Arrays;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** Texts or bytes. A text lies in the message, and Spark copies the ones that it keeps. */
final class TextVector extends NullableVector {
    private final int offsetsAt;
    private final int bytesAt;

    TextVector(DataType type, Validity validity, int offsetsAt, int bytesAt) {
        super(type, validity);
        this.offsetsAt = offsetsAt;
        this.bytesAt = bytesAt;
    }

    /** Where a row's text begins in the message, and the one of the row before it ends. */
    int start(int row) {
        return this.bytesAt + this.bytes.getInt(this.offsetsAt + Integer.BYTES * row);
    }

    public UTF8String getUTF8String(int row) {
        if (this.isNullAt(row)) {
            return null;
        }
        int start = this.start(row);
        return UTF8String.fromBytes(this.bytes.array(), start, this.start(row + 1) - start);
    }

    public byte[] getBinary(int row) {
        return this.isNullAt(row) ? null : Arrays.copyOfRange(this.bytes.array(), this.start(row), this.start(row + 1));
    }
}
