package commitlog.spark;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The records of one batch as columns, each checked against its place.
 *
 * A record is good here only if Python's Decoder (commitlog/columns/arrow_columns.py) takes it too.
 * Places are those in `bytes`. No CRC is computed, as in Python.
 */
final class CheckedRecords {
    private static final int TOPIC_BYTES_MOST = 255;
    private static final UTF8String HERE = UTF8String.fromString(".");
    private static final UTF8String ABOVE = UTF8String.fromString("..");
    private static final UTF8String SLASH = UTF8String.fromString("/");
    private static final UTF8String NUL = UTF8String.fromBytes(new byte[1]);

    final int[] at;
    final int[] size;
    final int[] sysFlag;
    final int[] bodyAt;
    final int[] bodyBytes;
    final int[] propertiesAt;
    final String topicName;
    final byte[] topic;
    final int lane;
    ByteBuffer bytes;
    long firstOffset;
    int count;

    private int foundSysFlag;
    private int foundBodyAt;
    private int foundBodyBytes;
    private int foundTopicAt;
    private int foundTopicBytes;

    /** Holds up to `most` records of a topic in a lane. */
    CheckedRecords(String topic, int lane, int most) {
        this.topicName = topic;
        this.topic = topic.getBytes(StandardCharsets.UTF_8);
        this.lane = lane;
        this.at = new int[most];
        this.size = new int[most];
        this.sysFlag = new int[most];
        this.bodyAt = new int[most];
        this.bodyBytes = new int[most];
        this.propertiesAt = new int[most];
    }

    void clear(ByteBuffer read, long offset) {
        this.bytes = read;
        this.firstOffset = offset;
        this.count = 0;
    }

    boolean isFull() {
        return this.count == this.at.length;
    }

    /** How many bytes all records have together. */
    long bytesOfAll() {
        long total = 0;
        for (int i = 0; i < this.count; i++) {
            total += this.size[i];
        }
        return total;
    }

    long nextOffset() {
        return this.firstOffset + this.count;
    }

    /** Adds the record of the next queue offset. It has `size` bytes, all of which were read. */
    void add(int place, int size, long where) throws Unreadable {
        this.find(place, size, where);
        if (!this.isOfTopic()) {
            throw new Unreadable("a record of another topic");
        }
        this.append(place, size);
    }

    /** Adds a record that a walk has come to, if it is the topic's and was not read before. */
    void addIfWanted(int place, int size, long where) throws Unreadable {
        this.find(place, size, where);
        if (!this.isOfTopic()) {
            checkName(this.foundTopic());
        } else if (this.isInQueue() && this.queueOffset(place) >= this.nextOffset()) {
            this.append(place, size);
        }
    }

    /** The topic of the record at a place, whichever it is; null if the record is in no queue. */
    UTF8String topicAt(ByteBuffer read, int place, int size, long where) throws Unreadable {
        this.bytes = read;
        this.find(place, size, where);
        if (!this.isInQueue()) {
            return null;
        }
        return this.foundTopic();
    }

    private UTF8String foundTopic() {
        byte[] name = new byte[this.foundTopicBytes];
        this.bytes.get(this.foundTopicAt, name, 0, name.length);
        return UTF8String.fromBytes(name);
    }

    /** A name that no topic can have is damage, also where nobody wants the record (commitlog/record/record.py). */
    static void checkName(UTF8String topic) throws Unreadable {
        if (topic.numBytes() > TOPIC_BYTES_MOST || topic.equals(HERE) || topic.equals(ABOVE)
                || topic.contains(SLASH) || topic.contains(NUL) || !topic.isValid()) {
            throw new Unreadable("a topic that is not a name");
        }
    }

    private boolean isInQueue() {
        return (this.foundSysFlag & RecordLayout.PREPARED) == 0;
    }

    private void append(int place, int size) throws Unreadable {
        if (this.queueOffset(place) != this.nextOffset()) {
            throw new Unreadable("a record with another queue offset");
        }
        int row = this.count;
        this.at[row] = place;
        this.size[row] = size;
        this.sysFlag[row] = this.foundSysFlag;
        this.bodyAt[row] = this.foundBodyAt;
        this.bodyBytes[row] = this.foundBodyBytes;
        this.propertiesAt[row] = this.foundTopicAt + this.foundTopicBytes + RecordLayout.PROPERTIES_LENGTH_BYTES;
        this.count = row + 1;
    }

    private long queueOffset(int place) {
        return this.bytes.getLong(place + RecordLayout.QUEUE_OFFSET_AT);
    }

    /** Finds the fields of the record at a place. Its lengths must add up to its size. */
    private void find(int place, int size, long where) throws Unreadable {
        ByteBuffer b = this.bytes;
        int magic = b.getInt(place + RecordLayout.MAGIC_AT);
        boolean isV2 = magic == RecordLayout.MAGIC_V2;
        if (!isV2 && magic != RecordLayout.MAGIC_V1) {
            throw new Unreadable("no record begins here");
        }
        if (size < RecordLayout.RECORD_BYTES_MIN || b.getInt(place + RecordLayout.TOTAL_SIZE_AT) != size) {
            throw new Unreadable("the size in the record is another one");
        }
        if (b.getLong(place + RecordLayout.PHYSICAL_OFFSET_AT) != where) {
            throw new Unreadable("a record of another place");
        }
        if (b.getInt(place + RecordLayout.QUEUE_ID_AT) != this.lane) {
            throw new Unreadable("a record of another lane");
        }
        int flags = b.getInt(place + RecordLayout.SYS_FLAG_AT);
        int head = RecordLayout.HEAD_V4_BYTES + hostsMore(flags);
        int lengthBytes = isV2 ? 2 : 1;
        int left = size - head - lengthBytes - RecordLayout.PROPERTIES_LENGTH_BYTES;
        int body = left < 0 ? -1 : b.getInt(place + head - RecordLayout.BODY_LENGTH_BYTES);
        if (body < 0 || body > left) {
            throw new Unreadable("the body is longer than its record");
        }
        int topicAt = place + head + body + lengthBytes;
        int topicBytes = isV2 ? b.getShort(topicAt - 2) : b.get(topicAt - 1);
        if (topicBytes <= 0 || topicBytes > left - body) {
            throw new Unreadable("the topic is longer than its record");
        }
        if (b.getShort(topicAt + topicBytes) != left - body - topicBytes) {
            throw new Unreadable("the properties are not as long as the record says");
        }
        this.foundSysFlag = flags;
        this.foundBodyAt = place + head;
        this.foundBodyBytes = body;
        this.foundTopicAt = topicAt;
        this.foundTopicBytes = topicBytes;
    }

    private boolean isOfTopic() {
        if (this.foundTopicBytes != this.topic.length) {
            return false;
        }
        for (int i = 0; i < this.topic.length; i++) {
            if (this.bytes.get(this.foundTopicAt + i) != this.topic[i]) {
                return false;
            }
        }
        return true;
    }

    /** How many bytes more than IPv4 hosts a record's two hosts take. */
    private static int hostsMore(int flags) {
        return bornHostMore(flags) + ((flags & RecordLayout.STORE_HOST_V6) == 0 ? 0 : RecordLayout.HOST_V6_MORE);
    }

    private static int bornHostMore(int flags) {
        return (flags & RecordLayout.BORN_HOST_V6) == 0 ? 0 : RecordLayout.HOST_V6_MORE;
    }

    int propertiesEnd(int row) {
        return this.at[row] + this.size[row];
    }

    int physicalOffsetAt(int row) {
        return this.at[row] + RecordLayout.PHYSICAL_OFFSET_AT;
    }

    long physicalOffset(int row) {
        return this.bytes.getLong(this.physicalOffsetAt(row));
    }

    long bornTimestamp(int row) {
        return this.bytes.getLong(this.at[row] + RecordLayout.BORN_TIMESTAMP_AT);
    }

    long storeTimestamp(int row) {
        return this.bytes.getLong(this.at[row] + RecordLayout.STORE_TIMESTAMP_AT + bornHostMore(this.sysFlag[row]));
    }

    int storeHostAt(int row) {
        return this.at[row] + RecordLayout.STORE_HOST_AT + bornHostMore(this.sysFlag[row]);
    }

    int storeHostBytes(int row) {
        boolean isV6 = (this.sysFlag[row] & RecordLayout.STORE_HOST_V6) != 0;
        return RecordLayout.HOST_V4_BYTES + (isV6 ? RecordLayout.HOST_V6_MORE : 0);
    }
}
