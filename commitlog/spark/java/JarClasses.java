package commitlog.spark;

/** Who sees the classes of this jar: all threads of the driver, or only those of a session that has taken the jar. */
final class JarClasses {
    /** A thread of Spark's own, which has run since its start. */
    private static final String OF_SPARK = "spark-listener-group-appStatus";

    private JarClasses() {
    }

    /** Whether Spark's own threads see them. They make metrics for its UI, and read what tasks give back. */
    static boolean areSeenBySpark() {
        ThreadGroup all = Thread.currentThread().getThreadGroup();
        while (all.getParent() != null) {
            all = all.getParent();
        }
        Thread[] threads = new Thread[2 * all.activeCount() + 64];
        int count = all.enumerate(threads);
        for (int i = 0; i < count; i++) {
            if (threads[i].getName().equals(OF_SPARK)) {
                try {
                    Class.forName(JarClasses.class.getName(), false, threads[i].getContextClassLoader());
                    return true;
                } catch (ClassNotFoundException unseen) {
                    return false;
                }
            }
        }
        return false;
    }
}
