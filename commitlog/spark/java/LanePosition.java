package commitlog.spark;

import java.io.Serializable;

/** How far the log of a lane was walked, and the first bytes of its last record, by which it is known. */
final class LanePosition implements Serializable {
    private static final long serialVersionUID = 1;

    final int lane;
    final long where;
    final long last;
    final byte[] head;

    LanePosition(int lane, long where, long last, byte[] head) {
        this.lane = lane;
        this.where = where;
        this.last = last;
        this.head = head;
    }

    String headInHex() {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < this.head.length; i++) {
            text.append(Character.forDigit(this.head[i] >> 4 & 15, 16)).append(Character.forDigit(this.head[i] & 15, 16));
        }
        return text.toString();
    }
}
