import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The program of shares.c in Java: the same shares of processor time by System.arraycopy, by reads into direct memory,
 * and by arithmetic. The mode is always "main". Java has no memory files, so a file FILE is created, and deleted at the
 * end: the kernel's overhead is that of FILE's file system. The JVM tells its processor time in clock ticks of 10 ms.
 *
 * <p>Usage: Shares main CPU_SECONDS FILE
 */
public final class Shares {
    private static final int MEMMOVE = 0;
    private static final int KERNEL = 1;
    private static final int COMPUTE = 2;
    private static final int MOVE_BYTES = 64 << 10;
    private static final int READ_BYTES = 1 << 20;
    private static final int AREA_BYTES = 8 << 20;
    private static final long SLICE_NS = 50_000_000;
    private static final long[] PERCENT = {30, 20, 50};

    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private static final byte[] area = new byte[AREA_BYTES];
    private static final ByteBuffer direct = ByteBuffer.allocateDirect(AREA_BYTES);
    private static long[] spentNs = new long[PERCENT.length];
    private static FileChannel file;
    private static int end;
    private static long readAt;
    private static long sink;
    private static long randomState = 88172645463325252L;
    private static volatile boolean isStopping;

    /** A random number from 1 to 2 * mean - 1: batches of one length would repeat in step with a profiler's samples. */
    private static int randomCount(int mean) {
        randomState ^= randomState << 13;
        randomState ^= randomState >>> 7;
        randomState ^= randomState << 17;
        return 1 + (int) Long.remainderUnsigned(randomState, 2L * mean - 1);
    }

    private static int nextPiece(int count) {
        end = end + count <= AREA_BYTES ? end + count : count;
        return end - count;
    }

    private static void moveBatch() {
        for (int count = randomCount(32); count > 0; count--) {
            int from = nextPiece(MOVE_BYTES);
            System.arraycopy(area, from, area, nextPiece(MOVE_BYTES), MOVE_BYTES);
        }
    }

    private static void kernelBatch() throws IOException {
        for (int count = randomCount(2); count > 0; count--) {
            readAt = (readAt + READ_BYTES) % AREA_BYTES;
            int at = nextPiece(READ_BYTES);
            direct.limit(at + READ_BYTES).position(at);
            if (file.read(direct, readAt) != READ_BYTES) {
                throw new IOException("short read");
            }
        }
    }

    private static void computeBatch() {
        long word = sink | 1;
        for (int count = randomCount(100_000); count > 0; count--) {
            word ^= word << 13;
            word ^= word >>> 7;
            word ^= word << 17;
        }
        sink = word;
    }

    private static int nextActivity() {
        long total = spentNs[MEMMOVE] + spentNs[KERNEL] + spentNs[COMPUTE];
        int furthest = COMPUTE;
        long most = Long.MIN_VALUE;
        for (int activity = 0; activity < spentNs.length; activity++) {
            long behind = total * PERCENT[activity] - spentNs[activity] * 100;
            if (behind > most) {
                most = behind;
                furthest = activity;
            }
        }
        return furthest;
    }

    private static void work(long limitNs) throws IOException {
        long start = THREADS.getCurrentThreadCpuTime();
        long before = start;
        while (!isStopping && before - start < limitNs) {
            int activity = nextActivity();
            if (activity == MEMMOVE) {
                moveBatch();
            } else if (activity == KERNEL) {
                kernelBatch();
            } else {
                computeBatch();
            }
            long after = THREADS.getCurrentThreadCpuTime();
            spentNs[activity] += after - before;
            before = after;
        }
    }

    private static void stopOnSignal(Thread worker) {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isStopping = true;
            try {
                worker.join();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            Runtime.getRuntime().halt(0);
        }));
    }

    public static void main(String[] arguments) throws IOException {
        if (arguments.length != 3 || !arguments[0].equals("main")) {
            System.err.println("usage: Shares main CPU_SECONDS FILE");
            System.exit(2);
        }
        long limitNs = Long.parseLong(arguments[1]) * 1_000_000_000L;
        file = FileChannel.open(Path.of(arguments[2]), StandardOpenOption.CREATE, StandardOpenOption.READ,
                StandardOpenOption.WRITE, StandardOpenOption.DELETE_ON_CLOSE);
        while (direct.hasRemaining()) {
            file.write(direct, direct.position());
        }
        stopOnSignal(Thread.currentThread());
        // The compiler's threads are done with these methods when the shares are counted.
        work(20 * SLICE_NS);
        spentNs = new long[PERCENT.length];
        System.out.println("ready");
        long start = SYSTEM.getProcessCpuTime();
        while (!isStopping && SYSTEM.getProcessCpuTime() - start < limitNs) {
            work(SLICE_NS);
        }
        long total = SYSTEM.getProcessCpuTime() - start;
        long known = spentNs[MEMMOVE] + spentNs[KERNEL] + spentNs[COMPUTE];
        System.out.printf(
                "{\"memmove_ns\": %d, \"kernel_ns\": %d, \"compute_ns\": %d, \"other_ns\": %d, \"total_ns\": %d, "
                        + "\"is_huge\": false}%n",
                spentNs[MEMMOVE], spentNs[KERNEL], spentNs[COMPUTE], Math.max(0, total - known), total);
        file.close();
    }
}
