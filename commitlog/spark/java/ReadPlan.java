package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.HashMap;
import org.apache.spark.sql.types.StructType;

/** What the tasks of one read have in common. */
final class ReadPlan implements Serializable {
    private static final long serialVersionUID = 1;

    final String storeFile;
    final String storeId;
    final long epoch;
    final long segmentBytes;
    final String[] reservedNames;
    final String reservedPrefix;
    /** The plan as Python gave it, for what is handed back to Python. */
    final String forPython;
    final String interpreter;
    /** The layouts of typed messages, by topic and version. A read of bytes has none. */
    final HashMap<String, MessageLayout> layouts = new HashMap<String, MessageLayout>();
    final boolean isTyped;
    /** Whether each planned offset gives a row: a message of a typed topic may have many. */
    final boolean isComplete;

    ReadPlan(JsonNode answer) {
        this.storeFile = Json.text(answer, "store_file");
        this.storeId = Json.text(answer, "store_id");
        this.epoch = Json.at(answer, "epoch").asLong();
        this.segmentBytes = Json.at(answer, "segment_bytes").asLong();
        this.reservedNames = Json.texts(Json.at(answer, "reserved_names"));
        this.reservedPrefix = Json.text(answer, "reserved_prefix");
        this.forPython = Json.text(answer, "for_python");
        this.interpreter = PythonCommand.interpreter();
        this.isTyped = answer.has("layouts");
        this.isComplete = answer.has("complete");
        JsonNode found = this.isTyped ? Json.at(answer, "layouts") : Json.MAPPER.createArrayNode();
        for (int i = 0; i < found.size(); i++) {
            JsonNode one = Json.at(found, i);
            this.layouts.put(layoutName(Json.text(one, "topic"), Json.at(one, "version").asInt()), new MessageLayout(one));
        }
    }

    /** Makes batches of these columns of whatever records it is given. */
    BatchMaker batchMaker(StructType wanted) {
        return this.isTyped ? new TypedBatches(this, wanted)
            : new ColumnBuilder(wanted, this.reservedNames, this.reservedPrefix);
    }

    static String layoutName(String topic, int version) {
        return topic + "/" + version;
    }
}
