package commitlog.spark;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;

/**
 * Unpacks bodies that RocketMQ's clients compressed with zlib (commitlog/record/body_compression.py).
 *
 * Python has the other ways, and the words for a body that does not unpack.
 */
final class BodyUnpacker {
    private static final int ZLIB = 0x300; // 0 stands for it too
    private static final int PLAIN_BYTES_MOST = 4 << 20;
    /** What the bodies of one batch may take together. More of it would be too much for small drivers. */
    private static final int BATCH_BYTES_MOST = 32 << 20;

    private final Inflater inflater = new Inflater();
    private int total;

    /** The body that has these bytes. */
    byte[] unpacked(ByteBuffer bytes, int at, int length, int sysFlag) throws Unreadable {
        int kind = sysFlag & RecordLayout.COMPRESSION_KIND;
        if (kind != 0 && kind != ZLIB) {
            throw new Unreadable("a value that is not compressed with zlib");
        }
        byte[] packed = new byte[length];
        bytes.get(at, packed, 0, length);
        this.inflater.reset();
        this.inflater.setInput(packed);
        byte[] found = this.inflated(Math.min(4 * length + 64, PLAIN_BYTES_MOST + 1));
        this.total += found.length;
        if (found.length > PLAIN_BYTES_MOST || this.total > BATCH_BYTES_MOST) {
            throw new Unreadable("values that are large when they are unpacked");
        }
        return found;
    }

    private byte[] inflated(int expected) throws Unreadable {
        byte[] found = new byte[expected];
        int count = 0;
        try {
            while (!this.inflater.finished() && count <= PLAIN_BYTES_MOST) {
                if (count == found.length) {
                    found = Arrays.copyOf(found, Math.min(2 * count, PLAIN_BYTES_MOST + 1));
                }
                int got = this.inflater.inflate(found, count, found.length - count);
                if (got == 0 && (this.inflater.needsInput() || this.inflater.needsDictionary())) {
                    throw new Unreadable("a compressed value that is cut short");
                }
                count += got;
            }
        } catch (DataFormatException damaged) {
            throw new Unreadable("a compressed value that is damaged");
        }
        return Arrays.copyOf(found, count);
    }

    void close() {
        this.inflater.end();
    }
}
