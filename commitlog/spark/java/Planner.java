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
 * A Python process that plans (commitlog/spark/jvm_planner.py). One is enough for the batches of a driver.
 *
 * It is started at the first question, and again when it has died. It ends with the JVM. Where it
 * does not come back in a second, another one is started, so that a slow plan does not hold up others.
 * A stream has a planner of its own, which keeps the stream's state.
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
        IDLE.add(new Planner(null));
    }

    /** What each process is asked first; null if nothing is. */
    private final ObjectNode opening;
    private Process process;
    private boolean isOpen;
    /** Whether an answer may still come that nobody waits for any more. */
    private boolean isBehind;
    private PythonAnswers answers;
    private BufferedReader lines;

    Planner(ObjectNode opening) {
        this.opening = opening;
    }

    /** A question about a read with these options, which Spark may give in any order. */
    static ObjectNode question(String about, Map<String, String> options) {
        ObjectNode made = question(about);
        ObjectNode given = made.putObject("options");
        Iterator<String> names = new TreeMap<String, String>(options).keySet().iterator();
        while (names.hasNext()) {
            String name = (String) names.next();
            given.put(name, (String) options.get(name));
        }
        return made;
    }

    static ObjectNode question(String about) {
        ObjectNode made = Json.MAPPER.createObjectNode();
        made.put("about", about);
        made.put("sources", SOURCES);
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
            return planner.answerTo(question);
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
                    return new Planner(null);
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

    /** The answer of this planner. Only one thread at a time may ask. */
    JsonNode answerTo(ObjectNode question) throws CommitLogException {
        SparkEnv environment = SparkEnv.get();
        long seconds = environment == null ? 120 : environment.conf().getTimeAsSeconds(LIMIT, "120s");
        String answer = null;
        if (this.isBehind) {
            this.end();
        }
        try {
            for (int attempt = 0; attempt < 2 && answer == null; attempt++) {
                if (this.process == null) {
                    this.start();
                }
                this.answers.waitAtMost(TimeUnit.SECONDS.toNanos(seconds));
                answer = this.isOpen() ? this.answer(question) : null;
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
            if (answer == null && !this.isBehind) { // what it may still say would be taken for the answer to the next question
                this.end();
            }
        }
    }

    private void start() throws CommitLogException {
        this.process = PythonCommand.start(PythonCommand.interpreter(), MODULE);
        this.answers = new PythonAnswers(this.process);
        this.lines = new BufferedReader(new InputStreamReader(this.answers, StandardCharsets.UTF_8));
    }

    /** Opens a new process. False if it has ended, or is late. */
    private boolean isOpen() throws CommitLogException {
        if (!this.isOpen && this.opening != null) {
            String answer = this.answer(this.opening);
            if (answer == null) {
                return false;
            }
            read(answer);
        }
        this.isOpen = true;
        return true;
    }

    /** Ends the process. First it has a moment to put away what it keeps, such as a reader's name. */
    void end() {
        if (this.process == null) {
            return;
        }
        Process ending = this.process;
        this.process = null;
        this.isOpen = false;
        this.isBehind = false;
        if (this.opening != null) {
            QuestionWriter.end(ending);
            if (hasEnded(ending)) {
                return;
            }
        }
        ending.destroyForcibly(); // also if it is stopped
        if (this.opening != null) {
            hasEnded(ending); // the kernel frees the name then
        }
    }

    private static boolean hasEnded(Process process) {
        try {
            return process.waitFor(PATIENCE_NS, TimeUnit.NANOSECONDS);
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** The answer to a line; null if the process has ended, or is late. */
    private String answer(ObjectNode question) {
        try {
            QuestionWriter.write(this.process, question.toString());
            return this.lines.readLine();
        } catch (ClosedByInterruptException ended) {
            this.isBehind = true;
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
