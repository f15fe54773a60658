package commitlog.spark;

import java.io.Serializable;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A filter on topic, partition and offset. It says which offsets of a slice it keeps, exactly.
 *
 * The plan is made before and stays as it is, so a frame may be filtered in many ways. No row has a
 * null in these columns, so a filter is true or false.
 */
final class RowFilter implements Serializable {
    private static final long serialVersionUID = 1;

    private final String operation;
    /** The filters that AND, OR and NOT are of. A comparison has none. */
    private final RowFilter[] parts;
    private final String column;
    private final Set<Object> values;
    private transient OffsetRanges offsets;

    private RowFilter(String operation, RowFilter[] parts) {
        this.operation = operation;
        this.parts = parts;
        this.column = "";
        this.values = null;
    }

    private RowFilter(Comparison comparison) {
        this.operation = comparison.operation;
        this.parts = null;
        this.column = comparison.column;
        this.values = new HashSet<Object>(Arrays.asList(comparison.values));
    }

    /** The filter that a predicate of Spark's is; null if Spark has to filter. The columns' names begin with a prefix. */
    static RowFilter of(Predicate predicate, String prefix) {
        String name = predicate.name();
        if (name.equals("AND") || name.equals("OR") || name.equals("NOT")) {
            Expression[] children = predicate.children();
            RowFilter[] parts = new RowFilter[children.length];
            for (int i = 0; i < parts.length; i++) {
                parts[i] = children[i] instanceof Predicate ? of((Predicate) children[i], prefix) : null;
                if (parts[i] == null) {
                    return null;
                }
            }
            return new RowFilter(name, parts);
        }
        Comparison found = Comparison.of(predicate, prefix);
        return found != null && isExact(found) ? new RowFilter(found) : null;
    }

    /** Whether the column is one of ours, the operation is known, and the values are of its type. */
    private static boolean isExact(Comparison comparison) {
        Class<?> type;
        switch (comparison.column) {
            case "topic":
                type = UTF8String.class;
                break;
            case "partition":
                type = Integer.class;
                break;
            case "offset":
                type = Long.class;
                break;
            default:
                return false;
        }
        for (int i = 0; i < comparison.values.length; i++) {
            if (!type.isInstance(comparison.values[i])) {
                return false;
            }
        }
        switch (comparison.operation) {
            case "IS_NULL":
            case "IS_NOT_NULL":
                return comparison.values.length == 0;
            case "IN":
                return comparison.values.length > 0;
            case "=":
            case "<=>":
            case "<>":
            case "<":
            case "<=":
            case ">":
            case ">=":
                return comparison.values.length == 1;
            default:
                return false;
        }
    }

    /** The offsets of a slice that all filters keep. */
    static OffsetRanges kept(RowFilter[] filters, Slice slice) {
        OffsetRanges found = OffsetRanges.between(slice.start, slice.end);
        for (int i = 0; i < filters.length && !found.isEmpty(); i++) {
            found = found.and(filters[i].kept(slice));
        }
        return found;
    }

    private OffsetRanges kept(Slice slice) {
        switch (this.operation) {
            case "AND":
                return this.parts[0].kept(slice).and(this.parts[1].kept(slice));
            case "OR":
                return this.parts[0].kept(slice).or(this.parts[1].kept(slice));
            case "NOT":
                return this.parts[0].kept(slice).not();
            case "IS_NULL":
                return OffsetRanges.NONE;
            case "IS_NOT_NULL":
                return OffsetRanges.ALL;
            default:
                break;
        }
        if (!this.column.equals("offset")) {
            return this.holds(slice) ? OffsetRanges.ALL : OffsetRanges.NONE;
        }
        if (this.offsets == null) {
            this.offsets = this.offsets();
        }
        return this.offsets;
    }

    private OffsetRanges offsets() {
        switch (this.operation) {
            case "<":
                return OffsetRanges.between(0, this.number());
            case "<=":
                return OffsetRanges.between(0, this.behind());
            case ">":
                return OffsetRanges.between(this.behind(), Long.MAX_VALUE);
            case ">=":
                return OffsetRanges.between(this.number(), Long.MAX_VALUE);
            case "<>":
                return OffsetRanges.of(this.values).not();
            default:
                return OffsetRanges.of(this.values);
        }
    }

    private long number() {
        return ((Long) this.value()).longValue();
    }

    private long behind() {
        long value = this.number();
        return value == Long.MAX_VALUE ? value : value + 1; // no row has that offset
    }

    private Object value() {
        return this.values.iterator().next();
    }

    private boolean holds(Slice slice) {
        boolean isTopic = this.column.equals("topic");
        Object found = isTopic ? (Object) UTF8String.fromString(slice.topic) : (Object) Integer.valueOf(slice.lane);
        switch (this.operation) {
            case "<>":
                return !this.values.contains(found);
            case "<":
                return this.order(found) < 0;
            case "<=":
                return this.order(found) <= 0;
            case ">":
                return this.order(found) > 0;
            case ">=":
                return this.order(found) >= 0;
            default:
                return this.values.contains(found);
        }
    }

    private int order(Object found) {
        return found instanceof UTF8String ? ((UTF8String) found).compareTo((UTF8String) this.value())
            : ((Integer) found).compareTo((Integer) this.value());
    }
}
