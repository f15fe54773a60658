package commitlog.spark;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.util.Iterator;

/** The entries of one consume queue (commitlog/disk/consume_queue.py), read some at a time. */
final class QueueEntries implements Closeable {
    private static final int ENTRY_BYTES = 20;
    private static final int SIZE_AT = 8;
    private static final int NAME_DIGITS = 20;
    private static final String LARGEST_NAME = "09000000000000000000";

    /** How many entries there are from the asked offset on. */
    int count;
    private final String directory;
    private final ByteBuffer bytes;
    private FileChannel file;
    private long fileStart;
    private long fileBytes;
    private long readFrom;
    private int read;
    private int skipped;

    QueueEntries(String directory, int most) {
        this.directory = directory;
        this.bytes = ByteBuffer.allocate(most * ENTRY_BYTES);
    }

    /** Finds entries from a queue offset on, up to the first that is empty: `most`, or some of them. */
    void find(long offset, int most) throws IOException {
        if (offset < this.readFrom || offset >= this.readFrom + this.read) {
            this.readFrom = offset;
            this.read = this.read(offset * ENTRY_BYTES, most);
        }
        this.skipped = (int) (offset - this.readFrom);
        this.count = Math.min(this.read - this.skipped, most);
    }

    /** Reads entries from a byte of the queue on. Returns how many are not empty. */
    private int read(long where, int most) throws IOException {
        if ((this.file == null || where < this.fileStart || where >= this.fileStart + this.fileBytes) && !this.open(where)) {
            return 0;
        }
        long at = where - this.fileStart;
        this.bytes.clear().limit((int) Math.min((long) most * ENTRY_BYTES, this.fileBytes - at));
        while (this.bytes.hasRemaining()) {
            int got = this.file.read(this.bytes, at + this.bytes.position());
            if (got <= 0) {
                throw new Unreadable(this.directory + " was cut short");
            }
        }
        int found = this.bytes.position() / ENTRY_BYTES;
        this.bytes.clear();
        int filled = 0;
        while (filled < found && this.bytes.getInt(filled * ENTRY_BYTES + SIZE_AT) > 0) {
            filled++;
        }
        return filled;
    }

    /** Where the record of an entry begins in the log. */
    long where(int entry) {
        return this.bytes.getLong((this.skipped + entry) * ENTRY_BYTES);
    }

    /** The size of the record of an entry. */
    int size(int entry) {
        return this.bytes.getInt((this.skipped + entry) * ENTRY_BYTES + SIZE_AT);
    }

    /** Opens the file that has a byte of the queue. False if there is none. */
    private boolean open(long where) throws IOException {
        this.close();
        String holding = null;
        Iterator<String> names = LaneLog.names(this.directory).iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            if (isFileName(name) && Long.parseLong(name) <= where) {
                holding = name;
            }
        }
        if (holding == null) {
            return false;
        }
        this.file = LaneLog.openToRead(LaneLog.path(this.directory, holding));
        this.fileStart = Long.parseLong(holding);
        this.fileBytes = this.file.size();
        if (this.fileBytes % ENTRY_BYTES != 0 || this.fileStart % Math.max(this.fileBytes, 1) != 0) {
            throw new Unreadable(holding + " has the wrong size");
        }
        return where < this.fileStart + this.fileBytes;
    }

    private static boolean isFileName(String name) {
        for (int i = 0; i < name.length(); i++) {
            if (name.charAt(i) < '0' || name.charAt(i) > '9') {
                return false;
            }
        }
        return name.length() == NAME_DIGITS && name.compareTo(LARGEST_NAME) < 0;
    }

    public void close() throws IOException {
        if (this.file != null) {
            this.file.close();
            this.file = null;
        }
    }
}
