package commitlog.spark;

import org.apache.spark.sql.connector.expressions.filter.Not;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A filter on topic, partition or offset. It cuts a slice to exactly the rows that it keeps.
 *
 * The plan is made before and stays as it is, so a frame may be filtered in many ways.
 */
final class RowFilter {
    private final String column;
    private final String operation;
    private final Object[] values;
    private final boolean isNegated;

    private RowFilter(Comparison comparison, boolean isNegated) {
        this.column = comparison.column;
        this.operation = comparison.operation;
        this.values = comparison.values;
        this.isNegated = isNegated;
    }

    /** The filter that a predicate of Spark's is; null if Spark has to filter. The columns' names begin with a prefix. */
    static RowFilter of(Predicate predicate, String prefix) {
        boolean isNegated = predicate instanceof Not;
        Comparison found = Comparison.of(isNegated ? ((Not) predicate).child() : predicate, prefix);
        RowFilter made = found == null ? null : new RowFilter(found, isNegated);
        return made != null && made.isExact() ? made : null;
    }

    private boolean isExact() {
        switch (this.column) {
            case "topic":
                return this.isKnown(UTF8String.class, true);
            case "partition":
                return this.isKnown(Integer.class, true);
            case "offset": // the rows that are kept are one range
                return !this.isNegated && this.isKnown(Long.class, false);
            default:
                return false;
        }
    }

    /** Whether the operation is known, and its values are of this type. */
    private boolean isKnown(Class<?> type, boolean isMany) {
        for (int i = 0; i < this.values.length; i++) {
            if (!type.isInstance(this.values[i])) {
                return false;
            }
        }
        switch (this.operation) {
            case "IS_NOT_NULL":
                return !this.isNegated && this.values.length == 0;
            case "IN":
                return isMany && this.values.length > 0;
            case "=":
            case "<=>":
            case "<":
            case "<=":
            case ">":
            case ">=":
                return this.values.length == 1;
            default:
                return false;
        }
    }

    /** The rows of a slice that the filter keeps; null if it keeps none. */
    Slice cut(Slice slice) {
        if (this.values.length == 0) {
            return slice;
        }
        if (this.column.equals("offset")) {
            return this.cutOffsets(slice);
        }
        for (int i = 0; i < this.values.length; i++) {
            int order = this.column.equals("topic")
                ? UTF8String.fromString(slice.topic).compareTo((UTF8String) this.values[i])
                : Integer.compare(slice.lane, ((Integer) this.values[i]).intValue());
            if (this.holds(order)) {
                return this.isNegated ? null : slice;
            }
        }
        return this.isNegated ? slice : null;
    }

    private boolean holds(int order) {
        switch (this.operation) {
            case "<":
                return order < 0;
            case "<=":
                return order <= 0;
            case ">":
                return order > 0;
            case ">=":
                return order >= 0;
            default:
                return order == 0;
        }
    }

    private Slice cutOffsets(Slice slice) {
        long value = ((Long) this.values[0]).longValue();
        long behind = value == Long.MAX_VALUE ? value : value + 1; // no row has that offset
        switch (this.operation) {
            case "<":
                return slice.between(slice.start, value);
            case "<=":
                return slice.between(slice.start, behind);
            case ">":
                return slice.between(behind, slice.end);
            case ">=":
                return slice.between(value, slice.end);
            default:
                return slice.between(value, behind);
        }
    }
}
