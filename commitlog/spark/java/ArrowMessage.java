package commitlog.spark;

import java.nio.ByteBuffer;

/**
 * The one record batch of a message: where its columns have their buffers.
 *
 * No number of it is believed. Each buffer is looked for in the body before its place is given out.
 */
final class ArrowMessage {
    private static final int ALIGNMENT = 8;

    /** The message from its first byte on, in Arrow's order of bytes. Its array is for texts. */
    final ByteBuffer bytes;
    final int rows;
    private final MessageLayout layout;
    private final long bodyBytes;

    /** The message of `size` bytes that `copy` begins with. It must have so many rows. */
    ArrowMessage(MessageLayout layout, ByteBuffer copy, int size, int rows) throws Unreadable {
        if (size < layout.headerBytes || !layout.begins(copy)) {
            throw new Unreadable("a message with another header than that of its schema");
        }
        this.layout = layout;
        this.bytes = copy;
        this.rows = rows;
        this.bodyBytes = size - layout.headerBytes;
        if (layout.rows(this.bytes) != rows || layout.bodyBytes(this.bytes) != this.bodyBytes) {
            throw new Unreadable("a message of another size");
        }
    }

    /** How many rows a column has. Those of a nested one are as many as its parents use. */
    int rowsOf(StoredColumn column) throws Unreadable {
        return this.number(this.layout.nodeRows(this.bytes, column.node), Integer.MAX_VALUE);
    }

    int nullsOf(StoredColumn column) throws Unreadable {
        return this.number(this.layout.nodeNulls(this.bytes, column.node), this.rowsOf(column));
    }

    /** Where a buffer of a column begins, which has so many bytes at least. */
    int placeOf(StoredColumn column, int buffer, long least) throws Unreadable {
        long at = this.layout.bufferAt(this.bytes, column.buffer + buffer);
        if (at < 0 || at > this.bodyBytes || at % ALIGNMENT != 0 || this.sizeOf(column, buffer) < least) {
            throw new Unreadable("a buffer that is not in its message");
        }
        return this.layout.headerBytes + (int) at;
    }

    /** How many bytes of a buffer are in the message. */
    int sizeOf(StoredColumn column, int buffer) throws Unreadable {
        long at = this.layout.bufferAt(this.bytes, column.buffer + buffer);
        return this.number(this.layout.bufferBytes(this.bytes, column.buffer + buffer), this.bodyBytes - Math.max(at, 0));
    }

    private int number(long found, long most) throws Unreadable {
        if (found < 0 || found > most) {
            throw new Unreadable("a number in a message that can't be");
        }
        return (int) found;
    }
}
