package commitlog.spark;

/** Where the fields of a record are, as commitlog/record/record_layout.py declares them. */
final class RecordLayout {
    static final int TOTAL_SIZE_AT = 0;
    static final int MAGIC_AT = 4;
    static final int QUEUE_ID_AT = 12;
    static final int QUEUE_OFFSET_AT = 20;
    static final int PHYSICAL_OFFSET_AT = 28;
    static final int SYS_FLAG_AT = 36;
    static final int BORN_TIMESTAMP_AT = 40;
    static final int STORE_TIMESTAMP_AT = 56;
    static final int STORE_HOST_AT = 64;
    static final int HEAD_V4_BYTES = 88;
    static final int HOST_V4_BYTES = 8;
    static final int HOST_V6_MORE = 12;
    static final int BODY_LENGTH_BYTES = 4;
    static final int PROPERTIES_LENGTH_BYTES = 2;
    static final int RECORD_BYTES_MIN = 92;
    static final int BLANK_BYTES = 8;

    static final int MAGIC_V1 = 0xDAA320A7;
    static final int MAGIC_V2 = 0xDAA320AB;
    static final int MAGIC_BLANK = 0xCBD43194;

    static final int COMPRESSED = 0x1;
    static final int PREPARED = 0x4;
    static final int COMPRESSION_KIND = 0x700;
    static final int BORN_HOST_V6 = 0x10;
    static final int STORE_HOST_V6 = 0x20;

    static final int CRC_PROPERTY_BYTES = 20;
    static final long CRC_PROPERTY_NAME = 0x5F5F435243333223L;
    static final int CRC_PROPERTY_NAME_BYTES = 8;
    static final int NAME_VALUE_SEPARATOR = 1;
    static final int PROPERTY_SEPARATOR = 2;

    private RecordLayout() {
    }
}
