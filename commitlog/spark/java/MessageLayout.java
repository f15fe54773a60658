package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * How the messages with one version of a topic's schema lie in memory.
 *
 * All of them begin with the same bytes but for some numbers. The planner gives such a beginning. So
 * Java reads no Arrow metadata: what differs by another byte is for Python.
 */
final class MessageLayout implements Serializable {
    private static final long serialVersionUID = 1;
    private static final int PAIR_BYTES = 2 * Long.BYTES;

    /** The columns of the version, in their order. */
    final StoredColumn[] columns;
    final int headerBytes;
    /** The columns that only later versions have. */
    private final Set<String> addedLater;
    private final byte[] header;
    private final int rowsAt;
    private final int bodyBytesAt;
    private final int nodesAt;
    private final int buffersAt;
    /** Where the header has one of its numbers. */
    private final boolean[] varies;

    MessageLayout(JsonNode answer) {
        StructType schema = (StructType) DataType.fromJson(Json.text(answer, "columns"));
        StoredColumn.Count count = new StoredColumn.Count();
        this.columns = StoredColumn.ofAll(schema, count);
        this.header = Base64.getDecoder().decode(Json.text(answer, "header"));
        this.headerBytes = this.header.length;
        this.addedLater = new HashSet<String>(Arrays.asList(Json.texts(Json.at(answer, "added_later"))));
        this.rowsAt = Json.at(answer, "rows_at").asInt();
        this.bodyBytesAt = Json.at(answer, "body_bytes_at").asInt();
        this.nodesAt = Json.at(answer, "nodes_at").asInt();
        this.buffersAt = Json.at(answer, "buffers_at").asInt();
        this.varies = new boolean[this.headerBytes];
        this.vary(this.rowsAt, Long.BYTES);
        this.vary(this.bodyBytesAt, Long.BYTES);
        this.vary(this.nodesAt, PAIR_BYTES * count.nodes);
        this.vary(this.buffersAt, PAIR_BYTES * count.buffers);
    }

    private void vary(int at, int bytes) {
        for (int i = at; i < at + bytes; i++) {
            this.varies[i] = true;
        }
    }

    /** Whether its messages have nulls for a column: a later version of the topic has it. */
    boolean lacks(String name) {
        return this.addedLater.contains(name);
    }

    /** The column of a name; null if the version has none. */
    StoredColumn column(String name) {
        for (int i = 0; i < this.columns.length; i++) {
            if (this.columns[i].name.equals(name)) {
                return this.columns[i];
            }
        }
        return null;
    }

    /** Whether a message begins so. It has `headerBytes` at least. */
    boolean begins(ByteBuffer bytes) {
        for (int i = 0; i < this.headerBytes; i++) {
            if (bytes.get(i) != this.header[i] && !this.varies[i]) {
                return false;
            }
        }
        return true;
    }

    // The numbers of a header, which may be any. The buffer has them in Arrow's order of bytes.

    long rows(ByteBuffer header) {
        return header.getLong(this.rowsAt);
    }

    long bodyBytes(ByteBuffer header) {
        return header.getLong(this.bodyBytesAt);
    }

    long nodeRows(ByteBuffer header, int node) {
        return header.getLong(this.nodesAt + PAIR_BYTES * node);
    }

    long nodeNulls(ByteBuffer header, int node) {
        return header.getLong(this.nodesAt + PAIR_BYTES * node + Long.BYTES);
    }

    long bufferAt(ByteBuffer header, int buffer) {
        return header.getLong(this.buffersAt + PAIR_BYTES * buffer);
    }

    long bufferBytes(ByteBuffer header, int buffer) {
        return header.getLong(this.buffersAt + PAIR_BYTES * buffer + Long.BYTES);
    }
}
