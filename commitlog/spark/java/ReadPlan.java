package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;

/** What the tasks of one read have in common. */
final class ReadPlan implements Serializable {
    private static final long serialVersionUID = 1;

    final String storeFile;
    final String storeId;
    final long segmentBytes;
    final String[] reservedNames;
    final String reservedPrefix;
    /** The plan as Python gave it, for what is handed back to Python. */
    final String forPython;
    final String interpreter;

    ReadPlan(JsonNode answer) {
        this.storeFile = Json.text(answer, "store_file");
        this.storeId = Json.text(answer, "store_id");
        this.segmentBytes = Json.at(answer, "segment_bytes").asLong();
        this.reservedNames = Json.texts(Json.at(answer, "reserved_names"));
        this.reservedPrefix = Json.text(answer, "reserved_prefix");
        this.forPython = Json.text(answer, "for_python");
        this.interpreter = PythonCommand.interpreter();
    }
}
