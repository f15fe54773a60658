package commitlog.spark;

import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;

/** A predicate of Spark that compares a column, which says where a row is from, with constants. */
final class Comparison {
    /** The column's name as a topic of bytes has it. */
    final String column;
    final String operation;
    final Object[] values;

    private Comparison(String column, String operation, Object[] values) {
        this.column = column;
        this.operation = operation;
        this.values = values;
    }

    /** The comparison that a predicate is; null if it is none. The columns' names begin with a prefix. */
    static Comparison of(Predicate predicate, String prefix) {
        Expression[] parts = predicate.children();
        if (parts.length == 0 || !(parts[0] instanceof NamedReference)) {
            return null;
        }
        String[] names = ((NamedReference) parts[0]).fieldNames();
        if (names.length != 1 || !names[0].startsWith(prefix)) {
            return null;
        }
        Object[] values = new Object[parts.length - 1];
        for (int i = 0; i < values.length; i++) {
            if (!(parts[i + 1] instanceof Literal)) {
                return null;
            }
            values[i] = ((Literal) parts[i + 1]).value();
        }
        return new Comparison(names[0].substring(prefix.length()), predicate.name(), values);
    }
}
