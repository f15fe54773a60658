package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * The format `commitlog`, found by its name where the jar is on Spark's class path.
 *
 * Spark makes one for each read and each write. The planner says whether the JVM can do the read.
 * What it can't do, the Python source does, and so it also says what is wrong with options.
 */
public final class Provider implements TableProvider, DataSourceRegister {
    static final String NAME = "commitlog";
    private static final String[] SUBSCRIPTIONS = {"subscribe", "subscribePattern", "assign"};

    private final PythonDataSourceV2 python = new PythonDataSourceV2();
    private StructType inferred;
    /** Why Python reads; empty if the JVM does. */
    private String reason;
    /** Whether the rows are those of a typed topic. */
    private boolean isTyped;
    /** Whether each query reads all columns. */
    private boolean isWhole;
    /** What becomes of JSON values; null if they are not parsed. */
    private JsonNode json;

    public Provider() {
        this.python.setShortName(NAME);
    }

    public String shortName() {
        return NAME;
    }

    /** Tells Spark to pass on a schema that the user gave. */
    public boolean supportsExternalMetadata() {
        return true;
    }

    public StructType inferSchema(CaseInsensitiveStringMap given) {
        Map<String, String> options = TableOptions.of(given.asCaseSensitiveMap()).values;
        CaseInsensitiveStringMap forPython = new CaseInsensitiveStringMap(options);
        if (!isRead(options)) {
            return this.python.inferSchema(forPython);
        }
        JsonNode answer = reading(options, null);
        this.take(answer);
        this.inferred = this.reason.isEmpty()
            ? (StructType) DataType.fromJson(Json.text(answer, "schema")) : this.python.inferSchema(forPython);
        return this.inferred;
    }

    /** The table of a read, with the user's own schema or the one of `inferSchema`; or of a write. */
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> given) {
        TableOptions options = TableOptions.of(given);
        if (!isRead(options.values)) {
            return new TableByPython(this.python, schema, options, "");
        }
        if (!schema.equals(this.inferred)) {
            this.take(reading(options.values, schema));
        }
        if (!this.reason.isEmpty()) {
            return new TableByPython(this.python, schema, options, this.reason);
        }
        StructType columns = this.json == null ? schema : (StructType) schema.asNullable();
        JsonValues values = this.json == null ? null : new JsonValues(this.json, columns);
        return new LogTable(columns, options, new PlannedBatch(options.values, this.isTyped, this.isWhole, values));
    }

    private void take(JsonNode answer) {
        this.reason = answer.has("schema") ? "" : Json.text(answer, "by_python");
        this.isTyped = answer.has("typed");
        this.isWhole = answer.has("whole");
        this.json = Json.at(answer, "json");
    }

    /** Whether the options choose topics, as those of a read do. */
    private static boolean isRead(Map<String, String> options) {
        Iterator<String> names = options.keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            for (int i = 0; i < SUBSCRIPTIONS.length; i++) {
                if (name.equalsIgnoreCase(SUBSCRIPTIONS[i]) && options.get(name) != null) {
                    return true;
                }
            }
        }
        return false;
    }

    /** The planner's answer: the schema of a read by the JVM, or the reason why Python reads. */
    private static JsonNode reading(Map<String, String> options, StructType schema) {
        ObjectNode question = Planner.question("reading", options);
        if (schema != null) {
            question.put("schema", schema.json());
        }
        try {
            return Planner.ask(question);
        } catch (CommitLogException error) {
            if (error.name.equals("PythonNotFound")) {
                Platform.throwException(error.ofFrame());
            }
            // otherwise the Python source says it, if it finds the same
            ObjectNode answer = Json.MAPPER.createObjectNode();
            answer.put("by_python", error.getMessage());
            return answer;
        }
    }
}
