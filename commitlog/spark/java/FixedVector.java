package commitlog.spark;

import org.apache.spark.sql.types.DataType;

/** Numbers, booleans, days or times. They may be narrower in the message than they are given out. */
final class FixedVector extends NullableVector {
    private final int at;
    private final int width;

    FixedVector(DataType type, Validity validity, int at, int width) {
        super(type, validity);
        this.at = at;
        this.width = width;
    }

    public boolean getBoolean(int row) {
        return (this.bytes.get(this.at + (row >> 3)) >> (row & 7) & 1) != 0;
    }

    public byte getByte(int row) {
        return this.bytes.get(this.at + row);
    }

    public short getShort(int row) {
        if (this.width == Short.BYTES) {
            return this.bytes.getShort(this.at + Short.BYTES * row);
        }
        return this.getByte(row);
    }

    public int getInt(int row) {
        if (this.width == Integer.BYTES) {
            return this.bytes.getInt(this.at + Integer.BYTES * row);
        }
        return this.getShort(row);
    }

    public long getLong(int row) {
        if (this.width == Long.BYTES) {
            return this.bytes.getLong(this.at + Long.BYTES * row);
        }
        return this.getInt(row);
    }

    public float getFloat(int row) {
        return this.bytes.getFloat(this.at + Float.BYTES * row);
    }

    public double getDouble(int row) {
        if (this.width == Double.BYTES) {
            return this.bytes.getDouble(this.at + Double.BYTES * row);
        }
        return this.getFloat(row);
    }
}
