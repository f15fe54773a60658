package commitlog.spark;

import java.nio.ByteBuffer;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** Bytes, or texts that were written as UTF-8: ranges of a buffer, or bytes that a row has for itself. */
final class BytesVector extends ReadOnlyVector {
    private static final int NULL = -1;

    private final ByteBuffer bytes;
    private final int[] at;
    private final int[] length;
    private byte[][] own;
    private boolean hasNull;

    BytesVector(DataType type, ByteBuffer bytes, int[] at, int[] length) {
        super(type);
        this.bytes = bytes;
        this.at = at;
        this.length = length;
    }

    BytesVector(DataType type, ByteBuffer bytes, int rows) {
        this(type, bytes, new int[rows], new int[rows]);
    }

    void setNull(int row) {
        this.length[row] = NULL;
        this.hasNull = true;
    }

    void set(int row, int start, int end) {
        this.at[row] = start;
        this.length[row] = end - start;
    }

    void set(int row, byte[] value) {
        if (this.own == null) {
            this.own = new byte[this.length.length][];
        }
        this.own[row] = value;
        this.length[row] = value.length;
    }

    public boolean hasNull() {
        return this.hasNull;
    }

    public int numNulls() {
        int count = 0;
        for (int row = 0; row < this.length.length; row++) {
            count += this.length[row] == NULL ? 1 : 0;
        }
        return count;
    }

    public boolean isNullAt(int row) {
        return this.length[row] == NULL;
    }

    public byte[] getBinary(int row) {
        if (this.length[row] == NULL) {
            return null;
        }
        if (this.own != null && this.own[row] != null) {
            return this.own[row];
        }
        byte[] value = new byte[this.length[row]];
        this.bytes.get(this.at[row], value, 0, value.length);
        return value;
    }

    public UTF8String getUTF8String(int row) {
        return UTF8String.fromBytes(this.getBinary(row));
    }
}
