package commitlog.spark;

import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.unsafe.types.UTF8String;

/** The same text in all rows. */
final class SameTextVector extends ReadOnlyVector {
    private final UTF8String text;

    SameTextVector(byte[] text) {
        super(DataTypes.StringType);
        this.text = UTF8String.fromBytes(text);
    }

    public UTF8String getUTF8String(int row) {
        return this.text;
    }
}
