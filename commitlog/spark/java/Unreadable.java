package commitlog.spark;

import java.io.IOException;

/**
 * Something is not as a good record, file or store is. It is never shown to a user.
 *
 * Python reads from there on. It tells damage, loss and a race with retention apart.
 */
final class Unreadable extends IOException {
    private static final long serialVersionUID = 1;

    Unreadable(String reason) {
        super(reason);
    }

    public synchronized Throwable fillInStackTrace() {
        return this;
    }
}
