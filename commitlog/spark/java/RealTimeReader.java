package commitlog.spark;

import java.io.IOException;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.TaskCompletionListener;

/**
 * Gives the rows of a task of Real-Time Mode: its backlog, and then each message as it comes.
 *
 * A lane is followed only where all is as it should be. Otherwise the task ends, and with it the
 * batch: the next plan has what is damaged, lost or new as a backlog, which is read as in any query.
 */
final class RealTimeReader implements SupportsRealTimeRead {
    /**
     * A message waits half of it. What costs is the wake of the thread: at 1,000 messages a second Spark
     * takes 0.04 of a core with it, and 0.11 with 250 microseconds.
     */
    private static final long SHORTEST_REST_NS = 700_000;
    private static final long LONGEST_REST_NS = TimeUnit.MILLISECONDS.toNanos(10);
    /** A rest is this part of the time since the last message. So it costs little, and adds little. */
    private static final long PART_OF_IDLE = 30;
    /** The same after a second. What a look costs is the wake of its thread, some 100 microseconds. */
    private static final long LONGEST_IDLE_REST_NS = TimeUnit.MILLISECONDS.toNanos(20);
    private static final long PART_OF_LONG_IDLE = 100;
    private static final long BETWEEN_LOOKS_AT_FILES_NS = TimeUnit.MILLISECONDS.toNanos(100);

    private final ReadPlan read;
    private final FollowingTask task;
    private final JsonValues json;
    private final StructType columns;
    private final PlannedStore store;
    private final int offsetPlace;
    /** Where a row has its number in its message; -1 if a message is one row. */
    private final int rowPlace;
    /** How far each queue of the backlog is read, by its key. */
    private final LinkedHashMap<String, QueuePosition> done = new LinkedHashMap<String, QueuePosition>();
    /** The slice of the backlog that is read; their number once all are. */
    private int slice;
    private final LaneFollower[] followers;
    private final PartitionReader[] rowsOfFollowers;
    private int follower;
    private LaneWords words;
    private long lookedAtFilesNs;
    private long lastRowNs;
    /** Whether the task ends before its time. */
    private boolean isOver;
    /** What rows are taken from now; null between two parts. */
    private PartitionReader rows;
    /** The last row; null if none of this part was given. */
    private InternalRow row;

    RealTimeReader(ReadPlan read, FollowingTask task, JsonValues json, StructType wanted) {
        this.read = read;
        this.task = task;
        this.json = json;
        this.store = new PlannedStore(read);
        String offset = read.isTyped || json != null ? "_offset" : "offset";
        StructType all = with(wanted, offset, DataTypes.LongType);
        this.columns = read.isTyped ? with(all, "_row", DataTypes.IntegerType) : all;
        this.offsetPlace = this.columns.fieldIndex(offset);
        this.rowPlace = read.isTyped ? this.columns.fieldIndex("_row") : -1;
        this.followers = new LaneFollower[task.lanes.length];
        this.rowsOfFollowers = new PartitionReader[task.lanes.length];
        for (int i = task.backlog.length - 1; i >= 0; i--) {
            this.note(task.backlog[i].topic, task.backlog[i].lane, task.backlog[i].start);
        }
        for (int i = 0; i < task.begun.length; i++) {
            this.done.put(task.begun[i].key(), task.begun[i]);
        }
        TaskCompletionListener closing = new TaskCompletionListener() {
            public void onTaskCompletion(TaskContext context) {
                RealTimeReader.this.closeAll();
            }
        };
        TaskContext.get().addTaskCompletionListener(closing); // Spark itself does not close it
    }

    /** Adds a column that Spark does not ask for: it takes the first columns of a row only. */
    private static StructType with(StructType wanted, String name, DataType type) {
        return wanted.getFieldIndex(name).isEmpty() ? wanted.add(name, type) : wanted;
    }

    private void note(String topic, int lane, long next) {
        QueuePosition position = new QueuePosition(topic, lane, next, 0);
        this.done.put(position.key(), position);
    }

    private boolean isFollowing() {
        return this.slice == this.task.backlog.length;
    }

    // ---- rows ------------------------------------------------------------------------------------

    /** The form of Spark 4.2. */
    public SupportsRealTimeRead.RecordStatus nextWithTimeout(Long startMs, Long timeoutMs) throws IOException {
        return this.nextWithTimeout(timeoutMs);
    }

    /** The next row; none if the time is over, or the task. */
    public SupportsRealTimeRead.RecordStatus nextWithTimeout(Long timeoutMs) throws IOException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs.longValue());
        while (!this.isOver) {
            if (this.rows != null && this.nextRow()) {
                return this.isFollowing()
                    ? SupportsRealTimeRead.RecordStatus.newStatusWithArrivalTimeMs(
                        Long.valueOf(this.followers[this.follower].storedMs()))
                    : SupportsRealTimeRead.RecordStatus.newStatusWithoutArrivalTime(true);
            }
            if (!this.isOver && !this.beginPart()) {
                long left = deadline - System.nanoTime();
                if (left <= 0 || Thread.currentThread().isInterrupted()) {
                    break;
                }
                LockSupport.parkNanos(Math.min(this.rest(), left));
            }
        }
        return SupportsRealTimeRead.RecordStatus.newStatusWithoutArrivalTime(false);
    }

    private long rest() {
        long idle = System.nanoTime() - this.lastRowNs;
        long longest = Math.max(LONGEST_REST_NS, Math.min(idle / PART_OF_LONG_IDLE, LONGEST_IDLE_REST_NS));
        return Math.max(SHORTEST_REST_NS, Math.min(idle / PART_OF_IDLE, longest));
    }

    /** Takes the next row of this part. False, and the part has ended, if there is none. */
    private boolean nextRow() throws IOException {
        try {
            while (this.rows.next()) {
                this.row = (InternalRow) this.rows.get();
                if (this.isFollowing()) {
                    this.lastRowNs = System.nanoTime();
                    return true;
                }
                if (!this.wasGiven()) {
                    return true;
                }
            }
        } catch (ClosedByInterruptException taskEnds) {
            throw taskEnds;
        } catch (IOException reason) {
            if (!this.isFollowing()) {
                throw reason;
            }
            this.isOver = true;
        }
        this.endPart();
        return false;
    }

    /** Whether the last batch has given this row of the backlog: it has ended inside a message. */
    private boolean wasGiven() {
        Slice of = this.task.backlog[this.slice];
        QueuePosition from = (QueuePosition) this.done.get(QueuePosition.key(of.topic, of.lane));
        return from.rows > 0 && this.row.getLong(this.offsetPlace) == from.next
            && this.row.getInt(this.rowPlace) < from.rows;
    }

    private void endPart() throws IOException {
        this.row = null;
        if (!this.isFollowing()) {
            Slice ended = this.task.backlog[this.slice];
            this.rows.close();
            this.note(ended.topic, ended.lane, ended.end);
            this.slice++;
        }
        this.rows = null;
    }

    /** Begins with the next slice of the backlog, or with a lane that has more. False if none has. */
    private boolean beginPart() throws IOException {
        if (!this.isFollowing()) {
            Slice[] slices = new Slice[] {this.task.backlog[this.slice]};
            this.rows = this.rowsOf(
                new TaskReader(this.read, slices, new RowFilter[0], this.columnsOfMessages(), this.store));
            return true;
        }
        try {
            this.lookAtFiles();
            return !this.isOver && this.words != null && this.words.look() && this.beginLane();
        } catch (ClosedByInterruptException taskEnds) {
            throw taskEnds;
        } catch (IOException reason) {
            this.isOver = true;
            return false;
        }
    }

    private StructType columnsOfMessages() {
        return this.json == null ? this.columns : JsonReader.columnsOfMessages(this.json, this.columns);
    }

    private PartitionReader rowsOf(PartitionReader batches) {
        return this.json == null ? new BatchRows(batches) : new JsonReader(batches, this.json, this.columns);
    }

    private boolean beginLane() throws IOException {
        for (int i = 0; i < this.followers.length; i++) {
            this.follower = (this.follower + 1) % this.followers.length;
            LaneFollower found = this.followers[this.follower];
            if (found.mayReadTo(this.words.at(found.begin.lane))) {
                this.rows = this.rowsOfFollowers[this.follower];
                return true;
            }
        }
        return false;
    }

    // ---- what ends a batch early -----------------------------------------------------------------

    /** Opens what is followed. After that it looks from time to time whether all is still as planned. */
    private void lookAtFiles() throws IOException {
        long now = System.nanoTime();
        if (this.lookedAtFilesNs == 0) {
            this.open();
        } else if (now - this.lookedAtFilesNs < BETWEEN_LOOKS_AT_FILES_NS) {
            return;
        }
        this.lookedAtFilesNs = now;
        for (int i = 0; i < this.task.plan.watched.length; i++) {
            this.isOver |= this.task.plan.watched[i].hasChanged();
        }
        int newLane = this.task.plan.newLane;
        if (this.words != null && newLane >= 0) {
            this.isOver |= !this.words.look() || this.words.at(newLane) > 0;
        }
    }

    private void open() throws IOException {
        StructType asked = this.columnsOfMessages();
        for (int i = 0; i < this.followers.length; i++) {
            this.followers[i] = new LaneFollower(this.task.lanes[i], this.task.plan, this.read, asked);
            this.rowsOfFollowers[i] = this.rowsOf(this.followers[i]);
        }
        this.words = this.task.plan.words();
        this.lastRowNs = System.nanoTime();
    }

    // ---- its end ---------------------------------------------------------------------------------

    /** How far the rows go that Spark has taken. */
    public PartitionOffset getOffset() {
        LinkedHashMap<String, QueuePosition> found = new LinkedHashMap<String, QueuePosition>(this.done);
        List<LanePosition> lanes = new ArrayList<LanePosition>();
        for (int i = 0; i < this.followers.length && this.followers[i] != null; i++) {
            this.followers[i].addPositions(found);
            LanePosition lane = this.followers[i].position();
            if (lane != null) {
                lanes.add(lane);
            }
        }
        if (this.row != null) {
            QueuePosition here = this.positionOfRow();
            found.put(here.key(), here);
        }
        return new TaskPosition(
            (QueuePosition[]) found.values().toArray(new QueuePosition[0]),
            (LanePosition[]) lanes.toArray(new LanePosition[0]));
    }

    private QueuePosition positionOfRow() {
        boolean isFollowed = this.isFollowing();
        String topic = isFollowed ? this.followers[this.follower].topic() : this.task.backlog[this.slice].topic;
        int lane = isFollowed ? this.followers[this.follower].begin.lane : this.task.backlog[this.slice].lane;
        long offset = this.row.getLong(this.offsetPlace);
        return this.rowPlace < 0 ? new QueuePosition(topic, lane, offset + 1, 0)
            : new QueuePosition(topic, lane, offset, this.row.getInt(this.rowPlace) + 1);
    }

    public boolean next() throws IOException {
        return this.nextWithTimeout(Long.valueOf(0)).hasRecord();
    }

    public Object get() {
        return this.row;
    }

    public void close() {
        this.closeAll();
    }

    private void closeAll() {
        try {
            if (this.rows != null && !this.isFollowing()) {
                this.rows.close();
            }
            for (int i = 0; i < this.followers.length && this.followers[i] != null; i++) {
                this.followers[i].close();
            }
        } catch (IOException error) {
            Platform.throwException(error);
        } finally {
            if (this.words != null) {
                this.words.close();
            }
        }
    }
}
