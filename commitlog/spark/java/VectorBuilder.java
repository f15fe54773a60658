package commitlog.spark;

import java.math.BigInteger;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Makes vectors over a message. All that Arrow's full validation refuses is Unreadable.
 *
 * So no vector leads out of the message, whatever is in it, and no text is other than UTF-8.
 */
final class VectorBuilder {
    private static final long NOT_ASCII = 0x8080808080808080L;

    private final ArrowMessage message;

    VectorBuilder(ArrowMessage message) {
        this.message = message;
    }

    /** A column of the message, which is read as the wanted type. It `fits`. */
    NullableVector column(StoredColumn column, DataType wanted) throws Unreadable {
        return this.vector(column, wanted, this.message.rows);
    }

    private NullableVector vector(StoredColumn column, DataType wanted, int rows) throws Unreadable {
        if (this.message.rowsOf(column) != rows) {
            throw new Unreadable("a column with another number of rows");
        }
        DataType type = column.type;
        if (type instanceof StringType || type instanceof BinaryType) {
            return this.texts(column, wanted, rows);
        }
        if (type instanceof ArrayType || type instanceof MapType) {
            return this.lists(column, wanted, rows);
        }
        if (type instanceof StructType) {
            return this.structs(column, wanted, rows);
        }
        Validity validity = this.validity(column, rows);
        int at = this.message.placeOf(column, 1, column.valueBytes(rows));
        if (type instanceof DecimalType) {
            DecimalVector made = new DecimalVector(wanted, validity, at, ((DecimalType) type).scale());
            checkDigits(made, rows, ((DecimalType) type).precision());
            return made;
        }
        return new FixedVector(wanted, validity, at, type.defaultSize());
    }

    private Validity validity(StoredColumn column, int rows) throws Unreadable {
        int nulls = this.message.nullsOf(column);
        if (nulls == 0) { // then Arrow has no need of the buffer
            return new Validity(this.message.bytes, 0, 0);
        }
        Validity made = new Validity(this.message.bytes, this.message.placeOf(column, 0, (rows + 7L) / 8), nulls);
        if (made.count(rows) != nulls) {
            throw new Unreadable("a column with another number of nulls");
        }
        return made;
    }

    private NullableVector texts(StoredColumn column, DataType wanted, int rows) throws Unreadable {
        Validity validity = this.validity(column, rows);
        int offsetsAt = this.offsets(column, rows, this.message.sizeOf(column, 2));
        int bytesAt = this.message.placeOf(column, 2, 0);
        TextVector made = new TextVector(wanted, validity, offsetsAt, bytesAt);
        if (column.type instanceof StringType && rows > 0 && !this.isAscii(made.start(0), made.start(rows))) {
            for (int row = 0; row < rows; row++) {
                UTF8String text = made.getUTF8String(row);
                if (text != null && !text.isValid()) {
                    throw new Unreadable("a text that is not UTF-8");
                }
            }
        }
        return made;
    }

    private boolean isAscii(int start, int end) {
        long all = 0;
        int at = start;
        for (; at + Long.BYTES <= end; at += Long.BYTES) {
            all |= this.message.bytes.getLong(at);
        }
        for (; at < end; at++) {
            all |= this.message.bytes.get(at);
        }
        return (all & NOT_ASCII) == 0;
    }

    /** Where the offsets are. They ascend, from 0 at least to `most` at most. */
    private int offsets(StoredColumn column, int rows, int most) throws Unreadable {
        if (rows == 0 && this.message.sizeOf(column, 1) == 0) { // Arrow may have no offset at all then
            return this.message.placeOf(column, 1, 0);
        }
        int at = this.message.placeOf(column, 1, Integer.BYTES * (rows + 1L));
        int first = this.message.bytes.getInt(at);
        int before = first;
        int falls = 0;
        for (int row = 1; row <= rows; row++) {
            int next = this.message.bytes.getInt(at + Integer.BYTES * row);
            falls |= next < before ? 1 : 0;
            before = next;
        }
        if (first < 0 || falls != 0 || before > most) {
            throw new Unreadable("offsets that do not ascend within their column");
        }
        return at;
    }

    private NullableVector lists(StoredColumn column, DataType wanted, int rows) throws Unreadable {
        StoredColumn item = column.nested[0];
        int items = this.message.rowsOf(item);
        Validity validity = this.validity(column, rows);
        int offsetsAt = this.offsets(column, rows, items);
        if (column.type instanceof ArrayType) {
            DataType itemType = ((ArrayType) wanted).elementType();
            return new ListVector(wanted, validity, offsetsAt, this.vector(item, itemType, items), null);
        }
        NullableVector keys = this.vector(item.nested[0], ((MapType) wanted).keyType(), items);
        if (this.message.nullsOf(item) > 0 || keys.hasNull()) {
            throw new Unreadable("a map with a pair or a key that is null");
        }
        NullableVector values = this.vector(item.nested[1], ((MapType) wanted).valueType(), items);
        return new ListVector(wanted, validity, offsetsAt, keys, values);
    }

    private NullableVector structs(StoredColumn column, DataType wanted, int rows) throws Unreadable {
        StructField[] fields = ((StructType) wanted).fields();
        NullableVector[] made = new NullableVector[fields.length];
        for (int i = 0; i < made.length; i++) {
            made[i] = this.vector(column.nested[i], fields[i].dataType(), rows);
        }
        return new StructVector(wanted, this.validity(column, rows), made);
    }

    private static void checkDigits(DecimalVector decimals, int rows, int precision) throws Unreadable {
        BigInteger limit = BigInteger.TEN.pow(precision);
        for (int row = 0; row < rows; row++) {
            if (!decimals.isNullAt(row) && !decimals.isBelow(row, precision, limit)) {
                throw new Unreadable("a decimal with too many digits");
            }
        }
    }
}
