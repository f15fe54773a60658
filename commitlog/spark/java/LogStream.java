package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;

/**
 * The stream of one query: planned by a process of its own (commitlog/spark/jvm_stream.py), read by the JVM.
 *
 * Its state is in that process. What another one has to know, if it dies, is asked first of each.
 */
final class LogStream implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode,
        ReportsSourceMetrics {
    /** An idle query asks this often, also if no lane has moved: the store may be stopped, or another one. */
    private static final long LONGEST_REST_NS = TimeUnit.MILLISECONDS.toNanos(100);

    private final StructType wanted;
    private final JsonValues json;
    private final ObjectNode opening;
    private final Planner planner;
    private ReadPlan plan;
    private String storeEnd;
    /** Where the query was told that there is nothing new; null if there was something. */
    private Offset idleAt;
    private long askedNs;
    private LaneWords words;
    private boolean isRealTime;
    /** The planned batch of Real-Time Mode; null before the first. */
    private JsonNode following;
    /** The queues in which the last batch has ended inside a message, by their keys. */
    private final Map<String, QueuePosition> begun = new HashMap<String, QueuePosition>();

    LogStream(Map<String, String> options, StructType wanted, JsonValues json) {
        this.json = json;
        this.wanted = wanted;
        this.opening = Planner.question("stream", options);
        this.opening.put("ask", "open");
        this.opening.put("schema", wanted.json());
        this.planner = new Planner(this.opening);
    }

    /** Progress shows it. */
    public String toString() {
        return Provider.NAME + " (read by the JVM)";
    }

    private JsonNode answer(ObjectNode question, String act) {
        try {
            return this.planner.answerTo(question);
        } catch (CommitLogException error) {
            Platform.throwException(error.ofStream(act));
            throw new IllegalStateException(error); // it never comes here
        }
    }

    private static ObjectNode question(String ask) {
        ObjectNode made = Planner.question("stream");
        made.put("ask", ask);
        return made;
    }

    // ---- offsets ---------------------------------------------------------------------------------

    public Offset deserializeOffset(String text) {
        return new StreamOffset(text);
    }

    public synchronized Offset initialOffset() {
        return new StreamOffset(Json.text(this.answer(question("initial"), "initialOffset"), "offset"));
    }

    public synchronized ReadLimit getDefaultReadLimit() {
        JsonNode rows = Json.at(this.answer(question("limit"), "getDefaultReadLimit"), "rows");
        return rows.isNull() ? ReadLimit.allAvailable() : ReadLimit.maxRows(rows.asLong());
    }

    public synchronized void prepareForTriggerAvailableNow() {
        JsonNode answer = this.answer(question("available_now"), "prepareForTriggerAvailableNow");
        this.opening.set("target", Json.at(answer, "target"));
    }

    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark gives a start and a limit");
    }

    /** Where the next batch ends: `start` itself if there is not enough to read. */
    public synchronized Offset latestOffset(Offset start, ReadLimit limit) {
        boolean isStill = this.words != null && !this.words.haveMoved();
        if (isStill && start.equals(this.idleAt) && System.nanoTime() - this.askedNs < LONGEST_REST_NS) {
            return start;
        }
        ObjectNode question = question("latest");
        question.put("start", start.json());
        if (limit instanceof ReadMaxRows) {
            question.put("rows", ((ReadMaxRows) limit).maxRows());
        }
        this.askedNs = System.nanoTime();
        JsonNode answer = this.answer(question, "latestOffset");
        this.storeEnd = Json.text(answer, "latest");
        if (answer.has("offset")) {
            this.idleAt = null;
            return new StreamOffset(Json.text(answer, "offset"));
        }
        this.idleAt = start;
        this.watch(Json.at(answer, "words"));
        return start;
    }

    /** Has the query look at these words from now on. The first look is before the next question. */
    private void watch(JsonNode place) {
        if (this.words == null || !this.words.areAt(place)) {
            this.stopWatching();
            this.words = LaneWords.of(place);
        }
    }

    private void stopWatching() {
        if (this.words != null) {
            this.words.close();
            this.words = null;
        }
    }

    public synchronized Offset reportLatestOffset() {
        return this.storeEnd == null ? null : new StreamOffset(this.storeEnd);
    }

    /** How far behind the queues are, by the names of Kafka's source. */
    public synchronized Map<String, String> metrics(Optional<Offset> consumed) {
        Map<String, String> found = new HashMap<String, String>();
        if (this.storeEnd != null && consumed.isPresent()) {
            addBehind(found, tree(this.storeEnd), tree(((Offset) consumed.get()).json()));
        }
        return found;
    }

    private static void addBehind(Map<String, String> metrics, JsonNode ends, JsonNode done) {
        long least = Long.MAX_VALUE;
        long most = 0;
        long sum = 0;
        long queues = 0;
        Iterator<String> topics = ends.fieldNames();
        while (topics.hasNext()) {
            String topic = (String) topics.next();
            if (topic.startsWith("@")) {
                continue;
            }
            JsonNode read = done.has(topic) ? Json.at(done, topic) : Json.MAPPER.createObjectNode();
            Iterator<String> lanes = Json.at(ends, topic).fieldNames();
            while (lanes.hasNext()) {
                String lane = (String) lanes.next();
                long from = read.has(lane) ? Json.at(read, lane).asLong() : 0;
                long behind = Math.max(Json.at(Json.at(ends, topic), lane).asLong() - from, 0);
                least = Math.min(least, behind);
                most = Math.max(most, behind);
                sum += behind;
                queues++;
            }
        }
        if (queues > 0) {
            metrics.put("minOffsetsBehindLatest", Long.toString(least));
            metrics.put("maxOffsetsBehindLatest", Long.toString(most));
            metrics.put("avgOffsetsBehindLatest", Double.toString((double) sum / queues));
        }
    }

    private static JsonNode tree(String offset) {
        try {
            return Json.of(offset);
        } catch (IOException notJson) {
            throw new IllegalStateException(notJson); // the planner has made it, or read it
        }
    }

    // ---- a batch ---------------------------------------------------------------------------------

    public synchronized InputPartition[] planInputPartitions(Offset start, Offset end) {
        ObjectNode question = question("tasks");
        question.put("start", start.json());
        question.put("end", end.json());
        JsonNode answer = this.answer(question, "planPartitions");
        TaskSlices[] tasks = TaskSlices.all(Json.at(answer, "tasks"));
        if (tasks.length > 0) {
            this.plan = new ReadPlan(answer);
        }
        return tasks;
    }

    /** Spark asks for it after the tasks. Where there are none it has nothing to read. */
    public synchronized PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(this.plan, new RowFilter[0], this.json, this.wanted);
    }

    // ---- Real-Time Mode --------------------------------------------------------------------------

    /** Tasks give back where they have ended as a class of ours. Spark has to find it. */
    public synchronized void prepareForRealTimeMode() {
        if (!JarClasses.areSeenBySpark()) {
            CommitLogException unseen = new CommitLogException("JarNotUsable", "Real-Time Mode needs the jar when Spark "
                + "starts, and this session has taken it later: start Spark, or its Connect server, with --jars and what "
                + "`python -m commitlog.spark.launching.jvm_reader` prints");
            Platform.throwException(unseen.ofStream("prepareForRealTimeMode"));
        }
        this.isRealTime = true;
        this.opening.put("real_time", true);
    }

    synchronized boolean isRealTime() {
        return this.isRealTime;
    }

    /** Tasks that follow the log until the time of their batch is over. */
    public synchronized InputPartition[] planInputPartitions(Offset start) {
        ObjectNode question = question("follow");
        question.put("start", start.json());
        question.put("parallelism", SparkContext.getOrCreate().defaultParallelism());
        this.following = this.answer(question, "planPartitions");
        if (!Json.text(this.following, "base").equals(start.json())) { // another epoch: its messages are others
            this.begun.clear();
        }
        this.storeEnd = Json.text(this.following, "latest");
        this.plan = new ReadPlan(this.following);
        return FollowingTask.all(this.following, this.begun);
    }

    /** Where the batch has ended, by the words of its tasks. */
    public synchronized Offset mergeOffsets(PartitionOffset[] tasks) {
        this.begun.clear();
        ObjectNode question = question("merge");
        question.set("base", Json.at(this.following, "base"));
        question.set("end", Json.at(this.following, "end"));
        ObjectNode reached = question.putObject("reached");
        ArrayNode read = question.putArray("lanes");
        for (int task = 0; task < tasks.length; task++) {
            QueuePosition[] queues = ((TaskPosition) tasks[task]).queues;
            for (int i = 0; i < queues.length; i++) {
                ObjectNode lanes = (ObjectNode) Json.at(reached, queues[i].topic);
                lanes = lanes == null ? reached.putObject(queues[i].topic) : lanes;
                lanes.put(Integer.toString(queues[i].lane), queues[i].next);
                if (queues[i].rows > 0) {
                    this.begun.put(queues[i].key(), queues[i]);
                }
            }
            LanePosition[] ahead = ((TaskPosition) tasks[task]).lanes;
            for (int i = 0; i < ahead.length; i++) {
                ObjectNode one = read.addObject();
                one.put("lane", ahead[i].lane);
                one.put("where", ahead[i].where);
                one.put("last", ahead[i].last);
                one.put("head", ahead[i].headInHex());
            }
        }
        JsonNode answer = this.answer(question, "mergeOffsets");
        this.storeEnd = Json.text(answer, "latest");
        if (!Json.at(answer, "lost").isEmpty()) {
            this.begun.clear(); // rows of messages that are lost do not count for new ones
        }
        return new StreamOffset(Json.text(answer, "offset"));
    }

    /** Keeps nothing: the next `latestOffset` begins there. */
    public void commit(Offset end) {
        return;
    }

    public synchronized void stop() {
        this.stopWatching();
        this.planner.end();
    }
}
