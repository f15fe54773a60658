package commitlog.spark;

import java.nio.ByteBuffer;

/**
 * The pairs of one record's properties, in stored order.
 *
 * The rules are those of commitlog/columns/property_pairs.py. A pair ends at 0x02 or with the record.
 * The first 0x01 of a pair divides it. A pair with an empty name or value does not count.
 */
final class Properties {
    int nameAt;
    int nameEnd;
    int valueEnd; // the value begins at nameEnd + 1
    private final ByteBuffer bytes;
    private int next;
    private int end;

    Properties(ByteBuffer bytes) {
        this.bytes = bytes;
    }

    /** Begins with the record whose properties are [start, end). The appended CRC is left out. */
    void begin(int start, int end) {
        this.next = start;
        this.end = end;
        int crcAt = end - RecordLayout.CRC_PROPERTY_BYTES;
        if (crcAt >= start && this.bytes.getLong(crcAt) == RecordLayout.CRC_PROPERTY_NAME
                && this.bytes.get(crcAt + RecordLayout.CRC_PROPERTY_NAME_BYTES) == RecordLayout.NAME_VALUE_SEPARATOR) {
            this.end = crcAt;
        }
    }

    /** Goes to the next pair that counts. False if there is none. */
    boolean advance() {
        while (this.next < this.end) {
            int divide = -1;
            int at = this.next;
            while (at < this.end) {
                byte one = this.bytes.get(at);
                if (one == RecordLayout.PROPERTY_SEPARATOR) {
                    break;
                }
                if (one == RecordLayout.NAME_VALUE_SEPARATOR && divide < 0) {
                    divide = at;
                }
                at++;
            }
            this.nameAt = this.next;
            this.nameEnd = divide;
            this.valueEnd = at;
            this.next = at + 1;
            if (divide > this.nameAt && divide + 1 < at) {
                return true;
            }
        }
        return false;
    }

    int valueAt() {
        return this.nameEnd + 1;
    }

    boolean isNamed(byte[] name) {
        return this.nameEnd - this.nameAt == name.length && this.begins(name);
    }

    /** Whether the name begins with these bytes. */
    boolean begins(byte[] prefix) {
        if (this.nameEnd - this.nameAt < prefix.length) {
            return false;
        }
        for (int i = 0; i < prefix.length; i++) {
            if (this.bytes.get(this.nameAt + i) != prefix[i]) {
                return false;
            }
        }
        return true;
    }

    byte[] value() {
        byte[] found = new byte[this.valueEnd - this.valueAt()];
        this.bytes.get(this.valueAt(), found, 0, found.length);
        return found;
    }

    byte[] name() {
        byte[] found = new byte[this.nameEnd - this.nameAt];
        this.bytes.get(this.nameAt, found, 0, found.length);
        return found;
    }
}
