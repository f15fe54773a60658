package commitlog.spark;

import java.util.ArrayList;
import java.util.List;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Takes from Spark which columns and rows a query needs. */
final class LogScanBuilder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters, SupportsPushDownLimit {
    private final PlannedBatch planned;
    private final StructType schema;
    private StructType wanted;
    private Predicate[] pushed = new Predicate[0];
    private TimeFilter times = new TimeFilter();
    private int limit = LogScan.NO_LIMIT;

    LogScanBuilder(PlannedBatch planned, StructType schema) {
        this.planned = planned;
        this.schema = schema;
        this.wanted = schema;
    }

    /** Takes which columns are read. Each is read whole, also where Spark wants one field of it only. */
    public void pruneColumns(StructType required) {
        if (this.planned.isWhole) {
            return;
        }
        StructField[] whole = new StructField[required.fields().length];
        for (int i = 0; i < whole.length; i++) {
            whole[i] = this.schema.apply(required.fields()[i].name());
        }
        this.wanted = new StructType(whole);
    }

    /** Takes the filters that it keeps exactly. Returns the others, which Spark applies. */
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Predicate> taken = new ArrayList<Predicate>();
        List<Predicate> left = new ArrayList<Predicate>();
        for (int i = 0; i < predicates.length; i++) {
            (RowFilter.of(predicates[i], this.planned.prefix) == null ? left : taken).add(predicates[i]);
        }
        this.pushed = (Predicate[]) taken.toArray(new Predicate[0]);
        this.times = TimeFilter.of(left, this.planned.prefix);
        return (Predicate[]) left.toArray(new Predicate[0]);
    }

    public Predicate[] pushedPredicates() {
        return this.pushed;
    }

    /** Takes how many rows a query needs. Tasks may give more, so Spark counts too, and reads no further. */
    public boolean pushLimit(int limit) {
        this.limit = limit;
        return true;
    }

    public boolean isPartiallyPushed() {
        return true;
    }

    public Scan build() {
        return new LogScan(this.planned, this.wanted, this.pushed, this.times, this.limit);
    }
}
