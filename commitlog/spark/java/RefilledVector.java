package commitlog.spark;

import org.apache.arrow.vector.FieldVector;
import org.apache.spark.sql.vectorized.ArrowColumnVector;

/**
 * A column of an Arrow stream, which the next batch fills anew.
 *
 * Spark closes the columns of a batch that it is done with. A struct that is closed loses its fields.
 */
final class RefilledVector extends ArrowColumnVector {
    RefilledVector(FieldVector vector) {
        super(vector);
    }

    public void close() {
    }
}
