package commitlog.spark;

import java.nio.charset.StandardCharsets;

/**
 * The headers of a message that has rows, as our producers write them.
 *
 * Their names are those of commitlog/record/row_headers.py. All other headers of such names are for
 * Python, and so is a message without rows.
 */
final class RowHeaders {
    private static final byte[] CONTENT_TYPE = ascii("content-type");
    private static final byte[] VERSION = ascii("schema-version");
    private static final byte[] ROWS = ascii("row-count");
    private static final byte[] COMPRESSION = ascii("content-encoding");
    private static final String ROWS_TYPE = "application/x.arrow-record-batch";
    private static final int DIGITS_MOST = 9;
    private static final int NONE = -1;

    int version;
    int rows;
    private final CheckedRecords records;
    private final Properties pairs;

    RowHeaders(CheckedRecords records) {
        this.records = records;
        this.pairs = new Properties(records.bytes);
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    /** Reads those of a message. */
    void read(int number) throws Unreadable {
        boolean isTyped = false;
        this.version = NONE;
        this.rows = NONE;
        this.pairs.begin(this.records.propertiesAt[number], this.records.propertiesEnd(number));
        while (this.pairs.advance()) {
            if (this.pairs.isNamed(VERSION)) {
                this.version = this.number(this.version);
            } else if (this.pairs.isNamed(ROWS)) {
                this.rows = this.number(this.rows);
            } else if (this.pairs.isNamed(CONTENT_TYPE)) {
                if (isTyped || !this.text().equals(ROWS_TYPE)) {
                    throw new Unreadable("another content type");
                }
                isTyped = true;
            } else if (this.pairs.isNamed(COMPRESSION)) {
                throw new Unreadable("compressed rows");
            }
        }
        if (!isTyped || this.version == NONE || this.rows == NONE) {
            throw new Unreadable("a message without rows");
        }
    }

    private String text() {
        return new String(this.pairs.value(), StandardCharsets.ISO_8859_1);
    }

    /** The value of a header that is there once. */
    private int number(int before) throws Unreadable {
        String digits = this.text();
        int found = 0;
        for (int i = 0; i < digits.length(); i++) {
            int digit = digits.charAt(i) - '0';
            if (before != NONE || digit < 0 || digit > 9 || i == DIGITS_MOST) {
                throw new Unreadable("a number that our producers do not write");
            }
            found = 10 * found + digit;
        }
        return found;
    }
}
