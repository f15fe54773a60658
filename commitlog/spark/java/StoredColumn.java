package commitlog.spark;

import java.io.Serializable;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * A column of a message, or one that is nested in a column: its type, and its place in the header.
 *
 * Arrow numbers columns and buffers with those that are nested in a column behind it.
 */
final class StoredColumn implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int DECIMAL_BYTES = 16;

    final String name;
    final DataType type;
    final int node;
    /** Its first buffer, which says which rows are null. */
    final int buffer;
    /** Fields of a struct; the item of a list; the pairs of a map, which are a struct. */
    final StoredColumn[] nested;

    /** How many there are so far. */
    static final class Count {
        int nodes;
        int buffers;
    }

    private StoredColumn(String name, DataType type, Count count) {
        this.name = name;
        this.type = type;
        this.node = count.nodes++;
        this.buffer = count.buffers;
        count.buffers += buffersOf(type);
        if (type instanceof StructType) {
            this.nested = ofAll((StructType) type, count);
        } else if (type instanceof ArrayType) {
            this.nested = new StoredColumn[] {new StoredColumn("item", ((ArrayType) type).elementType(), count)};
        } else if (type instanceof MapType) {
            StructType pairs = new StructType().add("key", ((MapType) type).keyType())
                .add("value", ((MapType) type).valueType());
            this.nested = new StoredColumn[] {new StoredColumn("entries", pairs, count)};
        } else {
            this.nested = new StoredColumn[0];
        }
    }

    static StoredColumn[] ofAll(StructType schema, Count count) {
        StructField[] fields = schema.fields();
        StoredColumn[] made = new StoredColumn[fields.length];
        for (int i = 0; i < made.length; i++) {
            made[i] = new StoredColumn(fields[i].name(), fields[i].dataType(), count);
        }
        return made;
    }

    private static int buffersOf(DataType type) {
        if (type instanceof StructType) {
            return 1;
        }
        return type instanceof StringType || type instanceof BinaryType ? 3 : 2;
    }

    /** How many bytes the values of so many rows have, where all values have the same size. */
    long valueBytes(long rows) {
        if (this.type instanceof BooleanType) {
            return (rows + 7) / 8;
        }
        return rows * (this.type instanceof DecimalType ? DECIMAL_BYTES : this.type.defaultSize());
    }

    /** Whether its values can be read as the wanted type, which is the same or a wider one. */
    boolean fits(DataType wanted) {
        if (wanted instanceof DecimalType && this.type instanceof DecimalType) {
            return ((DecimalType) wanted).isWiderThan(this.type);
        }
        int rank = rank(this.type);
        return wanted.catalogString().equals(this.type.catalogString())
            || rank > 0 && rank < rank(wanted) && rank / 10 == rank(wanted) / 10;
    }

    private static int rank(DataType type) {
        switch (type.typeName()) {
            case "byte":
                return 11;
            case "short":
                return 12;
            case "integer":
                return 13;
            case "long":
                return 14;
            case "float":
                return 21;
            case "double":
                return 22;
            default:
                return 0;
        }
    }
}
