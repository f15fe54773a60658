package commitlog.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Makes a row of each value of messages that are read as those of a topic of bytes. */
final class JsonReader implements PartitionReader {
    private static final String[] NAMED_BY = {"topic", "partition", "offset"};
    private static final DataType[] NAMED_BY_TYPES =
        {DataTypes.StringType, DataTypes.IntegerType, DataTypes.LongType};
    private static final int SHOWN_BYTES = 80;

    private final JsonValues json;
    private final StructField[] wanted;
    private final StructType columns;
    private final boolean isParsed;
    private final BatchRows messages;
    /** For each wanted column, its place in a parsed value, or in `columns`. */
    private final int[] places;
    private InternalRow row;

    /** `messages` has batches of the columns that `columnsOfMessages` gives. */
    JsonReader(PartitionReader messages, JsonValues json, StructType wanted) {
        this.messages = new BatchRows(messages);
        this.json = json;
        this.wanted = wanted.fields();
        this.isParsed = json.isParsedFor(wanted);
        this.columns = columnsOfMessages(json, wanted);
        this.places = new int[this.wanted.length];
        for (int i = 0; i < this.places.length; i++) {
            String name = this.wanted[i].name();
            if (!JsonValues.isMetadata(name)) {
                this.places[i] = json.placeOf(name);
            } else if (!isRowNumber(name)) {
                this.places[i] = this.columns.fieldIndex(ofMessage(name));
            }
        }
    }

    /** The columns of messages that the wanted rows are made of. */
    static StructType columnsOfMessages(JsonValues json, StructType wanted) {
        StructType found = new StructType();
        if (json.isParsedFor(wanted)) {
            found = found.add("value", DataTypes.BinaryType);
        }
        for (int i = 0; i < wanted.fields().length; i++) {
            StructField field = wanted.fields()[i];
            if (JsonValues.isMetadata(field.name()) && !isRowNumber(field.name())) {
                found = found.add(ofMessage(field.name()), field.dataType());
            }
        }
        for (int i = 0; i < NAMED_BY.length && json.refusesMalformed; i++) {
            if (found.getFieldIndex(NAMED_BY[i]).isEmpty()) {
                found = found.add(NAMED_BY[i], NAMED_BY_TYPES[i]);
            }
        }
        return found;
    }

    private static String ofMessage(String metadata) {
        return metadata.substring(1);
    }

    /** The number of a row in its message. A value has one row. */
    private static boolean isRowNumber(String name) {
        return name.equals("_row");
    }

    public boolean next() throws IOException {
        this.row = null;
        while (this.row == null) {
            if (!this.messages.next()) {
                return false;
            }
            this.row = this.rowOf((InternalRow) this.messages.get());
        }
        return true;
    }

    /** The row of a message; null if it is left out. */
    private InternalRow rowOf(InternalRow message) {
        InternalRow parsed = null;
        if (this.isParsed) {
            byte[] value = message.getBinary(0);
            parsed = this.json.parsed(value);
            if (parsed != null && !parsed.isNullAt(this.json.placeOfCorrupt())) {
                if (this.json.refusesMalformed) {
                    throw this.malformed(message, value);
                }
                if (this.json.dropsMalformed) {
                    return null;
                }
            }
        }
        Object[] values = new Object[this.wanted.length];
        for (int i = 0; i < values.length; i++) {
            String name = this.wanted[i].name();
            if (isRowNumber(name)) {
                values[i] = Integer.valueOf(0);
                continue;
            }
            InternalRow from = JsonValues.isMetadata(name) ? message : parsed;
            if (from != null && !from.isNullAt(this.places[i])) {
                values[i] = from.get(this.places[i], this.wanted[i].dataType());
            }
        }
        return new GenericInternalRow(values);
    }

    private RuntimeException malformed(InternalRow message, byte[] value) {
        String words = String.format(this.json.malformedWords, new Object[] {
            message.getUTF8String(this.columns.fieldIndex("topic")),
            Integer.valueOf(message.getInt(this.columns.fieldIndex("partition"))),
            Long.valueOf(message.getLong(this.columns.fieldIndex("offset"))),
            shown(value)});
        return new CommitLogException("MalformedValue", words).ofTask();
    }

    /** The first bytes of a value, as Python shows bytes. */
    private static String shown(byte[] value) {
        StringBuilder text = new StringBuilder("b'");
        for (int i = 0; i < value.length && i < SHOWN_BYTES; i++) {
            int one = value[i] & 0xff;
            if (one == '\\' || one == '\'') {
                text.append('\\').append((char) one);
            } else if (one < ' ' || one > '~') {
                text.append(String.format("\\x%02x", new Object[] {Integer.valueOf(one)}));
            } else {
                text.append((char) one);
            }
        }
        return text.append("'").toString();
    }

    public Object get() {
        return this.row;
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return this.messages.currentMetricsValues();
    }

    public void close() throws IOException {
        this.messages.close();
    }
}
