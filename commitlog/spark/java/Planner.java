package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.channels.ClosedByInterruptException;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkEnv;
import org.apache.spark.unsafe.Platform;

/**
 * A Python process that plans (commitlog/spark/jvm_planner.py). One is enough for a driver.
 *
 * It is started at the first question, and again when it has died. It ends with the JVM. Where it
 * does not come back in a second, another one is started, so that a slow plan does not hold up others.
 */
final class Planner {
    /** How long one question may take. A file system that hangs, or a stopped process, has no other end. */
    private static final String LIMIT = "spark.commitlog.plannerTimeout";
    private static final String MODULE = "commitlog.spark.jvm_planner";
    private static final String SOURCES = JarSources.checksum();
    private static final long PATIENCE_NS = 1_000_000_000L;
    /** The one that nobody asks at the moment. */
    private static final ArrayBlockingQueue<Planner> IDLE = new ArrayBlockingQueue<Planner>(1, true);
    private static long lastMove;

    static {
        IDLE.add(new Planner());
    }

    private Process process;
    private PythonAnswers answers;
    private BufferedReader lines;

    /** A question about a read with these options, which Spark may give in any order. */
    static ObjectNode question(String about, Map<String, String> options) {
        ObjectNode made = Json.MAPPER.createObjectNode();
        made.put("about", about);
        made.put("sources", SOURCES);
        ObjectNode given = made.putObject("options");
        Iterator<String> names = new TreeMap<String, String>(options).keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            given.put(name, (String) options.get(name));
        }
        return made;
    }

    /** The answer. A CommitLogException is an error of the project; a lost planner is one too. */
    static JsonNode ask(ObjectNode question) throws CommitLogException {
        Planner planner;
        try {
            planner = taken();
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
            Platform.throwException(ended);
            return null;
        }
        try {
            return planner.answerTo(question.toString());
        } finally {
            planner.giveBack();
        }
    }

    /** A planner for this thread alone: the idle one, or another if none has moved for a second. */
    private static Planner taken() throws InterruptedException {
        while (true) {
            Planner found = (Planner) IDLE.poll(PATIENCE_NS, TimeUnit.NANOSECONDS);
            if (found != null) {
                return found;
            }
            synchronized (IDLE) {
                if (System.nanoTime() - lastMove >= PATIENCE_NS) {
                    lastMove = System.nanoTime();
                    return new Planner();
                }
            }
        }
    }

    private void giveBack() {
        synchronized (IDLE) {
            lastMove = System.nanoTime();
        }
        if (!IDLE.offer(this)) {
            this.end();
        }
    }

    private JsonNode answerTo(String line) throws CommitLogException {
        SparkEnv environment = SparkEnv.get();
        long seconds = environment == null ? 120 : environment.conf().getTimeAsSeconds(LIMIT, "120s");
        String answer = null;
        try {
            for (int attempt = 0; attempt < 2 && answer == null; attempt++) {
                if (this.process == null) {
                    this.start();
                }
                this.answers.waitAtMost(TimeUnit.SECONDS.toNanos(seconds));
                answer = this.answer(line);
                if (answer == null && this.answers.isLate()) {
                    throw failed("gave no answer in " + seconds + " s, for example because a file system hangs; "
                        + LIMIT + "=1h in Spark's settings waits longer");
                }
                if (answer == null) {
                    this.end();
                }
            }
            return read(answer);
        } finally {
            if (answer == null) { // what it may still say would be taken for the answer to the next question
                this.end();
            }
        }
    }

    private void start() throws CommitLogException {
        this.process = PythonCommand.start(PythonCommand.interpreter(), MODULE);
        this.answers = new PythonAnswers(this.process);
        this.lines = new BufferedReader(new InputStreamReader(this.answers, StandardCharsets.UTF_8));
    }

    private void end() {
        if (this.process != null) {
            this.process.destroyForcibly(); // also if it is stopped
            this.process = null;
        }
    }

    /** The answer to a line; null if the process has ended, or is late. */
    private String answer(String line) {
        try {
            QuestionWriter.write(this.process, line);
            return this.lines.readLine();
        } catch (ClosedByInterruptException ended) {
            Platform.throwException(ended);
            return null;
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
            throw failed("ended without an answer; its own error is in the terminal of the driver");
        }
        if (found.has("error")) {
            throw new CommitLogException(Json.text(found, "error"), Json.text(found, "words"));
        }
        return found;
    }

    private static CommitLogException failed(String how) {
        return new CommitLogException("PlannerFailed", "the Python process that plans for Spark's JVM ("
            + PythonCommand.interpreter() + " -P -m " + MODULE + ") " + how + ". Option reader=python reads without it");
    }
}
