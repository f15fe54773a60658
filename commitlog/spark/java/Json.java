package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;

/**
 * JSON of the planner.
 *
 * Janino takes `JsonNode.get` for that of an interface above it, so calls of it go through here.
 */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();

    private Json() {
    }

    static JsonNode of(String text) throws IOException {
        return MAPPER.readTree(text);
    }

    static JsonNode at(JsonNode node, String name) {
        return (JsonNode) node.get(name);
    }

    static JsonNode at(JsonNode node, int index) {
        return (JsonNode) node.get(index);
    }

    static String text(JsonNode node, String name) {
        return at(node, name).asText();
    }

    static String[] texts(JsonNode array) {
        String[] found = new String[array.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = at(array, i).asText();
        }
        return found;
    }

    /** An object of names and texts. */
    static Map<String, String> options(JsonNode node, String name) {
        Map<String, String> found = new HashMap<String, String>();
        JsonNode object = at(node, name);
        Iterator<String> names = object.fieldNames();
        while (names.hasNext()) {
            String field = (String) names.next();
            found.put(field, text(object, field));
        }
        return found;
    }
}
