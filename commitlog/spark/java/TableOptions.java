package commitlog.spark;

import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of a table, and what else Spark's catalog knows of it.
 *
 * For a table that `CREATE TABLE … USING commitlog` made, Spark mixes the options with the table's
 * properties. It has each option but `path` a second time, as `option.NAME`.
 */
final class TableOptions {
    private static final String PATH = "path";

    /** By their names. */
    final Map<String, String> values = new HashMap<String, String>();
    /** The properties that Spark shows in `DESCRIBE` and `SHOW CREATE TABLE`. A frame has none. */
    final Map<String, String> properties = new HashMap<String, String>();

    private TableOptions() {
    }

    /** Sorts what Spark gave. Every table of its catalog has a provider, and no option has that name. */
    static TableOptions of(Map<String, String> given) {
        TableOptions made = new TableOptions();
        if (!given.containsKey(TableCatalog.PROP_PROVIDER)) {
            made.values.putAll(thoseGiven(given));
            return made;
        }
        made.properties.putAll(given);
        Iterator<String> names = given.keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            if (name.startsWith(TableCatalog.OPTION_PREFIX)) {
                String option = name.substring(TableCatalog.OPTION_PREFIX.length());
                made.values.put(option, (String) given.get(name));
                made.properties.remove(option);
            }
        }
        if (given.containsKey(TableCatalog.PROP_LOCATION)) { // else it is a place of Spark's, which DROP TABLE deletes
            made.values.put(PATH, (String) given.get(PATH));
        }
        made.properties.remove(PATH);
        return made;
    }

    /** These options, and those of one query, which take their place. */
    CaseInsensitiveStringMap with(CaseInsensitiveStringMap query) {
        Map<String, String> all = new HashMap<String, String>();
        Iterator<String> names = this.values.keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            if (query.get(name) == null) {
                all.put(name, (String) this.values.get(name));
            }
        }
        all.putAll(thoseGiven(query.asCaseSensitiveMap()));
        return new CaseInsensitiveStringMap(all);
    }

    /** The options with a value. One of None is not given, and Spark can't tell Python of it. */
    private static Map<String, String> thoseGiven(Map<String, String> options) {
        Map<String, String> found = new HashMap<String, String>(options);
        found.values().removeAll(Collections.singleton(null));
        return found;
    }
}
