import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main methods of Kafka's tools, one after the other, in one JVM.
 *
 * A line of standard input is a command: the class, the bytes of its standard input, its arguments. A line of standard
 * output is the outcome: the exit code, the bytes of standard output and of standard error, up to the first call of
 * Exit. Fields are base64, with a space between them.
 */
public class ToolMains {
    private static final class Ended extends Error {
        final int code;

        Ended(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    /** Tools in Scala keep the first standard output that they see: it is always this one. */
    private static final class Redirected extends OutputStream {
        ByteArrayOutputStream target = new ByteArrayOutputStream();

        @Override
        public synchronized void write(int octet) {
            target.write(octet);
        }

        @Override
        public synchronized void write(byte[] octets, int from, int count) {
            target.write(octets, from, count);
        }

        synchronized byte[] restart() {
            byte[] found = target.toByteArray();
            target = new ByteArrayOutputStream();
            return found;
        }
    }

    private static final Redirected OUT = new Redirected();
    private static final Redirected ERR = new Redirected();
    private static Integer code;
    private static byte[] out;
    private static byte[] err;

    public static void main(String[] none) throws Exception {
        PrintStream outcomes = System.out;
        System.setOut(new PrintStream(OUT, true, "UTF-8"));
        System.setErr(new PrintStream(ERR, true, "UTF-8"));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = Arrays.stream(line.split(" ")).map(ToolMains::decoded).toArray(String[]::new);
            run(words[0], words[1], Arrays.copyOfRange(words, 2, words.length));
            outcomes.println(code + " " + encoded(out) + " " + encoded(err));
            outcomes.flush();
        }
    }

    private static void run(String tool, String input, String[] arguments) throws Exception {
        System.setIn(new ByteArrayInputStream(input.getBytes(StandardCharsets.UTF_8)));
        OUT.restart();
        ERR.restart();
        code = null;
        Exit.Procedure end = (status, message) -> {
            ended(status);
            throw new Ended(status);
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        // A hook of a tool waits for its main method, which is over.
        Exit.setShutdownHookAdder((name, hook) -> { });
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            ended(0);
        } catch (InvocationTargetException problem) {
            // The JVM prints the exception of a main method, and ends with 1.
            problem.getCause().printStackTrace();
            ended(problem.getCause() instanceof Ended end1 ? end1.code : 1);
        }
    }

    private static void ended(int status) {
        if (code == null) {
            code = status;
            out = OUT.restart();
            err = ERR.restart();
        }
    }

    private static String decoded(String field) {
        return new String(Base64.getDecoder().decode(field.substring(1)), StandardCharsets.UTF_8);
    }

    private static String encoded(byte[] field) {
        return "." + Base64.getEncoder().encodeToString(field);
    }
}
