package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.nio.channels.ClosedByInterruptException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The rest of a task, read by a Python process (commitlog/spark/jvm_rest.py).
 *
 * It gives a stream of Arrow batches, and then a line: the error that ended it, or none.
 */
final class RestByPython implements Closeable {
    private static final String MODULE = "commitlog.spark.jvm_rest";

    private final Process process;
    private final InputStream answer;
    private final BufferAllocator allocator;
    private final ArrowStreamReader stream;
    private final String reason;
    private final int columnCount;

    /** Reads the slices. The reason says why Java does not. */
    RestByPython(ReadPlan plan, StructType wanted, List<Slice> slices, String reason) throws CommitLogException {
        this.reason = reason;
        this.columnCount = wanted.length();
        this.process = PythonCommand.start(plan.interpreter, MODULE);
        this.answer = new PythonAnswers(this.process);
        this.allocator = ArrowUtils.rootAllocator().newChildAllocator("commitlog", 0, Long.MAX_VALUE);
        this.stream = new ArrowStreamReader(this.answer, this.allocator);
        ObjectNode question = Json.MAPPER.createObjectNode();
        question.put("plan", plan.forPython);
        StructType asked = wanted;
        if (wanted.isEmpty()) { // a batch of Arrow without columns has no number of rows
            asked = wanted.add(plan.isTyped ? "_offset" : "offset", DataTypes.LongType);
        }
        question.put("schema", asked.json());
        ArrayNode rest = question.putArray("slices");
        for (int i = 0; i < slices.size(); i++) {
            ((Slice) slices.get(i)).addTo(rest);
        }
        QuestionWriter.writeLast(this.process, question.toString());
    }

    /** The next batch; null at the end. */
    ColumnarBatch batch() throws IOException {
        boolean isThere;
        try {
            isThere = this.stream.loadNextBatch();
        } catch (ClosedByInterruptException taskEnds) {
            throw taskEnds;
        } catch (IOException ended) {
            throw this.failed();
        }
        if (!isThere) {
            this.checkEnd();
            return null;
        }
        VectorSchemaRoot root = this.stream.getVectorSchemaRoot();
        List<FieldVector> vectors = root.getFieldVectors();
        ColumnVector[] columns = new ColumnVector[this.columnCount];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = new RefilledVector((FieldVector) vectors.get(i));
        }
        return new ColumnarBatch(columns, root.getRowCount());
    }

    private void checkEnd() throws IOException {
        String line = new String(this.answer.readAllBytes(), StandardCharsets.UTF_8);
        if (line.isEmpty()) {
            throw this.failed();
        }
        JsonNode outcome = Json.of(line);
        if (outcome.has("error")) {
            throw new CommitLogException(Json.text(outcome, "error"), Json.text(outcome, "words"));
        }
    }

    private CommitLogException failed() {
        return new CommitLogException("PlannerFailed", "the Python process that reads what Spark's JVM does not ("
            + this.reason + ") ended without an answer; its own error is in the terminal of the executor. Option "
            + "reader=python reads all by Python");
    }

    /** Ends the process. Who waits for its rows gets an error. */
    void stop() {
        this.process.destroyForcibly(); // also if it is stopped
    }

    public void close() throws IOException {
        this.stop();
        this.stream.close();
        this.allocator.close();
    }
}
