package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.filter.Predicate;

/**
 * The times that a query wants of column `timestamp`. They narrow what is read.
 *
 * They narrow it as far as the planner is sure of: Spark filters the rows again.
 */
final class TimeFilter {
    private static final long MICROS = 1000;
    private static final int QUEUES_MOST = 10000;

    /** Milliseconds since 1970, both included. */
    private long since = Long.MIN_VALUE;
    private long until = Long.MAX_VALUE;

    /** What the predicates, which all hold, say of the times. The column's name begins with a prefix. */
    static TimeFilter of(List<Predicate> predicates, String prefix) {
        TimeFilter made = new TimeFilter();
        for (int i = 0; i < predicates.size(); i++) {
            Comparison found = Comparison.of((Predicate) predicates.get(i), prefix);
            if (found != null && found.column.equals("timestamp")
                && found.values.length == 1 && found.values[0] instanceof Long) {
                made.add(found.operation, Math.floorDiv(((Long) found.values[0]).longValue(), MICROS));
            }
        }
        return made;
    }

    private void add(String operation, long wanted) {
        switch (operation) {
            case ">":
            case ">=":
                this.since = Math.max(this.since, wanted);
                break;
            case "<":
            case "<=":
                this.until = Math.min(this.until, wanted);
                break;
            case "=":
            case "<=>":
                this.since = Math.max(this.since, wanted);
                this.until = Math.min(this.until, wanted);
                break;
            default:
                break;
        }
    }

    boolean isGiven() {
        return this.since != Long.MIN_VALUE || this.until != Long.MAX_VALUE;
    }

    public String toString() {
        return "[" + (this.since == Long.MIN_VALUE ? "" : this.since + " ms") + ", "
            + (this.until == Long.MAX_VALUE ? "" : this.until + " ms") + "]";
    }

    /** The tasks without the rows of other times. What goes wrong here, the read of all rows names. */
    TaskSlices[] narrowed(TaskSlices[] tasks, PlannedBatch planned) {
        ObjectNode question = Planner.question("times", planned.options);
        put(question, "since", this.since, Long.MIN_VALUE);
        put(question, "until", this.until, Long.MAX_VALUE);
        ArrayNode queues = question.putArray("queues");
        for (int i = 0; i < tasks.length; i++) {
            for (int k = 0; k < tasks[i].slices.length; k++) {
                queues.addArray().add(tasks[i].slices[k].topic).add(tasks[i].slices[k].lane);
            }
        }
        if (queues.isEmpty() || queues.size() > QUEUES_MOST) {
            return tasks;
        }
        try {
            JsonNode answer = Planner.ask(question);
            boolean isTheSame = Json.text(answer, "store_id").equals(planned.plan().storeId)
                && Json.at(answer, "epoch").asLong() == planned.plan().epoch;
            return isTheSame ? cut(tasks, Json.at(answer, "ranges")) : tasks;
        } catch (CommitLogException error) {
            return tasks;
        }
    }

    private static void put(ObjectNode question, String name, long bound, long none) {
        if (bound == none) {
            question.putNull(name);
        } else {
            question.put(name, bound);
        }
    }

    /** The tasks with each slice cut to its range. */
    private static TaskSlices[] cut(TaskSlices[] tasks, JsonNode ranges) {
        List<TaskSlices> kept = new ArrayList<TaskSlices>();
        int at = 0;
        for (int i = 0; i < tasks.length; i++) {
            List<Slice> slices = new ArrayList<Slice>();
            for (int k = 0; k < tasks[i].slices.length; k++) {
                JsonNode range = Json.at(ranges, at++);
                JsonNode behind = Json.at(range, 1);
                Slice slice = tasks[i].slices[k].between(
                    Json.at(range, 0).asLong(), behind.isNull() ? Long.MAX_VALUE : behind.asLong());
                if (slice != null) {
                    slices.add(slice);
                }
            }
            if (!slices.isEmpty()) {
                kept.add(TaskSlices.of(slices));
            }
        }
        return (TaskSlices[]) kept.toArray(new TaskSlices[0]);
    }
}
