package commitlog.benchmarks;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.UUID;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;
import org.apache.spark.unsafe.Platform;

/** Appends for each row when it was sent, which is its first column, and when it came (monotonic ns). */
public final class NotingRows extends ForeachWriter {
    private static final long serialVersionUID = 1;

    private final String directory;
    private transient OutputStream file;

    public NotingRows(String directory) {
        this.directory = directory;
    }

    public boolean open(long partition, long epoch) {
        try {
            this.file = new FileOutputStream(this.directory + "/" + UUID.randomUUID() + ".seen");
        } catch (IOException error) {
            Platform.throwException(error);
        }
        return true;
    }

    public void process(Object row) {
        long now = System.nanoTime();
        String sent = new String((byte[]) ((Row) row).get(0), StandardCharsets.US_ASCII);
        try {
            this.file.write((sent.trim() + " " + now + "\n").getBytes(StandardCharsets.US_ASCII));
        } catch (IOException error) {
            Platform.throwException(error);
        }
    }

    public void close(Throwable error) {
        try {
            this.file.close();
        } catch (IOException failed) {
            Platform.throwException(failed);
        }
    }
}
