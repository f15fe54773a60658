package commitlog.spark;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Timer;
import java.util.TimerTask;

/**
 * Python processes whose task has ended. The next task of the same function in the same query takes one.
 *
 * A stream has a task in each of its batches, and a process takes a third of a second to start. Another
 * start of the query gets new ones: a function may have files open that were removed since.
 */
final class IdleProcesses extends TimerTask {
    private static final long PATIENCE_MS = 30_000;
    private static final long LOOK_MS = 5_000;
    private static final IdleProcesses ALL = new IdleProcesses();

    static {
        new Timer("commitlog-idle-processes", true).schedule(ALL, LOOK_MS, LOOK_MS);
    }

    private final List<RowsProcess> idle = new ArrayList<RowsProcess>();

    private IdleProcesses() {
    }

    /** A process of this function: one that waits, or a new one. */
    static RowsProcess take(RowsFunction function, String run) throws CommitLogException {
        RowsProcess found = ALL.taken(function, run);
        return found == null ? new RowsProcess(function, run) : found;
    }

    static void give(RowsProcess process) {
        ALL.given(process);
    }

    synchronized RowsProcess taken(RowsFunction function, String run) {
        Iterator<RowsProcess> each = this.idle.iterator();
        while (each.hasNext()) {
            RowsProcess one = (RowsProcess) each.next();
            if (one.run.equals(run) && one.function.equals(function)) {
                each.remove();
                if (one.isUsable()) {
                    return one;
                }
                one.end(); // somebody has killed it
            }
        }
        return null;
    }

    synchronized void given(RowsProcess process) {
        process.idleSinceNs = System.nanoTime();
        this.idle.add(process);
    }

    /** Ends those that nobody took for a while. */
    public synchronized void run() {
        long now = System.nanoTime();
        Iterator<RowsProcess> each = this.idle.iterator();
        while (each.hasNext()) {
            RowsProcess one = (RowsProcess) each.next();
            if (now - one.idleSinceNs > PATIENCE_MS * 1_000_000) {
                each.remove();
                one.end();
            }
        }
    }
}
