import com.sun.net.httpserver.HttpServer;
import java.io.*;
import java.net.*;
import java.nio.ByteBuffer;
import java.nio.channels.*;
import java.nio.file.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;

/** With a port: a server of the file `large`, in several ways. Without: data through channels and threads, digests printed. */
public class Server {
    static String digest(byte[] data) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(data));
    }

    static byte[] read(String way) throws IOException {
        try (FileChannel file = FileChannel.open(Path.of("large"))) {
            int length = (int) file.size();
            ByteBuffer buffer = way.equals("mapped") ? file.map(FileChannel.MapMode.READ_ONLY, 0, length)
                : way.equals("direct") ? ByteBuffer.allocateDirect(length) : ByteBuffer.allocate(length);
            if (!way.equals("mapped")) {
                while (buffer.hasRemaining()) file.read(buffer);
                buffer.flip();
            }
            byte[] data = new byte[length];
            buffer.get(data);
            return data;
        }
    }

    public static void main(String[] words) throws Exception {
        if (words.length > 0) {
            HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(words[0])), 64);
            server.createContext("/", exchange -> {
                byte[] body = exchange.getRequestMethod().equals("POST") ? exchange.getRequestBody().readAllBytes()
                    : read(exchange.getRequestURI().getPath().substring(1));
                exchange.sendResponseHeaders(200, body.length);
                try (OutputStream out = exchange.getResponseBody()) { out.write(body); }
            });
            server.setExecutor(Executors.newVirtualThreadPerTaskExecutor());
            server.start();
            return;
        }
        byte[] large = read("heap");
        System.out.println(digest(large) + " " + digest(read("direct")) + " " + digest(read("mapped")));
        try (ServerSocketChannel listener = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
             ExecutorService pool = Executors.newFixedThreadPool(4)) {
            for (int round = 0; round < 6; round++) {
                boolean direct = round % 2 == 0;
                SocketChannel out = SocketChannel.open(listener.getLocalAddress()), in = listener.accept();
                Future<?> sender = pool.submit(() -> {
                    ByteBuffer buffer = direct ? ByteBuffer.allocateDirect(large.length) : ByteBuffer.allocate(large.length);
                    buffer.put(large).flip();
                    while (buffer.hasRemaining()) out.write(buffer);
                    out.close();
                    return null;
                });
                ByteBuffer buffer = direct ? ByteBuffer.allocateDirect(large.length) : ByteBuffer.allocate(large.length);
                while (buffer.hasRemaining() && in.read(buffer) >= 0) { }
                in.close();
                sender.get();
                byte[] got = new byte[large.length];
                buffer.flip().get(got);
                System.out.println(round + " " + digest(got));
            }
            List<Future<String>> answers = new ArrayList<>();
            for (int task = 0; task < 40; task++) {
                int seed = task;
                answers.add(pool.submit(() -> {
                    byte[] data = new byte[2_000_000];
                    new Random(seed).nextBytes(data);
                    Arrays.sort(data);
                    return digest(data);
                }));
            }
            for (Future<String> answer : answers) System.out.println(answer.get());
        }
        try (FileChannel file = FileChannel.open(Path.of("copy"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
            file.write(ByteBuffer.wrap(large));
            file.force(true);
        }
        System.out.println(digest(Files.readAllBytes(Path.of("copy"))));
        Process child = new ProcessBuilder("cat", "copy").start();
        System.out.println(digest(child.getInputStream().readAllBytes()) + " " + child.waitFor());
    }
}
