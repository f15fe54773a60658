package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import java.io.Serializable;

/**
 * The rows [start, end) of one topic in one lane: Slice of commitlog/columns/read_plan.py.
 *
 * Beside it are the directories that have its bytes.
 */
final class Slice implements Serializable {
    private static final long serialVersionUID = 1;

    final String topic;
    final int lane;
    final long start;
    final long end;
    final long walkFrom;
    final long limit;
    final String log;
    final String queue;
    final String quarantine;

    Slice(JsonNode fields) {
        this.topic = Json.text(fields, "topic");
        this.lane = Json.at(fields, "lane").asInt();
        this.start = Json.at(fields, "start").asLong();
        this.end = Json.at(fields, "end").asLong();
        this.walkFrom = Json.at(fields, "walk_from").asLong();
        this.limit = Json.at(fields, "limit").asLong();
        this.log = Json.text(fields, "log");
        this.queue = Json.text(fields, "queue");
        this.quarantine = Json.text(fields, "quarantine");
    }

    private Slice(Slice whole, long start, long end, long walkFrom) {
        this.topic = whole.topic;
        this.lane = whole.lane;
        this.start = start;
        this.end = end;
        this.walkFrom = walkFrom;
        this.limit = whole.limit;
        this.log = whole.log;
        this.queue = whole.queue;
        this.quarantine = whole.quarantine;
    }

    /** The rows of this slice that are in [first, behind); null if there are none. */
    Slice between(long first, long behind) {
        long from = Math.max(this.start, first);
        long to = Math.min(this.end, behind);
        return from < to ? this.part(from, to, this.walkFrom) : null;
    }

    /** The rows [start, end) of this slice, to which a walk may begin there. */
    Slice part(long start, long end, long walkFrom) {
        return new Slice(this, start, end, walkFrom);
    }

    /** Adds the slice, as Python's Slice takes it. */
    void addTo(ArrayNode slices) {
        slices.addArray().add(this.topic).add(this.lane).add(this.start).add(this.end).add(this.walkFrom).add(this.limit);
    }
}
