package commitlog.spark;

import java.math.BigDecimal;
import java.math.BigInteger;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;

/** Decimals: whole numbers of 16 bytes, with the scale that the message has. */
final class DecimalVector extends NullableVector {
    /** So many digits always fit into eight bytes. */
    private static final int LONG_DIGITS = 18;

    private final int at;
    private final int scale;

    DecimalVector(DataType type, Validity validity, int at, int scale) {
        super(type, validity);
        this.at = at;
        this.scale = scale;
    }

    public Decimal getDecimal(int row, int precision, int scale) {
        if (this.isNullAt(row)) {
            return null;
        }
        if (precision <= LONG_DIGITS && scale == this.scale) {
            return Decimal.createUnsafe(this.low(row), precision, scale);
        }
        return Decimal.apply(new BigDecimal(this.number(row), this.scale).setScale(scale), precision, scale);
    }

    /** Whether a number has no more digits than that. The limit is the first with more. */
    boolean isBelow(int row, int digits, BigInteger limit) {
        if (digits > LONG_DIGITS) {
            return this.number(row).abs().compareTo(limit) < 0;
        }
        long low = this.low(row);
        long most = limit.longValue();
        return this.high(row) == low >> (Long.SIZE - 1) && low < most && low > -most;
    }

    private long low(int row) {
        return this.bytes.getLong(this.at + 2 * Long.BYTES * row);
    }

    private long high(int row) {
        return this.bytes.getLong(this.at + 2 * Long.BYTES * row + Long.BYTES);
    }

    private BigInteger number(int row) {
        BigInteger low = BigInteger.valueOf(this.low(row));
        if (low.signum() < 0) { // its first bit is not a sign
            low = low.add(BigInteger.ONE.shiftLeft(Long.SIZE));
        }
        return BigInteger.valueOf(this.high(row)).shiftLeft(Long.SIZE).add(low);
    }
}
