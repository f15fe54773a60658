package commitlog.spark;

import java.io.Serializable;
import java.util.Arrays;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;

/** A Python function that rows are handed to: packed, with the columns and the time zone of the rows. */
final class RowsFunction implements Serializable {
    private static final long serialVersionUID = 1;

    final byte[] packed;
    private final StructType columns;
    private final String zone;

    RowsFunction(byte[] packed, StructType columns, String zone) {
        this.packed = packed;
        this.columns = columns;
        this.zone = zone;
    }

    /** The columns as Arrow has them. Fails for a type that Arrow does not have, and for two fields of one name. */
    Schema arrowSchema() {
        ArrowUtils.failDuplicatedFieldNames(this.columns);
        return ArrowUtils.toArrowSchema(this.columns, this.zone, false); // another form of it is in one Spark only
    }

    public boolean equals(Object other) {
        return other instanceof RowsFunction && Arrays.equals(this.packed, ((RowsFunction) other).packed)
            && this.columns.equals(((RowsFunction) other).columns) && this.zone.equals(((RowsFunction) other).zone);
    }

    public int hashCode() {
        return Arrays.hashCode(this.packed);
    }
}
