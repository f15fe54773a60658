package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;
import org.apache.spark.unsafe.Platform;

/**
 * What a loaded frame reads: planned at its first use, from the store's content at that moment.
 *
 * All scans of the frame share it, so that they have the same rows.
 */
final class PlannedBatch {
    /** How the columns that say where a row is from begin: `offset`, or `_offset` beside a topic's own. */
    final String prefix;
    final Map<String, String> options;
    /** Whether each query reads all columns: damage in any of them leaves a row out. */
    final boolean isWhole;
    /** What values are parsed for; null if they are not parsed. */
    final JsonValues json;
    private ReadPlan plan;
    private TaskSlices[] tasks;

    PlannedBatch(Map<String, String> options, boolean isTyped, boolean isWhole, JsonValues json) {
        this.options = options;
        this.isWhole = isWhole;
        this.json = json;
        this.prefix = isTyped || json != null ? "_" : "";
    }

    synchronized ReadPlan plan() {
        this.ask();
        return this.plan;
    }

    synchronized TaskSlices[] tasks() {
        this.ask();
        return this.tasks;
    }

    private void ask() {
        if (this.plan != null) {
            return;
        }
        try {
            JsonNode answer = Planner.ask(Planner.question("batch", this.options));
            this.tasks = TaskSlices.all(Json.at(answer, "tasks"));
            this.plan = new ReadPlan(answer);
        } catch (CommitLogException error) {
            Platform.throwException(error.ofPlan());
        }
    }
}
