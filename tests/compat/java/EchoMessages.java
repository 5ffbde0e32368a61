import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.MessageUtil;

/** Reads lines "key version request|response hex", prints each body as Kafka's classes write it again. */
class EchoMessages {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ", -1);
            ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(words[0]));
            short version = Short.parseShort(words[1]);
            ApiMessage message = words[2].equals("request") ? type.newRequest() : type.newResponse();
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[3]));
            String answer;
            try {
                message.read(new ByteBufferAccessor(bytes), version);
                ByteBuffer written = MessageUtil.toByteBuffer(message, version);
                byte[] out = new byte[written.remaining()];
                written.get(out);
                answer = HexFormat.of().formatHex(out) + " " + bytes.remaining();
            } catch (Exception error) {
                answer = "error " + error;
            }
            System.out.println(answer);
        }
    }
}
