package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.read.InputPartition;

/** What one task of Spark reads. */
final class TaskSlices implements InputPartition {
    private static final long serialVersionUID = 1;

    final Slice[] slices;

    TaskSlices(JsonNode slices) {
        this.slices = new Slice[slices.size()];
        for (int i = 0; i < this.slices.length; i++) {
            this.slices[i] = new Slice(Json.at(slices, i));
        }
    }
}
