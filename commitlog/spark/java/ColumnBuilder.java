package commitlog.spark;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes the columns of checked records that a query wants, and no others. */
final class ColumnBuilder implements BatchMaker {
    private static final long MS_MOST = Long.MAX_VALUE / 1000;
    private static final int LOG_APPEND_TIME = 1;
    private static final byte[] HEX = "0123456789ABCDEF".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] KEYS = "KEYS".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] BYTES_KEY = "__KEY_BASE64".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] TAGS = "TAGS".getBytes(StandardCharsets.US_ASCII);

    private final StructType wanted;
    private final Set<String> reservedNames;
    private final byte[] reservedPrefix;
    private CheckedRecords records;
    private boolean isDone = true;

    /** Properties with a reserved name are no headers. */
    ColumnBuilder(StructType wanted, String[] reservedNames, String reservedPrefix) {
        this.wanted = wanted;
        this.reservedNames = new HashSet<String>(Arrays.asList(reservedNames));
        this.reservedPrefix = reservedPrefix.getBytes(StandardCharsets.UTF_8);
    }

    public void begin(CheckedRecords found) {
        this.records = found;
        this.isDone = false;
    }

    public long nextOffset() {
        return this.isDone ? this.records.nextOffset() : this.records.firstOffset;
    }

    public ColumnarBatch next() throws Unreadable {
        if (this.isDone) {
            return null;
        }
        ColumnVector[] columns = new ColumnVector[this.wanted.fields().length];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = this.column(this.records, this.wanted.fields()[i].name(), this.wanted.fields()[i].dataType());
        }
        this.isDone = true;
        return new ColumnarBatch(columns, this.records.count);
    }

    private ColumnVector column(CheckedRecords records, String name, DataType type) throws Unreadable {
        switch (name) {
            case "key":
                return keys(records);
            case "value":
                return values(records);
            case "topic":
                return new SameTextVector(records.topic);
            case "headers":
                return this.headers(records, type);
            case "tags":
                return tags(records);
            case "properties":
                return properties(records, type);
            case "messageId":
                return messageIds(records);
            default:
                return new NumberVector(type, records, name);
        }
    }

    static long number(CheckedRecords records, String name, int row) {
        switch (name) {
            case "partition":
                return records.lane;
            case "offset":
                return records.firstOffset + row;
            case "timestamp":
                return microseconds(records.storeTimestamp(row));
            case "timestampType":
                return LOG_APPEND_TIME;
            case "bornTimestamp":
                return microseconds(records.bornTimestamp(row));
            case "physicalOffset":
                return records.physicalOffset(row);
            case "size":
                return records.size[row];
            case "sysFlag":
                return records.sysFlag[row];
            default:
                throw new IllegalStateException("no column " + name);
        }
    }

    /** A client may have sent any number, so it is cut to what fits. */
    static long microseconds(long ms) {
        return Math.max(-MS_MOST, Math.min(ms, MS_MOST)) * 1000;
    }

    private static BytesVector values(CheckedRecords records) throws Unreadable {
        BytesVector made = new BytesVector(DataTypes.BinaryType, records.bytes, records.bodyAt, records.bodyBytes);
        BodyUnpacker unpacker = null;
        try {
            for (int row = 0; row < records.count; row++) {
                if ((records.sysFlag[row] & RecordLayout.COMPRESSED) != 0) {
                    unpacker = unpacker == null ? new BodyUnpacker() : unpacker;
                    made.set(row, unpacker.unpacked(
                        records.bytes, records.bodyAt[row], records.bodyBytes[row], records.sysFlag[row]));
                }
            }
        } finally {
            if (unpacker != null) {
                unpacker.close();
            }
        }
        return made;
    }

    /** Keys. One that the record has in base64 is decoded. */
    static BytesVector keys(CheckedRecords records) throws Unreadable {
        BytesVector made = new BytesVector(DataTypes.BinaryType, records.bytes, records.count);
        Properties pairs = new Properties(records.bytes);
        for (int row = 0; row < records.count; row++) {
            made.setNull(row);
            byte[] coded = null;
            pairs.begin(records.propertiesAt[row], records.propertiesEnd(row));
            while (pairs.advance()) {
                if (pairs.isNamed(KEYS)) {
                    made.set(row, pairs.valueAt(), pairs.valueEnd);
                } else if (pairs.isNamed(BYTES_KEY)) {
                    coded = pairs.value();
                }
            }
            if (coded != null) {
                made.set(row, decoded(coded));
            }
        }
        return made;
    }

    /** The bytes of base64 as our producers write it. Python knows what becomes of any other text. */
    private static byte[] decoded(byte[] text) throws Unreadable {
        try {
            byte[] found = Base64.getDecoder().decode(text);
            if (Arrays.equals(Base64.getEncoder().encode(found), text)) {
                return found;
            }
        } catch (IllegalArgumentException notBase64) {
            throw new Unreadable("a key that is not base64");
        }
        throw new Unreadable("a key that nobody of ours has written");
    }

    private static BytesVector tags(CheckedRecords records) {
        BytesVector made = new BytesVector(DataTypes.StringType, records.bytes, records.count);
        Properties pairs = new Properties(records.bytes);
        for (int row = 0; row < records.count; row++) {
            made.setNull(row);
            pairs.begin(records.propertiesAt[row], records.propertiesEnd(row));
            while (pairs.advance()) {
                if (pairs.isNamed(TAGS)) {
                    made.set(row, pairs.valueAt(), pairs.valueEnd);
                }
            }
        }
        return made;
    }

    private PairsVector headers(CheckedRecords records, DataType type) {
        PairColumns found = new PairColumns(records, DataTypes.BinaryType);
        Properties pairs = new Properties(records.bytes);
        for (int row = 0; row < records.count; row++) {
            pairs.begin(records.propertiesAt[row], records.propertiesEnd(row));
            while (pairs.advance()) {
                if (!this.isReserved(pairs)) {
                    found.add(pairs);
                }
            }
            found.endRow(row);
        }
        ColumnVector structs = new PairVector(((ArrayType) type).elementType(), found.names(), found.values());
        return new PairsVector(type, found.ends, found.names(), found.values(), structs);
    }

    private boolean isReserved(Properties pairs) {
        String name = new String(pairs.name(), StandardCharsets.ISO_8859_1);
        return this.reservedNames.contains(name) || pairs.begins(this.reservedPrefix);
    }

    private static PairsVector properties(CheckedRecords records, DataType type) {
        PairColumns found = new PairColumns(records, DataTypes.StringType);
        Properties pairs = new Properties(records.bytes);
        for (int row = 0; row < records.count; row++) {
            pairs.begin(records.propertiesAt[row], records.propertiesEnd(row));
            while (pairs.advance()) {
                found.add(pairs);
            }
            found.endRow(row);
        }
        return new PairsVector(type, found.ends, found.names(), found.values(), null);
    }

    /** RocketMQ's offset message ids: the store's host and the physical offset as upper-case hex. */
    private static BytesVector messageIds(CheckedRecords records) {
        BytesVector made = new BytesVector(DataTypes.StringType, records.bytes, records.count);
        for (int row = 0; row < records.count; row++) {
            int host = records.storeHostBytes(row);
            byte[] digits = new byte[2 * (host + Long.BYTES)];
            for (int i = 0; i < host + Long.BYTES; i++) {
                int at = i < host ? records.storeHostAt(row) + i : records.physicalOffsetAt(row) + i - host;
                digits[2 * i] = HEX[(records.bytes.get(at) >> 4) & 15];
                digits[2 * i + 1] = HEX[records.bytes.get(at) & 15];
            }
            made.set(row, digits);
        }
        return made;
    }
}
