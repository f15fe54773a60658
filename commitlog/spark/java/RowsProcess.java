package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/**
 * A Python process that is handed rows (commitlog/spark/rows_process.py), by a thread of its own.
 *
 * While the function has a batch, rows gather. The next batch is all that have. So a row alone goes
 * at once, and many rows go in large batches. A batch without rows asks for the function's `flush`.
 */
final class RowsProcess implements Runnable {
    static final String MODULE = "commitlog.spark.rows_process";
    private static final long GATHERED_BYTES_MOST = 4 << 20;
    private static final long LOOK_MS = 100;

    final RowsFunction function;
    /** The start of a query that it is for. */
    final String run;
    long idleSinceNs;
    private final Process process;
    private List<UnsafeRow> gathered = new ArrayList<UnsafeRow>();
    private long gatheredBytes;
    private boolean isFlushAsked;
    private boolean isStopped;
    private CommitLogException failure;

    RowsProcess(RowsFunction function, String run) throws CommitLogException {
        this.function = function;
        this.run = run;
        this.process = PythonCommand.start(PythonCommand.interpreter(), MODULE);
        Thread sender = new Thread(this, "commitlog-rows-to-python");
        sender.setDaemon(true);
        sender.start();
    }

    /** Adds a row, which belongs to the process from then on. Waits while many are on their way. */
    synchronized void add(UnsafeRow row) throws CommitLogException {
        while (this.gatheredBytes > GATHERED_BYTES_MOST && this.failure == null) {
            this.pause();
        }
        this.check();
        this.gathered.add(row);
        this.gatheredBytes += row.getSizeInBytes();
        this.notifyAll();
    }

    /** Waits until the function has had all rows, and has flushed. */
    synchronized void finish() throws CommitLogException {
        this.isFlushAsked = true;
        this.notifyAll();
        while (this.isFlushAsked && this.failure == null) {
            this.pause();
        }
        this.check();
    }

    /** Waits for the sender. A task that was killed ends here. */
    private void pause() {
        TaskContext task = TaskContext.get();
        if (task != null) {
            task.killTaskIfInterrupted();
        }
        try {
            this.wait(LOOK_MS);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("the task was ended while a Python function had its rows");
        }
    }

    private void check() throws CommitLogException {
        if (this.failure != null) {
            throw this.failure;
        }
    }

    boolean isUsable() {
        return this.process.isAlive();
    }

    /** Ends the process at once, in the middle of what its function does. */
    void stop() {
        this.end();
        this.process.destroyForcibly();
    }

    /** Ends the process when its function is done. */
    synchronized void end() {
        this.isStopped = true;
        this.notifyAll();
    }

    public void run() {
        try {
            this.send();
        } catch (CommitLogException error) {
            this.fail(error);
        } catch (Throwable error) { // in any case, as the task waits
            this.fail(failed(error.toString()));
        }
    }

    private void send() throws IOException {
        DataOutputStream output = new DataOutputStream(this.process.getOutputStream());
        BufferedReader answers = new BufferedReader(
            new InputStreamReader(this.process.getInputStream(), StandardCharsets.UTF_8));
        BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("commitlog", 0, Long.MAX_VALUE);
        VectorSchemaRoot root = VectorSchemaRoot.create(this.function.arrowSchema(), allocator);
        ArrowStreamWriter stream = new ArrowStreamWriter(root, null, output);
        try {
            ArrowWriter writer = ArrowWriter.create(root);
            boolean isBegun = false;
            List<UnsafeRow> rows = this.next();
            while (rows != null) {
                for (UnsafeRow row : rows) {
                    writer.write(row);
                }
                writer.finish();
                try {
                    if (!isBegun) {
                        output.writeInt(this.function.packed.length);
                        output.write(this.function.packed);
                        isBegun = true;
                    }
                    stream.writeBatch();
                    output.flush();
                } catch (IOException ended) { // its last answer says why
                    this.checkAnswer(answers.readLine());
                    throw ended;
                }
                writer.reset();
                this.checkAnswer(answers.readLine());
                this.answered(rows.isEmpty());
                rows = this.next();
            }
            output.close(); // the process ends
        } finally {
            root.close();
            allocator.close();
        }
    }

    /** All rows that have gathered; none asks for a flush; null is the end. */
    synchronized List<UnsafeRow> next() throws IOException {
        while (this.gathered.isEmpty() && !this.isFlushAsked && !this.isStopped) {
            try {
                this.wait();
            } catch (InterruptedException never) {
                throw new IOException(never);
            }
        }
        if (this.isStopped) {
            return null;
        }
        List<UnsafeRow> rows = this.gathered;
        this.gathered = new ArrayList<UnsafeRow>();
        this.gatheredBytes = 0;
        this.notifyAll();
        return rows;
    }

    synchronized void answered(boolean isFlush) {
        if (isFlush) {
            this.isFlushAsked = false;
        }
        this.notifyAll();
    }

    private void checkAnswer(String line) throws IOException {
        if (line == null) {
            throw failed("its process ended without an answer; its own error is in the terminal of the executor");
        }
        JsonNode answer = Json.of(line);
        if (answer.has("error")) {
            throw new CommitLogException(Json.text(answer, "error"), Json.text(answer, "words"));
        }
    }

    private static CommitLogException failed(String why) {
        return new CommitLogException("FunctionFailed", "the Python function that rows are handed to: " + why);
    }

    synchronized void fail(CommitLogException error) {
        this.failure = error;
        this.process.destroyForcibly();
        this.notifyAll();
    }
}
