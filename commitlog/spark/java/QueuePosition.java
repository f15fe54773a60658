package commitlog.spark;

import java.io.Serializable;

/** How far one topic is read in one lane. */
final class QueuePosition implements Serializable {
    private static final long serialVersionUID = 1;

    final String topic;
    final int lane;
    final long next;
    /** How many rows of the message at `next` were read. Only a typed message has several. */
    final int rows;

    QueuePosition(String topic, int lane, long next, int rows) {
        this.topic = topic;
        this.lane = lane;
        this.next = next;
        this.rows = rows;
    }

    /** A key of the queue. A topic has no slash. */
    static String key(String topic, int lane) {
        return topic + "/" + lane;
    }

    String key() {
        return key(this.topic, this.lane);
    }
}
