package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;

/**
 * The words of shared memory that say how far the lanes of a store are flushed.
 *
 * An idle query looks at them many times in a second, and asks the planner only if they have moved.
 */
final class FlushedWords implements Closeable {
    /** Where the planner has said that they are. */
    private final JsonNode place;
    private final FileChannel file;
    private final ByteBuffer bytes;
    private final int step;
    private long[] noted;

    private FlushedWords(JsonNode place, FileChannel file) {
        this.place = place;
        this.file = file;
        this.step = Json.at(place, "step").asInt();
        this.noted = new long[Json.at(place, "lanes").asInt()];
        this.bytes = ByteBuffer.allocateDirect((this.noted.length - 1) * this.step + Long.BYTES);
    }

    /** The words at a place; null if nothing is there. */
    static FlushedWords of(JsonNode place) {
        if (place.isNull()) {
            return null;
        }
        try {
            Path path = LaneLog.path(Json.text(place, "file"), "");
            return new FlushedWords(place, FileChannel.open(path, new OpenOption[] {StandardOpenOption.READ}));
        } catch (IOException unreadable) {
            return null;
        }
    }

    boolean areAt(JsonNode other) {
        return this.place.equals(other);
    }

    /** Notes the words of this moment. Returns whether they are others than before, or can't be read. */
    boolean haveMoved() {
        long[] found = new long[this.noted.length];
        try {
            this.bytes.clear();
            long at = Json.at(this.place, "first").asLong();
            while (this.bytes.hasRemaining()) {
                int got = this.file.read(this.bytes, at + this.bytes.position());
                if (got <= 0) {
                    return true;
                }
            }
        } catch (IOException unreadable) {
            return true;
        }
        for (int lane = 0; lane < found.length; lane++) {
            found[lane] = this.bytes.getLong(lane * this.step);
        }
        boolean haveMoved = !Arrays.equals(found, this.noted);
        this.noted = found;
        return haveMoved;
    }

    public void close() {
        try {
            this.file.close();
        } catch (IOException useless) {
            return; // it was only read
        }
    }
}
