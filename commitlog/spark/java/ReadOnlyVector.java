package commitlog.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column of a batch. Its subclasses say what they have; all else is a mistake of the caller's. */
abstract class ReadOnlyVector extends ColumnVector {
    ReadOnlyVector(DataType type) {
        super(type);
    }

    private UnsupportedOperationException hasNone() {
        return new UnsupportedOperationException(this.getClass().getName() + " of " + this.type);
    }

    public void close() {
    }

    public boolean hasNull() {
        return false;
    }

    public int numNulls() {
        return 0;
    }

    public boolean isNullAt(int row) {
        return false;
    }

    public boolean getBoolean(int row) {
        throw this.hasNone();
    }

    public byte getByte(int row) {
        throw this.hasNone();
    }

    public short getShort(int row) {
        throw this.hasNone();
    }

    public int getInt(int row) {
        throw this.hasNone();
    }

    public long getLong(int row) {
        throw this.hasNone();
    }

    public float getFloat(int row) {
        throw this.hasNone();
    }

    public double getDouble(int row) {
        throw this.hasNone();
    }

    public ColumnarArray getArray(int row) {
        throw this.hasNone();
    }

    public ColumnarMap getMap(int row) {
        throw this.hasNone();
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        throw this.hasNone();
    }

    public UTF8String getUTF8String(int row) {
        throw this.hasNone();
    }

    public byte[] getBinary(int row) {
        throw this.hasNone();
    }

    public ColumnVector getChild(int ordinal) {
        throw this.hasNone();
    }
}
