package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/** What one task of Spark reads. */
final class TaskSlices implements InputPartition {
    private static final long serialVersionUID = 1;

    final Slice[] slices;

    private TaskSlices(Slice[] slices) {
        this.slices = slices;
    }

    static TaskSlices of(JsonNode slices) {
        Slice[] made = new Slice[slices.size()];
        for (int i = 0; i < made.length; i++) {
            made[i] = new Slice(Json.at(slices, i));
        }
        return new TaskSlices(made);
    }

    /** The tasks of a plan. */
    static TaskSlices[] all(JsonNode tasks) {
        TaskSlices[] made = new TaskSlices[tasks.size()];
        for (int i = 0; i < made.length; i++) {
            made[i] = of(Json.at(tasks, i));
        }
        return made;
    }

    static TaskSlices of(List<Slice> slices) {
        return new TaskSlices((Slice[]) slices.toArray(new Slice[0]));
    }

    /** What the filters may keep of this task; null if they keep nothing. A slice may have other rows between. */
    TaskSlices cut(RowFilter[] filters) {
        List<Slice> kept = new ArrayList<Slice>();
        for (int i = 0; i < this.slices.length; i++) {
            OffsetRanges found = RowFilter.kept(filters, this.slices[i]);
            if (!found.isEmpty()) {
                kept.add(this.slices[i].between(found.first(0), found.behind(found.count() - 1)));
            }
        }
        return kept.isEmpty() ? null : of(kept);
    }

    /** How many messages the filters keep of this task. */
    long messages(RowFilter[] filters) {
        long total = 0;
        for (int i = 0; i < this.slices.length; i++) {
            total += RowFilter.kept(filters, this.slices[i]).size();
        }
        return total;
    }
}
