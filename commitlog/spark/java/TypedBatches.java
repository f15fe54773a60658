package commitlog.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** Makes the rows of a typed topic's messages: a batch for each message. */
final class TypedBatches implements BatchMaker {
    private final StructField[] wanted;
    private final Map<String, MessageLayout> layouts;
    /** For each layout that was met, the column that each wanted one is read from. */
    private final Map<MessageLayout, StoredColumn[]> sources = new HashMap<MessageLayout, StoredColumn[]>();
    private CheckedRecords records;
    private RowHeaders headers;
    private BytesVector keys;
    private int next;
    /** The message of the last batch, in Arrow's order of bytes. */
    private ByteBuffer body = ByteBuffer.allocate(0);

    TypedBatches(ReadPlan plan, StructType wanted) {
        this.wanted = wanted.fields();
        this.layouts = plan.layouts;
    }

    public void begin(CheckedRecords found) {
        this.records = found;
        this.headers = new RowHeaders(found);
        this.keys = null;
        this.next = 0;
    }

    public long nextOffset() {
        return this.records.firstOffset + this.next;
    }

    public ColumnarBatch next() throws Unreadable {
        if (this.records == null || this.next == this.records.count) {
            return null;
        }
        ColumnarBatch made = this.message(this.next);
        this.next++;
        return made;
    }

    private ColumnarBatch message(int number) throws Unreadable {
        if ((this.records.sysFlag[number] & RecordLayout.COMPRESSED) != 0) {
            throw new Unreadable("a compressed value");
        }
        this.headers.read(number);
        String topic = this.records.topicName;
        MessageLayout layout = (MessageLayout) this.layouts.get(ReadPlan.layoutName(topic, this.headers.version));
        if (layout == null) {
            throw new Unreadable("a version of the schema that was not there when the read was planned");
        }
        this.copy(number);
        ArrowMessage message =
            new ArrowMessage(layout, this.body, this.records.bodyBytes[number], this.headers.rows);
        StoredColumn[] from = this.sourcesOf(layout);
        VectorBuilder builder = new VectorBuilder(message);
        ColumnVector[] columns = new ColumnVector[this.wanted.length];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = from[i] == null ? this.constant(number, message.rows, this.wanted[i])
                : builder.column(from[i], this.wanted[i].dataType());
            if (columns[i].hasNull() && !this.wanted[i].nullable()) {
                throw new Unreadable("nulls in a column that is NOT NULL");
            }
        }
        return new ColumnarBatch(columns, message.rows);
    }

    private void copy(int number) {
        int size = this.records.bodyBytes[number];
        if (size > this.body.capacity()) {
            this.body = ByteBuffer.allocate((int) Math.min(size + size / 4L, Integer.MAX_VALUE - 16));
            this.body.order(ByteOrder.LITTLE_ENDIAN);
        }
        this.records.bytes.get(this.records.bodyAt[number], this.body.array(), 0, size);
    }

    private StoredColumn[] sourcesOf(MessageLayout layout) throws Unreadable {
        StoredColumn[] found = (StoredColumn[]) this.sources.get(layout);
        if (found == null) {
            found = new StoredColumn[this.wanted.length];
            for (int i = 0; i < found.length; i++) {
                String name = this.wanted[i].name();
                found[i] = layout.column(name);
                if (found[i] == null && !layout.lacks(name) && !JsonValues.isMetadata(name)) {
                    throw new Unreadable("a column that the topic does not have");
                }
                if (found[i] != null && !found[i].fits(this.wanted[i].dataType())) {
                    throw new Unreadable("a column of another type");
                }
            }
            this.sources.put(layout, found);
        }
        return found;
    }

    /** A column that the message does not have: one that says where its rows are from, or nulls. */
    private ColumnVector constant(int number, int rows, StructField field) throws Unreadable {
        ConstantColumnVector made = new ConstantColumnVector(rows, field.dataType());
        switch (field.name()) {
            case "_topic":
                made.setUtf8String(UTF8String.fromBytes(this.records.topic));
                break;
            case "_partition":
                made.setInt(this.records.lane);
                break;
            case "_offset":
                made.setLong(this.records.firstOffset + number);
                break;
            case "_timestamp":
                made.setLong(ColumnBuilder.microseconds(this.records.storeTimestamp(number)));
                break;
            case "_key":
                this.setKey(made, number);
                break;
            case "_row":
                return new RowNumberVector();
            default:
                made.setNull();
        }
        return made;
    }

    private void setKey(ConstantColumnVector made, int number) throws Unreadable {
        if (this.keys == null) {
            this.keys = ColumnBuilder.keys(this.records);
        }
        byte[] key = this.keys.getBinary(number);
        if (key == null) {
            made.setNull();
        } else {
            made.setBinary(key);
        }
    }
}
