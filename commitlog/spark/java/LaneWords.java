package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Closeable;
import java.io.IOException;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;

/**
 * One word of each lane in shared memory: how far the lane is flushed, or committed.
 *
 * They are read, not mapped, as segments are. One look costs about a microsecond. What is read after
 * it is no older than the words: they are observed, as `shm/memory_order.py` has it.
 */
final class LaneWords implements Closeable {
    /** Where the planner has said that they are. */
    private final JsonNode place;
    private final FileChannel file;
    private final ByteBuffer bytes;
    private final long first;
    private final int step;
    /** The words of the last look. */
    private long[] noted;

    private LaneWords(JsonNode place, FileChannel file) {
        this.place = place;
        this.file = file;
        this.first = Json.at(place, "first").asLong();
        this.step = Json.at(place, "step").asInt();
        this.noted = new long[Json.at(place, "lanes").asInt()];
        this.bytes = ByteBuffer.allocateDirect((this.noted.length - 1) * this.step + Long.BYTES);
        this.bytes.order(ByteOrder.nativeOrder());
    }

    /** The words at a place; null if nothing is there. */
    static LaneWords of(JsonNode place) {
        if (place.isNull()) {
            return null;
        }
        try {
            Path path = LaneLog.path(Json.text(place, "file"), "");
            return new LaneWords(place, FileChannel.open(path, new OpenOption[] {StandardOpenOption.READ}));
        } catch (IOException unreadable) {
            return null;
        }
    }

    boolean areAt(JsonNode other) {
        return this.place.equals(other);
    }

    /** Notes the words of this moment. Returns whether they are others than before, or can't be read. */
    boolean haveMoved() {
        long[] before = (long[]) this.noted.clone();
        return !this.look() || !Arrays.equals(before, this.noted);
    }

    /** Notes the words of this moment. False if they can't be read. */
    boolean look() {
        try {
            this.bytes.clear();
            while (this.bytes.hasRemaining()) {
                int got = this.file.read(this.bytes, this.first + this.bytes.position());
                if (got <= 0) {
                    return false;
                }
            }
        } catch (IOException unreadable) {
            return false;
        }
        VarHandle.acquireFence();
        for (int lane = 0; lane < this.noted.length; lane++) {
            this.noted[lane] = this.bytes.getLong(lane * this.step);
        }
        return true;
    }

    /** The word of a lane at the last look. */
    long at(int lane) {
        return this.noted[lane];
    }

    public void close() {
        try {
            this.file.close();
        } catch (IOException useless) {
            return; // it was only read
        }
    }
}
