package commitlog.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Iterator;

/**
 * Reads good records of one slice: by consume queue entries, and by walking where there are none yet.
 *
 * Whatever else there may be is Unreadable here: holes, noted damage, what retention has removed.
 */
final class SliceReader implements Closeable {
    /** A batch ends with the record that passes this. It stays in a processor's own cache. */
    private static final int BATCH_BYTES = 1 << 20;
    private static final int BATCH_RECORDS = 4096;
    /** Records this far apart are read with what is between them. */
    private static final int GAP_BYTES = 4096;
    /** Twice as much as our producers write. A larger size is damage: to take memory for it may end the JVM. */
    static final int RECORD_BYTES_MOST = 8 << 20;

    private final Slice slice;
    private final OffsetRanges wanted;
    private final LaneLog log;
    private final QueueEntries queue;
    private final CheckedRecords records;
    private long walkFrom;
    private boolean walks;
    /** The range that is read, and where it ends. */
    private int range;
    private long end;

    /** Reads the wanted offsets of the slice. There is one at least. */
    SliceReader(Slice slice, OffsetRanges wanted, long segmentBytes, ByteBuffer room) throws IOException {
        this.slice = slice;
        this.wanted = wanted;
        this.end = wanted.behind(0);
        this.log = new LaneLog(slice.log, segmentBytes, room);
        int most = (int) Math.min(BATCH_RECORDS, slice.end - slice.start); // many slices are small
        this.queue = new QueueEntries(slice.queue, most);
        this.records = new CheckedRecords(slice.topic, slice.lane, most);
        this.records.clear(room, wanted.first(0));
        this.walkFrom = slice.walkFrom;
        if (hasNotes(slice.quarantine)) {
            throw new Unreadable("recovery has noted damage in this lane");
        }
    }

    private static boolean hasNotes(String quarantine) throws IOException {
        Iterator<String> names = LaneLog.names(quarantine).iterator();
        while (names.hasNext()) {
            if (((String) names.next()).startsWith("corrupt-")) {
                return true;
            }
        }
        return false;
    }

    /** Where a walk to the records behind the last batch may begin. */
    long walkFrom() {
        return this.walkFrom;
    }

    /** The next batch; null at the slice's end. It holds until the next call. */
    CheckedRecords batch() throws IOException {
        long offset = this.records.nextOffset();
        if (offset == this.end) {
            this.range++;
            if (this.range == this.wanted.count()) {
                return null;
            }
            offset = this.wanted.first(this.range);
            this.end = this.wanted.behind(this.range);
        }
        this.records.clear(this.log.bytes(), offset);
        if (!this.walks) {
            this.queue.find(offset, (int) Math.min(this.end - offset, this.records.at.length));
            if (this.queue.count > 0) {
                this.addIndexed();
                return this.records;
            }
            this.walks = true;
        }
        if (this.walkFrom < 0) {
            throw new Unreadable("the consume queue does not lead to offset " + offset);
        }
        this.walk();
        return this.records;
    }

    // ---- records with an entry -------------------------------------------------------------------

    private void addIndexed() throws IOException {
        int entries = this.entriesOfBatch();
        int place = 0;
        for (int begin = 0; begin < entries;) {
            int end = this.endOfRun(begin, entries);
            long first = this.queue.where(begin);
            int bytes = (int) (this.queue.where(end - 1) + this.queue.size(end - 1) - first);
            this.log.read(first, bytes, place);
            this.records.bytes = this.log.bytes();
            for (int i = begin; i < end; i++) {
                long where = this.queue.where(i);
                this.records.add(place + (int) (where - first), this.queue.size(i), where);
            }
            place += bytes;
            begin = end;
        }
        if (this.walkFrom >= 0) { // a walk can begin behind the records that entries have led to
            this.walkFrom = Math.max(this.walkFrom, this.queue.where(entries - 1) + this.queue.size(entries - 1));
        }
    }

    /** How many of the entries are for one batch: in one segment, and not too large together. */
    private int entriesOfBatch() throws Unreadable {
        long segmentEnd = this.log.segmentOf(this.queue.where(0)) + this.log.segmentBytes;
        long before = 0;
        long total = 0;
        for (int i = 0; i < this.queue.count; i++) {
            long where = this.queue.where(i);
            int size = this.queue.size(i);
            if (i > 0 && (where >= segmentEnd || total >= BATCH_BYTES)) {
                return i;
            }
            if (where < before || size < RecordLayout.RECORD_BYTES_MIN || size > RECORD_BYTES_MOST
                    || where > segmentEnd - size) {
                throw new Unreadable("an entry that leads to no record");
            }
            before = where + size;
            total += size + Math.min(GAP_BYTES, i == 0 ? 0 : where - this.endOf(i - 1));
        }
        return this.queue.count;
    }

    private long endOf(int entry) {
        return this.queue.where(entry) + this.queue.size(entry);
    }

    /** The end of the entries that are read at once, because their records are close together. */
    private int endOfRun(int begin, int entries) {
        int end = begin + 1;
        while (end < entries && this.queue.where(end) - this.endOf(end - 1) <= GAP_BYTES) {
            end++;
        }
        return end;
    }

    // ---- records without an entry ----------------------------------------------------------------

    /** Walks from record to record, over those of other topics too, until there is a batch. */
    private void walk() throws IOException {
        while (this.records.count == 0) {
            if (this.walkFrom >= this.slice.limit) {
                throw new Unreadable("the log ends before offset " + this.records.nextOffset());
            }
            long segmentEnd = this.log.segmentOf(this.walkFrom) + this.log.segmentBytes;
            long end = Math.min(segmentEnd, this.slice.limit);
            int bytes = (int) Math.min(end - this.walkFrom, BATCH_BYTES);
            this.readToWalk(bytes);
            int place = this.walkOver(bytes, segmentEnd);
            if (place == 0) { // the first record is larger than that
                int size = this.log.bytes().getInt(RecordLayout.TOTAL_SIZE_AT);
                if (size <= bytes || size > Math.min(end - this.walkFrom, RECORD_BYTES_MOST)) {
                    throw new Unreadable("a record that is too large");
                }
                this.readToWalk(size);
                place = this.walkOver(size, segmentEnd);
            }
            this.walkFrom += place;
        }
    }

    private void readToWalk(int bytes) throws IOException {
        if (bytes < RecordLayout.BLANK_BYTES) {
            throw new Unreadable("too few bytes for a record");
        }
        this.log.read(this.walkFrom, bytes, 0);
        this.records.bytes = this.log.bytes();
    }

    /** Adds the wanted records among the bytes that were read. Returns how many bytes are done. */
    private int walkOver(int bytes, long segmentEnd) throws Unreadable {
        int place = 0;
        while (bytes - place >= RecordLayout.BLANK_BYTES && !this.records.isFull()
                && this.records.nextOffset() < this.end) {
            int size = this.records.bytes.getInt(place + RecordLayout.TOTAL_SIZE_AT);
            long where = this.walkFrom + place;
            if (this.records.bytes.getInt(place + RecordLayout.MAGIC_AT) == RecordLayout.MAGIC_BLANK) {
                if (size < RecordLayout.BLANK_BYTES || size != segmentEnd - where) {
                    throw new Unreadable("a BLANK that does not end with its segment");
                }
                return place + size;
            }
            if (size < RecordLayout.RECORD_BYTES_MIN) {
                throw new Unreadable("no record begins here");
            }
            if (size > bytes - place) {
                return place;
            }
            this.records.addIfWanted(place, size, where);
            place += size;
        }
        return place;
    }

    public void close() throws IOException {
        this.log.close();
        this.queue.close();
    }

    /** The memory that the next slice may use. */
    ByteBuffer room() {
        return this.log.bytes();
    }
}
