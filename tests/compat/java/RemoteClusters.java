import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.mirror.Heartbeat;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** Prints what MirrorMaker 2's client library finds: arguments bootstrap servers, policy, source alias, group. */
class RemoteClusters {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> properties = new HashMap<>();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("replication.policy.class", "org.apache.kafka.connect.mirror." + arguments[1]);
        String source = arguments[2];
        System.out.println("upstream " + new TreeSet<>(RemoteClusterUtils.upstreamClusters(properties)));
        System.out.println("hops " + RemoteClusterUtils.replicationHops(properties, source));
        System.out.println("heartbeats " + new TreeSet<>(RemoteClusterUtils.heartbeatTopics(properties)));
        System.out.println("checkpoints " + new TreeSet<>(RemoteClusterUtils.checkpointTopics(properties)));
        Map<String, OffsetAndMetadata> offsets = new TreeMap<>();
        RemoteClusterUtils.translateOffsets(properties, source, arguments[3], Duration.ofSeconds(20))
            .forEach((partition, offset) -> offsets.put(partition.toString(), offset));
        offsets.forEach((partition, offset) ->
            System.out.println("offset " + partition + " " + offset.offset() + " " + offset.metadata()));
        try (MirrorClient client = new MirrorClient(properties)) {
            System.out.println("remote " + new TreeSet<>(client.remoteTopics()));
        }
        for (String topic : new TreeSet<>(RemoteClusterUtils.heartbeatTopics(properties))) {
            System.out.println("heartbeat " + topic + " " + first(arguments[0], topic));
        }
    }

    private static String first(String bootstrap, String topic) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(20))) {
                Heartbeat beat = Heartbeat.deserializeRecord(record);
                return beat.sourceClusterAlias() + " " + beat.targetClusterAlias() + " "
                    + (beat.timestamp() - record.timestamp());
            }
        }
        return "none";
    }
}
