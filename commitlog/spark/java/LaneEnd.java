package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.Iterator;
import java.util.LinkedHashMap;

/** Where the log of one lane ended when a batch of Real-Time Mode was planned. A task goes on there. */
final class LaneEnd implements Serializable {
    private static final long serialVersionUID = 1;

    final int lane;
    final String log;
    /** Where the next record begins. */
    final long from;
    /** False if there is damage: nobody can go on there until the planner has looked again. */
    final boolean isWhole;
    /** The file of its write buffers. */
    final String buffers;
    /** Topic → the queue offset of its next message. */
    final LinkedHashMap<String, Long> next = new LinkedHashMap<String, Long>();

    LaneEnd(JsonNode fields) {
        this.lane = Json.at(fields, "lane").asInt();
        this.log = Json.text(fields, "log");
        this.from = Json.at(fields, "from").asLong();
        this.isWhole = Json.at(fields, "is_whole").asBoolean();
        this.buffers = Json.text(fields, "buffers");
        JsonNode topics = Json.at(fields, "next");
        Iterator<String> names = topics.fieldNames();
        while (names.hasNext()) {
            String topic = (String) names.next();
            this.next.put(topic, Long.valueOf(Json.at(topics, topic).asLong()));
        }
    }
}
