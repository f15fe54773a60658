package commitlog.spark;

import java.util.Arrays;
import java.util.Iterator;
import java.util.Set;

/** A set of queue offsets, as ranges [first, behind). */
final class OffsetRanges {
    static final OffsetRanges NONE = new OffsetRanges(new long[0]);
    static final OffsetRanges ALL = new OffsetRanges(new long[] {0, Long.MAX_VALUE});

    /** The ranges' bounds, which ascend: first, behind, first, behind. */
    private final long[] bounds;

    private OffsetRanges(long[] bounds) {
        this.bounds = bounds;
    }

    static OffsetRanges between(long first, long behind) {
        long from = Math.max(first, 0);
        return from < behind ? new OffsetRanges(new long[] {from, behind}) : NONE;
    }

    /** Single offsets. No row has a negative one, nor the largest number. */
    static OffsetRanges of(Set<Object> offsets) {
        long[] sorted = new long[offsets.size()];
        int count = 0;
        Iterator<Object> each = offsets.iterator();
        while (each.hasNext()) {
            sorted[count++] = ((Long) each.next()).longValue();
        }
        Arrays.sort(sorted);
        long[] found = new long[2 * count];
        int used = 0;
        for (int i = 0; i < count; i++) {
            if (sorted[i] < 0 || sorted[i] == Long.MAX_VALUE) {
                continue;
            }
            if (used > 0 && found[used - 1] == sorted[i]) {
                found[used - 1]++;
            } else {
                found[used++] = sorted[i];
                found[used++] = sorted[i] + 1;
            }
        }
        return new OffsetRanges(Arrays.copyOf(found, used));
    }

    /** All other offsets. */
    OffsetRanges not() {
        int count = this.bounds.length;
        boolean isFirstIn = count > 0 && this.bounds[0] == 0;
        boolean isLastIn = count > 0 && this.bounds[count - 1] == Long.MAX_VALUE;
        long[] kept = Arrays.copyOfRange(this.bounds, isFirstIn ? 1 : 0, isLastIn ? count - 1 : count);
        long[] found = new long[kept.length + (isFirstIn ? 0 : 1) + (isLastIn ? 0 : 1)];
        System.arraycopy(kept, 0, found, isFirstIn ? 0 : 1, kept.length); // before it is 0
        if (!isLastIn) {
            found[found.length - 1] = Long.MAX_VALUE;
        }
        return new OffsetRanges(found);
    }

    /** The offsets that are in both. */
    OffsetRanges and(OffsetRanges other) {
        long[] found = new long[this.bounds.length + other.bounds.length];
        int used = 0;
        int mine = 0;
        int theirs = 0;
        while (mine < this.bounds.length && theirs < other.bounds.length) {
            long first = Math.max(this.bounds[mine], other.bounds[theirs]);
            long behind = Math.min(this.bounds[mine + 1], other.bounds[theirs + 1]);
            if (first < behind) {
                found[used++] = first;
                found[used++] = behind;
            }
            if (this.bounds[mine + 1] == behind) {
                mine += 2;
            } else {
                theirs += 2;
            }
        }
        return new OffsetRanges(Arrays.copyOf(found, used));
    }

    /** The offsets that are in one of the two. */
    OffsetRanges or(OffsetRanges other) {
        return this.not().and(other.not()).not();
    }

    boolean isEmpty() {
        return this.bounds.length == 0;
    }

    int count() {
        return this.bounds.length / 2;
    }

    long first(int range) {
        return this.bounds[2 * range];
    }

    long behind(int range) {
        return this.bounds[2 * range + 1];
    }

    /** How many offsets there are. */
    long size() {
        long total = 0;
        for (int range = 0; range < this.count(); range++) {
            total += this.behind(range) - this.first(range);
        }
        return total;
    }
}
