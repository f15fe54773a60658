package commitlog.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads the slices of one task, one after the other, batch by batch.
 *
 * Where a slice is not as good records are, Python reads the rest of the task, or says what is wrong.
 */
final class TaskReader implements PartitionReader {
    private static final int ROOM_BYTES = 2 << 20;
    private static final int KEPT_BYTES_MOST = 8 << 20;
    /** Memory for the next tasks. The garbage collector is late to free such memory. */
    private static final ConcurrentLinkedQueue<ByteBuffer> KEPT = new ConcurrentLinkedQueue<ByteBuffer>();

    private final ReadPlan plan;
    private final Slice[] slices;
    private final RowFilter[] filters;
    private final StructType wanted;
    private final BatchMaker maker;
    private final PlannedStore store;
    private int current;
    private OffsetRanges ranges;
    private long nextOffset;
    private long walkFrom;
    private boolean isOpen;
    private SliceReader reader;
    private ByteBuffer room;
    private volatile RestByPython rest;
    private ColumnarBatch batch;
    private boolean isReading;
    private boolean isClosed;
    private long messages;
    private long bytes;
    private long rowsByPython;

    /** Reads what the filters keep. */
    TaskReader(ReadPlan plan, Slice[] slices, RowFilter[] filters, StructType wanted) {
        this(plan, slices, filters, wanted, new PlannedStore(plan));
    }

    /** Reads from a store that other readers of the task look at too. */
    TaskReader(ReadPlan plan, Slice[] slices, RowFilter[] filters, StructType wanted, PlannedStore store) {
        this.plan = plan;
        this.slices = slices;
        this.filters = filters;
        this.wanted = wanted;
        this.maker = plan.batchMaker(wanted);
        this.store = store;
        this.begin();
    }

    /** Begins with the current slice, or with the next one that has a wanted row. */
    private void begin() {
        while (this.current < this.slices.length) {
            this.ranges = RowFilter.kept(this.filters, this.slices[this.current]);
            if (!this.ranges.isEmpty()) {
                this.nextOffset = this.ranges.first(0);
                this.walkFrom = this.slices[this.current].walkFrom;
                return;
            }
            this.current++;
        }
    }

    /** What is still to be read: a slice for each range. */
    List<Slice> left() {
        List<Slice> found = new ArrayList<Slice>();
        for (int i = this.current; i < this.slices.length; i++) {
            boolean isCurrent = i == this.current;
            OffsetRanges left = RowFilter.kept(this.filters, this.slices[i]);
            if (isCurrent) {
                left = left.and(OffsetRanges.between(this.nextOffset, Long.MAX_VALUE));
            }
            for (int range = 0; range < left.count(); range++) {
                found.add(this.slices[i].part(
                    left.first(range), left.behind(range), isCurrent ? this.walkFrom : this.slices[i].walkFrom));
            }
        }
        return found;
    }

    public boolean next() throws IOException {
        if (!this.enter()) {
            return false;
        }
        try {
            this.batch = this.rest == null ? this.readOrHandOver() : this.rest.batch();
        } catch (CommitLogException error) {
            throw error.ofTask();
        } finally {
            this.leave();
        }
        this.rowsByPython += this.rest == null || this.batch == null ? 0 : this.batch.numRows();
        return this.batch != null;
    }

    synchronized boolean enter() {
        this.isReading = !this.isClosed;
        return this.isReading;
    }

    synchronized void leave() throws IOException {
        this.isReading = false;
        if (this.isClosed) {
            this.letGo(false); // what was read last is still in use: no other task may write there
        }
    }

    private ColumnarBatch readOrHandOver() throws IOException {
        try {
            return this.read();
        } catch (ClosedByInterruptException taskEnds) {
            throw taskEnds;
        } catch (IOException reason) {
            this.rest = new RestByPython(this.plan, this.wanted, this.left(), reason.getMessage());
        }
        return this.rest.batch();
    }

    /** The next batch of good records; null at the end. */
    ColumnarBatch read() throws IOException {
        if (!this.isOpen) {
            this.store.open();
            this.room = (ByteBuffer) KEPT.poll();
            if (this.room == null) {
                this.room = ByteBuffer.allocateDirect(ROOM_BYTES);
            }
            this.isOpen = true;
        }
        while (this.current < this.slices.length) {
            if (this.reader == null) {
                this.reader = new SliceReader(
                    this.slices[this.current], this.ranges, this.plan.segmentBytes, this.room);
            }
            ColumnarBatch made = this.maker.next();
            if (made != null) {
                this.nextOffset = this.maker.nextOffset();
                return made;
            }
            this.walkFrom = this.reader.walkFrom(); // all that was read is done
            CheckedRecords records = this.reader.batch();
            if (records == null) {
                this.endSlice();
            } else {
                this.store.look();
                this.maker.begin(records);
                this.messages += records.count;
                this.bytes += records.bytesOfAll();
            }
        }
        this.store.look();
        return null;
    }

    private void endSlice() throws IOException {
        this.room = this.reader.room();
        this.reader.close();
        this.reader = null;
        this.current++;
        this.begin();
    }

    public Object get() {
        return this.batch;
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return new CustomTaskMetric[] {
            new TaskMetric(MessagesMetric.NAME, this.messages),
            new TaskMetric(BytesMetric.NAME, this.bytes),
            new TaskMetric(PythonRowsMetric.NAME, this.rowsByPython)};
    }

    /** Ends the reading. A task may end while another thread, that of `TRANSFORM`, is in `next`. */
    public void close() throws IOException {
        RestByPython awaited = null;
        synchronized (this) {
            this.isClosed = true;
            if (this.isReading) {
                awaited = this.rest;
            } else {
                this.letGo(true);
            }
        }
        if (awaited != null) {
            awaited.stop(); // so that `next` ends, which lets go of the rest
        }
    }

    private void letGo(boolean isRoomFree) throws IOException {
        if (this.reader != null) {
            this.endSlice();
        }
        if (isRoomFree && this.room != null && this.room.capacity() <= KEPT_BYTES_MOST) {
            KEPT.add(this.room);
        }
        this.room = null;
        if (this.rest != null) {
            this.rest.close();
        }
    }
}
