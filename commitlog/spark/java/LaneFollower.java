package commitlog.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Walks the log of one lane behind its writer, and makes batches of the wanted topics' records.
 *
 * `next` is false where nothing more is there yet. A batch has neighbours of one topic.
 */
final class LaneFollower implements PartitionReader {
    private static final int READ_BYTES = 1 << 18;
    private static final int BATCH_RECORDS = 1024;
    /** These bytes of a record tell it from any other: sizes, CRC, offsets, time of birth. */
    private static final int HEAD_BYTES = 48;

    final LaneEnd begin;
    private final RealTimePlan plan;
    private final LaneLog log;
    private final WriteBuffers buffers;
    private final BatchMaker maker;
    private final LinkedHashMap<UTF8String, CheckedRecords> topics = new LinkedHashMap<UTF8String, CheckedRecords>();
    /** Finds the topic of a record. It holds none. */
    private final CheckedRecords head;
    /** Where the next record begins. */
    private long where;
    /** How far the log may be read. */
    private long limit;
    /** The limit up to which all is done. The last bytes below it may be the begin of a record. */
    private long doneTo;
    /** The bytes [readFrom, readEnd) of the log are in memory. */
    private long readFrom;
    private long readEnd;
    /** The records that batches are made of now; null before the first ones. */
    private CheckedRecords records;
    /** Whether there may be more batches of them. */
    private boolean isBegun;
    private ColumnarBatch batch;
    /** Where the last record begins that was walked past, and its first bytes; -1 before the first. */
    private long lastAt = -1;
    private final byte[] lastHead = new byte[HEAD_BYTES];

    LaneFollower(LaneEnd begin, RealTimePlan plan, ReadPlan read, StructType columns) throws IOException {
        this.begin = begin;
        this.plan = plan;
        this.log = new LaneLog(begin.log, read.segmentBytes, ByteBuffer.allocateDirect(READ_BYTES));
        this.buffers = plan.buffers(begin, read.segmentBytes);
        this.maker = read.batchMaker(columns);
        this.head = new CheckedRecords("", begin.lane, 0);
        this.where = begin.from;
        this.limit = begin.from;
        this.doneTo = begin.from;
        Iterator<Map.Entry<String, Long>> entries = begin.next.entrySet().iterator();
        while (entries.hasNext()) {
            Map.Entry<String, Long> one = (Map.Entry<String, Long>) entries.next();
            CheckedRecords made = new CheckedRecords((String) one.getKey(), begin.lane, BATCH_RECORDS);
            made.clear(this.log.bytes(), ((Long) one.getValue()).longValue());
            this.topics.put(UTF8String.fromString((String) one.getKey()), made);
        }
    }

    /** Takes note how far the log may be read now. False if there is nothing new. */
    boolean mayReadTo(long position) throws Unreadable {
        if (position < this.limit || (position > this.limit && !this.begin.isWhole)) {
            throw new Unreadable("a lane that has gone back, or on behind damage");
        }
        this.limit = position;
        return this.limit > this.doneTo;
    }

    /** The topic of the last batch. */
    String topic() {
        return this.records.topicName;
    }

    /** When the first message of the last batch was stored, in ms. */
    long storedMs() {
        return this.records.storeTimestamp(0);
    }

    /** Adds how far all topics are read, by the keys of their queues, if all rows of batches were taken. */
    void addPositions(Map<String, QueuePosition> found) {
        Iterator<CheckedRecords> all = this.topics.values().iterator();
        while (all.hasNext()) {
            CheckedRecords one = (CheckedRecords) all.next();
            long next = this.isBegun && one == this.records ? this.maker.nextOffset() : one.nextOffset();
            if (next > 0) {
                QueuePosition position = new QueuePosition(one.topicName, this.begin.lane, next, 0);
                found.put(position.key(), position);
            }
        }
    }

    public boolean next() throws IOException {
        while (true) {
            this.batch = this.isBegun ? this.maker.next() : null;
            if (this.batch != null) {
                return true;
            }
            if (this.isBegun) {
                this.isBegun = false;
                this.records.clear(this.log.bytes(), this.records.nextOffset());
            }
            CheckedRecords found = this.walk();
            if (found == null) {
                this.doneTo = this.limit;
                return false;
            }
            this.records = found;
            this.maker.begin(found);
            this.isBegun = true;
        }
    }

    /** The next records of one topic, which lie in the bytes in memory; null if there are none yet. */
    private CheckedRecords walk() throws IOException {
        CheckedRecords found = null;
        try {
            while (this.limit - this.where >= RecordLayout.BLANK_BYTES) {
                if (!this.has(RecordLayout.BLANK_BYTES)) {
                    if (found != null) {
                        return found;
                    }
                    this.read(RecordLayout.BLANK_BYTES);
                }
                int size = this.sizeHere();
                if (size > this.limit - this.where) {
                    return found; // the position may lie inside of a record
                }
                if (this.isBlankHere()) {
                    this.where += size;
                    continue;
                }
                if (!this.has(size)) {
                    if (found != null) {
                        return found;
                    }
                    this.read(size);
                }
                CheckedRecords of = this.recordsHere(size);
                if (found != null && of != null && (of != found || found.isFull())) {
                    return found;
                }
                if (of != null) {
                    of.bytes = this.log.bytes();
                    of.addIfWanted(this.placeHere(), size, this.where);
                    found = of.count > 0 ? of : found;
                }
                if (this.plan.isAhead) {
                    this.noteLast();
                }
                this.where += size;
            }
        } catch (Unreadable reason) {
            if (found == null) {
                throw reason;
            }
        }
        return found; // where a reason was met, the next walk meets it again
    }

    private void noteLast() {
        for (int i = 0; i < HEAD_BYTES; i++) {
            this.lastHead[i] = this.log.bytes().get(this.placeHere() + i);
        }
        this.lastAt = this.where;
    }

    /** How far a lane was read before it was flushed; null if nothing was. */
    LanePosition position() {
        return this.lastAt < 0 ? null : new LanePosition(this.begin.lane, this.where, this.lastAt, (byte[]) this.lastHead.clone());
    }

    private int placeHere() {
        return (int) (this.where - this.readFrom);
    }

    private boolean isBlankHere() {
        return this.log.bytes().getInt(this.placeHere() + RecordLayout.MAGIC_AT) == RecordLayout.MAGIC_BLANK;
    }

    /** How many bytes there are to the next record. */
    private int sizeHere() throws Unreadable {
        int size = this.log.bytes().getInt(this.placeHere() + RecordLayout.TOTAL_SIZE_AT);
        long left = this.log.segmentOf(this.where) + this.log.segmentBytes - this.where;
        boolean isGood = this.isBlankHere() ? size == left
            : size >= RecordLayout.RECORD_BYTES_MIN && size <= Math.min(left, SliceReader.RECORD_BYTES_MOST);
        if (!isGood) {
            throw new Unreadable("no record begins here");
        }
        return size;
    }

    /** The records of a record's topic; null if nobody wants it. */
    private CheckedRecords recordsHere(int size) throws Unreadable {
        UTF8String topic = this.head.topicAt(this.log.bytes(), this.placeHere(), size, this.where);
        if (topic == null) {
            return null;
        }
        CheckedRecords found = (CheckedRecords) this.topics.get(topic);
        if (found == null) {
            CheckedRecords.checkName(topic);
            this.plan.checkPassedOver(topic);
        }
        return found;
    }

    private boolean has(int bytes) {
        return this.where >= this.readFrom && this.where + bytes <= this.readEnd;
    }

    /** Reads from the next record on: so many bytes, or more if there are more in its segment. */
    private void read(int least) throws IOException {
        long segmentEnd = this.log.segmentOf(this.where) + this.log.segmentBytes;
        long most = Math.min(this.limit, segmentEnd) - this.where;
        if (least > most) {
            throw new Unreadable("a segment that ends inside of a record");
        }
        int count = (int) Math.max(least, Math.min(most, READ_BYTES));
        if (this.buffers == null || !this.buffers.read(this.where, this.log.room(count))) {
            this.log.read(this.where, count, 0);
        }
        this.log.bytes().clear();
        this.readFrom = this.where;
        this.readEnd = this.where + count;
    }

    public Object get() {
        return this.batch;
    }

    public void close() throws IOException {
        this.log.close();
        if (this.buffers != null) {
            this.buffers.close();
        }
    }
}
