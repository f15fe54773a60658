package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Closeable;
import java.io.IOException;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.StandardOpenOption;

/**
 * The write buffers of one lane (commitlog/shm/write_buffers.py), for what is accepted and in no file yet.
 *
 * A buffer is used again once all of its segment is flushed. So what was read from it counts only if
 * that was not so after the read.
 */
final class WriteBuffers implements Closeable {
    private static final int WORD_BYTES = 8;

    private final String file;
    private final long segmentBytes;
    private final FileChannel control;
    private final long rowAt;
    private final JsonNode words;
    private final ByteBuffer row;
    /** Null before the first read. */
    private FileChannel buffers;
    /** The lane's sequence when `buffers` was opened: another lessee may get others. */
    private long openedAt;

    /** `rows` says where the words are. */
    WriteBuffers(JsonNode rows, int lane, String file, long segmentBytes) throws IOException {
        this.file = file;
        this.segmentBytes = segmentBytes;
        this.words = rows;
        int step = Json.at(rows, "step").asInt();
        this.rowAt = Json.at(rows, "first").asLong() + (long) lane * step;
        this.row = ByteBuffer.allocateDirect(step);
        this.row.order(ByteOrder.nativeOrder());
        this.control = open(Json.text(rows, "file"));
    }

    private static FileChannel open(String file) throws IOException {
        return FileChannel.open(LaneLog.path(file, ""), new OpenOption[] {StandardOpenOption.READ});
    }

    /** Fills `into` with the lane's bytes from a place on, which are in one segment. False if its file has them. */
    boolean read(long where, ByteBuffer into) throws IOException {
        long end = where + into.remaining();
        int began = into.position();
        this.look();
        if (this.isInFile(where, end)) {
            return false;
        }
        long sequence = this.word("sequence");
        if (this.buffers == null || sequence != this.openedAt) {
            this.closeBuffers();
            this.buffers = open(this.file);
            this.openedAt = sequence;
        }
        long slot = where / this.segmentBytes % this.word("slots");
        long at = slot * this.segmentBytes + where % this.segmentBytes;
        while (into.hasRemaining()) {
            int got = this.buffers.read(into, at);
            if (got <= 0) {
                throw new Unreadable("write buffers that end early");
            }
            at += got;
        }
        this.look();
        long segmentEnd = where - where % this.segmentBytes + this.segmentBytes;
        if (this.word("sequence") == sequence && this.word("flushed") < segmentEnd) {
            return true;
        }
        if (!this.isInFile(where, end)) {
            throw new Unreadable("write buffers that are used for something else now");
        }
        into.position(began);
        return false;
    }

    /** Whether bytes are in the segment's file: the committer has written them, or the producer itself. */
    private boolean isInFile(long where, long end) {
        long segment = where / this.segmentBytes;
        long window = Json.at(this.words, "direct_window").asLong();
        long direct = this.wordAt(Json.at(this.words, "direct").asInt() + (int) (segment % window));
        boolean hasBuffers = (this.word("sequence") & 1) == 1 && this.word("slots") > 0;
        return this.word("committed") >= end || !hasBuffers || direct == segment + 1;
    }

    /** Looks at the lane's words, behind what was read before and ahead of what is read next. */
    private void look() throws IOException {
        VarHandle.acquireFence();
        this.row.clear();
        while (this.row.hasRemaining()) {
            if (this.control.read(this.row, this.rowAt + this.row.position()) <= 0) {
                throw new Unreadable("a control region that ends early");
            }
        }
        VarHandle.acquireFence();
    }

    private long word(String name) {
        return this.wordAt(Json.at(this.words, name).asInt());
    }

    private long wordAt(int index) {
        return this.row.getLong(index * WORD_BYTES);
    }

    private void closeBuffers() throws IOException {
        if (this.buffers != null) {
            this.buffers.close();
            this.buffers = null;
        }
    }

    public void close() throws IOException {
        this.control.close();
        this.closeBuffers();
    }
}
