package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.json.JsonToStructsEvaluator;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;

/**
 * What a read with `values=json` wants: the fields of all values, and what becomes of malformed ones.
 *
 * What Spark's `from_json` runs parses them, so the rows are its rows, whatever a value is. All
 * fields of the user are parsed, whichever a query wants: so each query finds the same values malformed.
 */
final class JsonValues implements Serializable {
    private static final long serialVersionUID = 1;
    /** Columns that say where a row is from. A message has the same, but for `_row`, without the prefix. */
    private static final List<String> METADATA =
        Arrays.asList(new String[] {"_topic", "_partition", "_offset", "_row", "_timestamp", "_key"});
    /** A column for the text of malformed values, where the user wants none. */
    private static final String HIDDEN = "\u0001malformed";

    final boolean dropsMalformed;
    final boolean refusesMalformed;
    /** The words of an error, with %s for topic, lane, offset and value. */
    final String malformedWords;
    private final StructType fields;
    private final String corruptColumn;
    private final JsonToStructsEvaluator fromJson;

    /** `schema` is the user's. A field may be null in it, at any depth. */
    JsonValues(JsonNode answer, StructType schema) {
        String mode = Json.text(answer, "mode");
        this.dropsMalformed = mode.equals("DROPMALFORMED");
        this.refusesMalformed = mode.equals("FAILFAST");
        this.malformedWords = Json.text(answer, "malformed");
        String corrupt = Json.text(answer, "corrupt_column");
        StructType found = new StructType();
        boolean isWanted = false;
        for (int i = 0; i < schema.fields().length; i++) {
            StructField field = schema.fields()[i];
            if (!isMetadata(field.name())) {
                found = found.add(field);
                isWanted |= field.name().equals(corrupt);
            }
        }
        this.corruptColumn = isWanted ? corrupt : HIDDEN;
        this.fields = isWanted ? found : found.add(HIDDEN, DataTypes.StringType);
        this.fromJson = new JsonToStructsEvaluator(
            (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.empty(), this.fields,
            this.corruptColumn, Option.apply(SQLConf.get().sessionLocalTimeZone()), false);
    }

    static boolean isMetadata(String column) {
        return METADATA.contains(column);
    }

    /** Whether a value has to be parsed for these columns. */
    boolean isParsedFor(StructType wanted) {
        for (int i = 0; i < wanted.fields().length; i++) {
            if (!isMetadata(wanted.fields()[i].name())) {
                return true;
            }
        }
        return this.dropsMalformed || this.refusesMalformed;
    }

    /** Where a parsed value has a field. */
    int placeOf(String field) {
        return this.fields.fieldIndex(field);
    }

    int placeOfCorrupt() {
        return this.placeOf(this.corruptColumn);
    }

    /** The fields of a value, which hold until the next one is parsed; null if the value is empty. */
    InternalRow parsed(byte[] value) {
        return (InternalRow) this.fromJson.evaluate(UTF8String.fromBytes(value));
    }
}
