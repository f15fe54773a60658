package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;

/**
 * The Python process that plans (commitlog/spark/jvm_planner.py): one for each driver.
 *
 * It is started at the first question, and again when it has died. It ends with the JVM.
 */
final class Planner {
    private static final String MODULE = "commitlog.spark.jvm_planner";
    private static Planner running;

    private final Process process;
    private final OutputStream questions;
    private final BufferedReader answers;

    private Planner() throws CommitLogException {
        this.process = PythonCommand.start(PythonCommand.interpreter(), MODULE);
        this.questions = this.process.getOutputStream();
        this.answers = new BufferedReader(new InputStreamReader(this.process.getInputStream(), StandardCharsets.UTF_8));
    }

    /** A question about a read with these options, which Spark may give in any order. */
    static ObjectNode question(String about, Map<String, String> options) {
        ObjectNode made = Json.MAPPER.createObjectNode();
        made.put("about", about);
        ObjectNode given = made.putObject("options");
        Iterator<String> names = new TreeMap<String, String>(options).keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            given.put(name, (String) options.get(name));
        }
        return made;
    }

    /** The answer. A CommitLogException is an error of the project; a lost planner is one too. */
    static synchronized JsonNode ask(ObjectNode question) throws CommitLogException {
        String line = question + "\n";
        String answer = null;
        for (int attempt = 0; attempt < 2 && answer == null; attempt++) {
            if (running == null) {
                running = new Planner();
            }
            answer = running.answer(line);
            if (answer == null) {
                running.process.destroy();
                running = null;
            }
        }
        return read(answer);
    }

    /** The answer to a line; null if the process has ended. */
    private String answer(String line) {
        try {
            this.questions.write(line.getBytes(StandardCharsets.UTF_8));
            this.questions.flush();
            return this.answers.readLine();
        } catch (IOException ended) {
            return null;
        }
    }

    private static JsonNode read(String answer) throws CommitLogException {
        JsonNode found;
        try {
            found = answer == null ? null : Json.of(answer);
        } catch (IOException notJson) {
            found = null;
        }
        if (found == null) {
            throw new CommitLogException("PlannerFailed", "the Python process that plans for Spark's JVM ("
                + PythonCommand.interpreter() + " -P -m " + MODULE + ") ended without an answer; its own error is in the "
                + "terminal of the driver. Option reader=python reads without it");
        }
        if (found.has("error")) {
            throw new CommitLogException(Json.text(found, "error"), Json.text(found, "words"));
        }
        return found;
    }
}
