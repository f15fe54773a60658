package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * A store as a catalog of Spark: each of its topics is a table.
 *
 * `spark.sql.catalog.log` names this class, and `spark.sql.catalog.log.path` the store. Other options of
 * a read may follow in the same way.
 */
public final class Catalog implements TableCatalog {
    private static final Transform[] NOT_PARTITIONED = new Transform[0];

    private String name;
    private Map<String, String> options;

    public void initialize(String name, CaseInsensitiveStringMap given) {
        this.name = name;
        this.options = given.asCaseSensitiveMap();
    }

    public String name() {
        return this.name;
    }

    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length > 0) {
            throw new NoSuchNamespaceException(namespace);
        }
        JsonNode topics = Json.at(ask(Planner.question("topics", this.options)), "topics");
        Identifier[] tables = new Identifier[topics.size()];
        for (int i = 0; i < tables.length; i++) {
            tables[i] = new TopicName(Json.at(topics, i).asText());
        }
        return tables;
    }

    public Table loadTable(Identifier table) throws NoSuchTableException {
        if (table.namespace().length > 0) {
            throw new NoSuchTableException(table);
        }
        ObjectNode question = Planner.question("topic", this.options);
        question.put("topic", table.name());
        JsonNode answer = ask(question);
        if (!answer.has("read")) {
            throw new NoSuchTableException(table);
        }
        Map<String, String> reading = Json.options(answer, "read");
        Provider provider = new Provider();
        StructType schema = provider.inferSchema(new CaseInsensitiveStringMap(reading));
        SupportsRead source = (SupportsRead) provider.getTable(schema, NOT_PARTITIONED, reading);
        SupportsWrite sink = !answer.has("write") ? null
            : (SupportsWrite) new Provider().getTable(schema, NOT_PARTITIONED, Json.options(answer, "write"));
        String reader = source.name().substring(Provider.NAME.length());
        return new TopicTable(this.name + "." + table.name() + reader, source, sink);
    }

    public Table createTable(Identifier table, TableInfo facts) {
        throw this.refused("a topic's first message makes it, and `commitlog topics --create` makes a typed one");
    }

    public Table alterTable(Identifier table, TableChange... changes) {
        throw this.refused("`Store.create_topic` adds columns to a typed topic");
    }

    public boolean dropTable(Identifier table) {
        throw this.refused("`commitlog topics --delete` deletes a topic");
    }

    public void renameTable(Identifier old, Identifier renamed) {
        throw this.refused("a topic keeps its name");
    }

    private UnsupportedOperationException refused(String instead) {
        return new UnsupportedOperationException("catalog " + this.name + " can't do this: " + instead);
    }

    private static JsonNode ask(ObjectNode question) {
        try {
            return Planner.ask(question);
        } catch (CommitLogException error) {
            Platform.throwException(error.ofFrame());
            throw new IllegalStateException(error); // it never comes here
        }
    }
}
