package commitlog.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Objects;

/** The store of a plan. Another one may take its place while rows are read. */
final class PlannedStore {
    private final String name;
    private Path file;
    private final String id;
    private final long epoch;
    private Object inode;
    private Object modified;

    PlannedStore(ReadPlan plan) {
        this.name = plan.storeFile;
        this.id = plan.storeId;
        this.epoch = plan.epoch;
    }

    /** Finds the store at its path, as it was planned. */
    void open() throws IOException {
        this.file = LaneLog.path(this.name, "");
        this.look();
        if (this.inode == null) {
            throw new Unreadable("no store at " + this.file);
        }
    }

    /** Looks whether another store is there now. If none is there, open files are still the right ones. */
    void look() throws IOException {
        BasicFileAttributes facts;
        try {
            facts = (BasicFileAttributes) Files.readAttributes(this.file, BasicFileAttributes.class, new LinkOption[0]);
        } catch (NoSuchFileException gone) {
            return;
        }
        if (Objects.equals(facts.fileKey(), this.inode) && Objects.equals(facts.lastModifiedTime(), this.modified)) {
            return;
        }
        JsonNode found = Json.of(new String(Files.readAllBytes(this.file), "UTF-8"));
        if (!found.has("id") || !Json.text(found, "id").equals(this.id)) {
            throw new Unreadable("another store at " + this.file);
        }
        if ((found.has("epoch") ? Json.at(found, "epoch").asLong() : 0) != this.epoch) {
            throw new Unreadable("the store was promoted or restored"); // Python knows what it still has
        }
        this.inode = facts.fileKey();
        this.modified = facts.lastModifiedTime();
    }
}
