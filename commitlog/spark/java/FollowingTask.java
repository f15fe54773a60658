package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.connector.read.InputPartition;

/** A task of Real-Time Mode: a backlog that was there when it was planned, and lanes to follow. */
final class FollowingTask implements InputPartition {
    private static final long serialVersionUID = 1;

    final RealTimePlan plan;
    final Slice[] backlog;
    final LaneEnd[] lanes;
    /** Where the last batch ended inside a message, among the queues of the backlog. */
    final QueuePosition[] begun;

    private FollowingTask(RealTimePlan plan, Slice[] backlog, LaneEnd[] lanes, QueuePosition[] begun) {
        this.plan = plan;
        this.backlog = backlog;
        this.lanes = lanes;
        this.begun = begun;
    }

    /** The tasks of an answer. `begun` has the queues of which a message is read in part, by their keys. */
    static FollowingTask[] all(JsonNode answer, Map<String, QueuePosition> begun) {
        RealTimePlan plan = new RealTimePlan(answer);
        TaskSlices[] backlogs = TaskSlices.all(Json.at(answer, "tasks"));
        FollowingTask[] made = new FollowingTask[backlogs.length];
        for (int task = 0; task < made.length; task++) {
            JsonNode ends = Json.at(Json.at(answer, "lanes"), task);
            LaneEnd[] lanes = new LaneEnd[ends.size()];
            for (int i = 0; i < lanes.length; i++) {
                lanes[i] = new LaneEnd(Json.at(ends, i));
            }
            Slice[] backlog = backlogs[task].slices;
            List<QueuePosition> parts = new ArrayList<QueuePosition>();
            for (int i = 0; i < backlog.length; i++) {
                QueuePosition part = (QueuePosition) begun.get(QueuePosition.key(backlog[i].topic, backlog[i].lane));
                if (part != null && part.next == backlog[i].start) {
                    parts.add(part);
                }
            }
            made[task] = new FollowingTask(plan, backlog, lanes, (QueuePosition[]) parts.toArray(new QueuePosition[0]));
        }
        return made;
    }
}
