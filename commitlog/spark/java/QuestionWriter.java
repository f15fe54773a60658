package commitlog.spark;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;

/**
 * Writes a question to a Python process of ours.
 *
 * A pipe takes 64 KiB, or less, and then waits for the process, which may be stopped. Java can't end
 * such a wait but by ending the process. So another thread waits, and who waits for the answer may
 * end the process.
 */
final class QuestionWriter extends Thread {
    private final OutputStream pipe;
    private final byte[] question;
    private final boolean isLast;

    private QuestionWriter(Process process, String lines, boolean isLast) {
        super("commitlog-question");
        this.setDaemon(true);
        this.pipe = process.getOutputStream();
        this.question = lines.getBytes(StandardCharsets.UTF_8);
        this.isLast = isLast;
    }

    /** Writes a line, and more lines may follow. */
    static void write(Process process, String question) {
        new QuestionWriter(process, question + "\n", false).start();
    }

    /** Writes the only line. */
    static void writeLast(Process process, String question) {
        new QuestionWriter(process, question + "\n", true).start();
    }

    /** Says that no line follows. */
    static void end(Process process) {
        new QuestionWriter(process, "", true).start();
    }

    public void run() {
        try {
            this.pipe.write(this.question);
            this.pipe.flush();
            if (this.isLast) {
                this.pipe.close();
            }
        } catch (IOException ended) {
            return; // who waits for the answer sees that the process has ended
        }
    }
}
