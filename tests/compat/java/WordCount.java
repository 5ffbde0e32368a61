import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/** Counts words exactly once: arguments bootstrap servers, application id, state directory, topic of lines, topic of counts. */
class WordCount {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 3);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000);
        settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 6000);
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), 6000);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(arguments[3], Consumed.with(Serdes.String(), Serdes.String()))
            .flatMapValues(line -> Arrays.asList(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> count.toString())
            .to(arguments[4], Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            System.out.println("failed " + error);
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((after, before) -> System.out.println(after));
        CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close();
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }
}
