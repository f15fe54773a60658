package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.attribute.FileTime;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** A file as it was when a batch was planned. Where it is another one now, the plan is no longer right. */
final class WatchedFile implements Serializable {
    private static final long serialVersionUID = 1;
    private static final long ANY_TIME = -1;

    private final String file;
    private final long inode;
    private final long modifiedNs;

    WatchedFile(JsonNode fields) {
        this.file = Json.text(fields, "file");
        this.inode = Json.at(fields, "inode").asLong();
        this.modifiedNs = Json.at(fields, "modified_ns").asLong();
    }

    /** Whether the file is gone, another one, or changed. One that can't be looked at counts as changed. */
    boolean hasChanged() {
        Map<String, Object> facts;
        try {
            facts = Files.readAttributes(LaneLog.path(this.file, ""), "unix:ino,lastModifiedTime", new LinkOption[0]);
        } catch (IOException gone) {
            return this.inode != 0;
        }
        long modified = ((FileTime) facts.get("lastModifiedTime")).to(TimeUnit.NANOSECONDS);
        return ((Number) facts.get("ino")).longValue() != this.inode
            || (this.modifiedNs != ANY_TIME && modified != this.modifiedNs);
    }
}
