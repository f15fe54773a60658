package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.commons.codec.binary.Hex;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads planned tasks up to where Python would read on, without Spark: tests/spark/fuzzed_reads.py asks.
 *
 * A question is a line of JSON, and so is its answer. The rows of an answer are kept for the next
 * question, which compares them with those of the Python source, byte by byte.
 */
final class FuzzedReads {
    /** The rows of each part of the last answer. */
    private static final List<List<byte[]>> KEPT = new ArrayList<List<byte[]>>();
    private static final Map<String, UnsafeProjection> PROJECTIONS = new HashMap<String, UnsafeProjection>();

    private FuzzedReads() {
    }

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            answers.println(answer(Json.of(line)).toString());
            answers.flush();
        }
    }

    private static ObjectNode answer(JsonNode question) {
        ObjectNode made = Json.MAPPER.createObjectNode();
        try {
            StructType schema = (StructType) DataType.fromJson(Json.text(question, "schema"));
            if (question.has("part")) {
                compare(Json.at(question, "part").asInt(), Json.text(question, "whole"), Json.text(question, "rest"), schema, made);
            } else if (question.has("steps")) {
                follow(question, schema, made);
            } else {
                read(question, schema, made);
            }
        } catch (Throwable wrong) { // whatever it is, no damage may lead to it
            StringWriter text = new StringWriter();
            wrong.printStackTrace(new PrintWriter(text));
            made.put("broke", text.toString());
        }
        return made;
    }

    // ---- tasks of a batch ------------------------------------------------------------------------

    private static void read(JsonNode question, StructType schema, ObjectNode made) throws IOException {
        JsonNode answer = Json.at(question, "plan");
        ReadPlan plan = new ReadPlan(answer);
        TaskSlices[] tasks = TaskSlices.all(Json.at(answer, "tasks"));
        ArrayNode found = made.putArray("parts");
        KEPT.clear();
        for (int i = 0; i < tasks.length; i++) {
            ObjectNode part = found.addObject();
            List<byte[]> rows = new ArrayList<byte[]>();
            TaskReader reader = new TaskReader(plan, tasks[i].slices, new RowFilter[0], schema);
            try {
                for (ColumnarBatch batch = reader.read(); batch != null; batch = reader.read()) {
                    addRows(rows, batch.rowIterator(), schema);
                }
            } catch (IOException reason) {
                part.put("reason", reason.toString());
                ArrayNode left = part.putArray("left");
                List<Slice> slices = reader.left();
                for (int slice = 0; slice < slices.size(); slice++) {
                    ((Slice) slices.get(slice)).addTo(left);
                }
            } finally {
                reader.close();
            }
            part.put("rows", rows.size());
            KEPT.add(rows);
            if (!part.has("left")) {
                compare(i, Json.at(Json.at(question, "whole"), i).asText(), "", schema, part);
            }
        }
    }

    // ---- lanes that are followed -----------------------------------------------------------------

    /** `steps` has how far the log may be read, one step after the other. All lanes have the same. */
    private static void follow(JsonNode question, StructType schema, ObjectNode made) throws IOException {
        JsonNode answer = Json.at(question, "plan");
        ReadPlan read = new ReadPlan(answer);
        FollowingTask[] tasks = FollowingTask.all(answer, new HashMap<String, QueuePosition>());
        ArrayNode found = made.putArray("parts");
        KEPT.clear();
        for (int task = 0; task < tasks.length; task++) {
            for (int lane = 0; lane < tasks[task].lanes.length; lane++) {
                ObjectNode part = found.addObject();
                List<byte[]> rows = new ArrayList<byte[]>();
                part.put("lane", tasks[task].lanes[lane].lane);
                LaneFollower follower = new LaneFollower(tasks[task].lanes[lane], tasks[task].plan, read, schema);
                try {
                    JsonNode steps = Json.at(question, "steps");
                    for (int i = 0; i < steps.size(); i++) {
                        if (follower.mayReadTo(Json.at(steps, i).asLong())) {
                            addRows(rows, follower, schema);
                        }
                    }
                } catch (IOException reason) {
                    part.put("reason", reason.toString());
                } finally {
                    follower.close();
                }
                LinkedHashMap<String, QueuePosition> reached = new LinkedHashMap<String, QueuePosition>();
                follower.addPositions(reached);
                Iterator<QueuePosition> queues = reached.values().iterator();
                ObjectNode positions = part.putObject("reached");
                while (queues.hasNext()) {
                    QueuePosition queue = (QueuePosition) queues.next();
                    positions.put(queue.topic, queue.next);
                }
                part.put("rows", rows.size());
                KEPT.add(rows);
            }
        }
    }

    private static void addRows(List<byte[]> rows, PartitionReader batches, StructType schema) throws IOException {
        while (batches.next()) {
            addRows(rows, ((ColumnarBatch) batches.get()).rowIterator(), schema);
        }
    }

    // ---- rows ------------------------------------------------------------------------------------

    private static void addRows(List<byte[]> rows, Iterator<InternalRow> found, StructType schema) {
        String key = schema.json();
        UnsafeProjection projection = (UnsafeProjection) PROJECTIONS.get(key);
        if (projection == null) {
            projection = UnsafeProjection.create(schema);
            PROJECTIONS.put(key, projection);
        }
        while (found.hasNext()) {
            rows.add(((UnsafeRow) projection.apply((InternalRow) found.next())).copy().getBytes());
        }
    }

    /** Are the kept rows of a part, and then those of `rest`, the rows of `whole`? */
    private static void compare(int part, String whole, String rest, StructType schema, ObjectNode made) throws IOException {
        List<byte[]> ours = new ArrayList<byte[]>((List<byte[]>) KEPT.get(part));
        ours.addAll(rowsOf(rest, schema));
        List<byte[]> theirs = rowsOf(whole, schema);
        int same = 0;
        while (same < Math.min(ours.size(), theirs.size())
                && Arrays.equals((byte[]) ours.get(same), (byte[]) theirs.get(same))) {
            same++;
        }
        made.put("same", same);
        made.put("ours", ours.size());
        made.put("theirs", theirs.size());
        made.put("our_row", text(ours, same, schema));
        made.put("their_row", text(theirs, same, schema));
    }

    private static List<byte[]> rowsOf(String arrow, StructType schema) throws IOException {
        List<byte[]> found = new ArrayList<byte[]>();
        byte[] bytes = Base64.getDecoder().decode(arrow);
        if (bytes.length == 0) {
            return found;
        }
        BufferAllocator allocator = ArrowUtils.rootAllocator().newChildAllocator("rows", 0, Long.MAX_VALUE);
        ArrowStreamReader stream = new ArrowStreamReader(new ByteArrayInputStream(bytes), allocator);
        try {
            while (stream.loadNextBatch()) {
                List<FieldVector> vectors = stream.getVectorSchemaRoot().getFieldVectors();
                ColumnVector[] columns = new ColumnVector[vectors.size()];
                for (int i = 0; i < columns.length; i++) {
                    columns[i] = new RefilledVector((FieldVector) vectors.get(i));
                }
                int count = stream.getVectorSchemaRoot().getRowCount();
                addRows(found, new ColumnarBatch(columns, count).rowIterator(), schema);
            }
        } finally {
            stream.close();
            allocator.close();
        }
        return found;
    }

    private static String text(List<byte[]> rows, int place, StructType schema) {
        if (place >= rows.size()) {
            return "none";
        }
        UnsafeRow row = new UnsafeRow(schema.length());
        byte[] bytes = (byte[]) rows.get(place);
        row.pointTo(bytes, bytes.length);
        return row.toSeq(schema) + ": " + Hex.encodeHexString(bytes);
    }
}
