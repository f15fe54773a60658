package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.Serializable;
import java.util.Arrays;
import java.util.HashSet;
import org.apache.spark.unsafe.types.UTF8String;

/** What all tasks of one batch of Real-Time Mode look at (commitlog/spark/real_time_plans.py). */
final class RealTimePlan implements Serializable {
    private static final long serialVersionUID = 1;

    final WatchedFile[] watched;
    /** The lane that comes next, among the words; -1 if the store has all that it may have. */
    final int newLane;
    /** Where the lanes' words are, as LaneWords takes it. */
    private final String words;
    /** Where write buffers are, as WriteBuffers takes it; the text of null if they are not read. */
    private final String buffers;
    /** Whether messages are read before they are flushed. */
    final boolean isAhead;
    /** The known topics that a pattern does not match; null if topics are chosen by name. */
    private final HashSet<String> passedOver;

    RealTimePlan(JsonNode answer) {
        JsonNode files = Json.at(answer, "watched");
        this.watched = new WatchedFile[files.size()];
        for (int i = 0; i < this.watched.length; i++) {
            this.watched[i] = new WatchedFile(Json.at(files, i));
        }
        this.newLane = Json.at(answer, "new_lane").asInt();
        this.words = Json.at(answer, "words").toString();
        this.buffers = Json.at(answer, "buffers").toString();
        this.isAhead = Json.at(answer, "is_ahead").asBoolean();
        JsonNode others = Json.at(answer, "passed_over");
        this.passedOver = others.isNull() ? null : new HashSet<String>(Arrays.asList(Json.texts(others)));
    }

    /** The lanes' words; null if there is no shared memory, so that no position moves. */
    LaneWords words() throws IOException {
        return LaneWords.of(Json.of(this.words));
    }

    /** The write buffers of a lane; null if they are not read. */
    WriteBuffers buffers(LaneEnd lane, long segmentBytes) throws IOException {
        JsonNode rows = Json.of(this.buffers);
        return rows.isNull() ? null : new WriteBuffers(rows, lane.lane, lane.buffers, segmentBytes);
    }

    /** Whether nobody reads a topic. Where that is not known the planner has to look. */
    void checkPassedOver(UTF8String topic) throws Unreadable {
        if (this.passedOver != null && !this.passedOver.contains(topic.toString())) {
            throw new Unreadable("a topic that was not there when the batch was planned");
        }
    }
}
