package commitlog.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryIteratorException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;

/**
 * The bytes of one lane's log, read into memory piece by piece.
 *
 * They are read and not mapped. A fault in a mapping, where a file was cut short, would end the JVM.
 * A piece stays in the processor's cache, so the copy costs little.
 */
final class LaneLog implements Closeable {
    private static final String ZEROS = "00000000000000000000";

    final long segmentBytes;
    private final String directory;
    private FileChannel segment;
    private long segmentStart = -1;
    private ByteBuffer bytes;

    LaneLog(String directory, long segmentBytes, ByteBuffer room) {
        this.directory = directory;
        this.segmentBytes = segmentBytes;
        this.bytes = room;
    }

    /** The bytes that were read last. Their places are absolute, and their numbers big-endian. */
    ByteBuffer bytes() {
        return this.bytes;
    }

    long segmentOf(long where) {
        return where - where % this.segmentBytes;
    }

    /** Reads the bytes [where, where + count) of one segment to a place in `bytes`, which grows. */
    void read(long where, int count, int place) throws IOException {
        this.open(this.segmentOf(where));
        this.grow(place, place + count);
        this.bytes.limit(place + count).position(place);
        long at = where - this.segmentStart;
        while (this.bytes.hasRemaining()) {
            int got = this.segment.read(this.bytes, at);
            if (got <= 0) {
                throw new Unreadable(fileName(this.segmentStart) + " ends at " + at);
            }
            at += got;
        }
        this.bytes.clear();
    }

    /** Memory for that many bytes: what is put there is read by `bytes`. What was there is lost. */
    ByteBuffer room(int count) {
        this.grow(0, count);
        this.bytes.limit(count).position(0);
        return this.bytes;
    }

    private void grow(int kept, int wanted) {
        if (wanted <= this.bytes.capacity()) {
            return;
        }
        ByteBuffer larger = ByteBuffer.allocateDirect(Math.max(wanted, Math.min(2 * this.bytes.capacity(), 1 << 29)));
        this.bytes.limit(kept).position(0);
        larger.put(this.bytes);
        larger.clear();
        this.bytes = larger;
    }

    private void open(long start) throws IOException {
        if (start == this.segmentStart) {
            return;
        }
        this.close();
        this.segment = openToRead(path(this.directory, fileName(start)));
        this.segmentStart = start;
    }

    /** A path. A JVM without a locale (LC_ALL=C) has none with letters beyond ASCII. */
    static Path path(String directory, String name) throws Unreadable {
        try {
            return Paths.get(directory, new String[] {name});
        } catch (InvalidPathException noLocale) {
            throw new Unreadable("the JVM's locale has no letters for " + directory);
        }
    }

    /** The names in a directory, sorted; none where there is no directory. One that can't be listed is an error. */
    static List<String> names(String directory) throws IOException {
        List<String> found = new ArrayList<String>();
        try {
            DirectoryStream<Path> listed = Files.newDirectoryStream(path(directory, ""));
            try {
                Iterator<Path> files = listed.iterator();
                while (files.hasNext()) {
                    found.add(((Path) files.next()).getFileName().toString());
                }
            } finally {
                listed.close();
            }
        } catch (NoSuchFileException none) {
            return found;
        } catch (DirectoryIteratorException error) {
            throw error.getCause();
        }
        Collections.sort(found);
        return found;
    }

    /** Opens a regular file. A link in its place counts as none. */
    static FileChannel openToRead(Path file) throws IOException {
        if (!Files.isRegularFile(file, new LinkOption[] {LinkOption.NOFOLLOW_LINKS})) {
            throw new Unreadable(file + " is no file");
        }
        return FileChannel.open(file, new OpenOption[] {StandardOpenOption.READ, LinkOption.NOFOLLOW_LINKS});
    }

    /** The name of a file of the log, or of a consume queue: its first byte's offset. */
    static String fileName(long start) {
        String digits = Long.toString(start);
        return ZEROS.substring(digits.length()) + digits;
    }

    public void close() throws IOException {
        if (this.segment != null) {
            this.segment.close();
            this.segment = null;
            this.segmentStart = -1;
        }
    }
}
