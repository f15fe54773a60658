package commitlog.spark;

import java.nio.ByteBuffer;

/** Which rows of a column are null: a bit for each, which is 0 then. The bits are not there if none is. */
final class Validity {
    final ByteBuffer bytes;
    final int nulls;
    private final int at;

    Validity(ByteBuffer bytes, int at, int nulls) {
        this.bytes = bytes;
        this.at = at;
        this.nulls = nulls;
    }

    boolean isNull(int row) {
        return this.nulls > 0 && (this.bytes.get(this.at + (row >> 3)) >> (row & 7) & 1) == 0;
    }

    /** How many of the first rows are null by their bits. */
    int count(int rows) {
        int set = 0;
        int row = 0;
        for (; row + Long.SIZE <= rows; row += Long.SIZE) {
            set += Long.bitCount(this.bytes.getLong(this.at + (row >> 3)));
        }
        for (; row < rows; row++) {
            set += this.bytes.get(this.at + (row >> 3)) >> (row & 7) & 1;
        }
        return rows - set;
    }
}
