package commitlog.spark;

import java.io.IOException;
import java.io.InputStream;
import java.nio.channels.ClosedByInterruptException;
import org.apache.spark.TaskContext;

/**
 * What a Python process of ours says.
 *
 * Java can't end a thread that reads from a process. So this one waits until there is something to
 * read. A task that was killed, a thread that was interrupted, and a limit of time end the wait.
 */
final class PythonAnswers extends InputStream {
    private static final int FIRST_WAIT_NS = 50_000;
    private static final int LONGEST_WAIT_MS = 5;

    private final Process process;
    private final InputStream output;
    private long deadline;
    private boolean hasDeadline;

    PythonAnswers(Process process) {
        this.process = process;
        this.output = process.getInputStream();
    }

    /** From now on a wait ends after this time, as if the process had. */
    void waitAtMost(long nanoseconds) {
        this.deadline = System.nanoTime() + nanoseconds;
        this.hasDeadline = true;
    }

    /** Whether the time of `waitAtMost` is over. */
    boolean isLate() {
        return this.hasDeadline && System.nanoTime() - this.deadline >= 0;
    }

    public int available() throws IOException {
        return this.output.available();
    }

    public int read() throws IOException {
        return this.isThere() ? this.output.read() : -1;
    }

    public int read(byte[] bytes, int offset, int length) throws IOException {
        return this.isThere() ? this.output.read(bytes, offset, length) : -1;
    }

    /** Waits until something can be read, or the process has ended. False if it is late. */
    private boolean isThere() throws IOException {
        long wait = FIRST_WAIT_NS;
        while (this.output.available() == 0 && this.process.isAlive()) {
            TaskContext task = TaskContext.get();
            if (task != null) {
                task.killTaskIfInterrupted();
            }
            if (this.isLate()) {
                return false;
            }
            try {
                Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
                throw new ClosedByInterruptException();
            }
            wait = Math.min(2 * wait, LONGEST_WAIT_MS * 1_000_000L);
        }
        return true;
    }

    public void close() throws IOException {
        this.output.close();
    }
}
