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

    static TaskSlices of(List<Slice> slices) {
        return new TaskSlices((Slice[]) slices.toArray(new Slice[0]));
    }

    /** What the filters keep of this task; null if they keep nothing. */
    TaskSlices cut(RowFilter[] filters) {
        List<Slice> kept = new ArrayList<Slice>();
        for (int i = 0; i < this.slices.length; i++) {
            Slice slice = this.slices[i];
            for (int k = 0; k < filters.length && slice != null; k++) {
                slice = filters[k].cut(slice);
            }
            if (slice != null) {
                kept.add(slice);
            }
        }
        return kept.isEmpty() ? null : of(kept);
    }
}
