import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.tools.TransactionsCommand;

/** Runs transactions by Kafka's own clients: one numbered command a line, answered by one line, its result or the name of its exception. */
class Transactions {
    private static final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    private static final Map<String, KafkaConsumer<String, String>> members = new HashMap<>();
    private static String bootstrap;
    private static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", "30000"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String answer;
            try {
                answer = run(Arrays.copyOfRange(words, 1, words.length));
            } catch (Exception error) {
                Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
                cause.printStackTrace();
                answer = cause.getClass().getSimpleName();
            }
            System.out.println(words[0] + " " + answer);
        }
        producers.values().forEach(producer -> producer.close(Duration.ZERO));
        members.values().forEach(member -> member.close(Duration.ZERO));
        admin.close();
    }

    private static String run(String[] words) throws Exception {
        String name = words[1];
        KafkaProducer<String, String> producer = producers.get(name);
        switch (words[0]) {
            case "open":
                producers.put(name, open(words));
                return "opened";
            case "init":
                producer.initTransactions();
                return "initialised";
            case "begin":
                producer.beginTransaction();
                return "begun";
            case "send":
                return "at " + producer.send(
                    new ProducerRecord<>(words[2], Integer.valueOf(words[3]), null, words[4])).get().offset();
            case "queue":
                producer.send(new ProducerRecord<>(words[2], Integer.valueOf(words[3]), null, words[4]));
                return "queued";
            case "offsets":
                producer.sendOffsetsToTransaction(
                    Map.of(new TopicPartition(words[2], 0), new OffsetAndMetadata(Long.parseLong(words[3]), "note")),
                    group(words));
                return "sent";
            case "commit":
                producer.commitTransaction();
                return "committed";
            case "abort":
                producer.abortTransaction();
                return "aborted";
            case "join":
                return join(words);
            case "leave":
                members.remove(name).close();
                return "left";
            case "read":
                return String.join(" ", read(name, words[2]));
            case "ends":
                try (KafkaConsumer<String, String> consumer = consumer(Map.of("isolation.level", name))) {
                    return "" + new TreeSet<>(consumer.endOffsets(partitions(consumer, words[2])).values());
                }
            case "stored":
                Map<TopicPartition, OffsetAndMetadata> stored = new TreeMap<>(
                    (one, other) -> one.toString().compareTo(other.toString()));
                ListConsumerGroupOffsetsOptions stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
                stored.putAll(admin.listConsumerGroupOffsets(name, stable).partitionsToOffsetAndMetadata().get());
                return stored.toString();
            case "describe":
                TransactionDescription found = settled(name);
                return found.state() + " epoch " + found.producerEpoch() + " timeout " + found.transactionTimeoutMs()
                    + " " + sorted(found.topicPartitions());
            case "expired":
                while (settled(name).state() == TransactionState.ONGOING) {
                    Thread.sleep(50);
                }
                return "expired";
            case "list":
                return list(words);
            case "producers":
                List<String> states = new ArrayList<>();
                for (ProducerState state : states(name, words[2])) {
                    states.add("epoch " + state.producerEpoch() + " sequence " + state.lastSequence()
                        + " start " + state.currentTransactionStartOffset().orElse(-1)
                        + " coordinator " + state.coordinatorEpoch().isPresent());
                }
                Collections.sort(states);  // Apache Kafka lists them in the order of its hash map
                return states.toString();
            case "cut":
                return cut(name, words[2], words.length > 3 ? Integer.parseInt(words[3]) : null);
            case "fence":
                admin.fenceProducers(List.of(name)).all().get();
                return "fenced";
            case "tool":
                return tool(Arrays.copyOfRange(words, 1, words.length));
            case "coordinator":
                return "" + admin.describeTransactions(List.of(name)).description(name).get().coordinatorId();
            case "close":
                producers.remove(name).close(Duration.ofSeconds(20));
                return "closed";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** Describes a transaction that is not about to end: markers follow a commit. */
    private static TransactionDescription settled(String name) throws Exception {
        TransactionDescription found;
        do {
            found = admin.describeTransactions(List.of(name)).description(name).get();
        } while (found.state() == TransactionState.PREPARE_COMMIT || found.state() == TransactionState.PREPARE_ABORT);
        return found;
    }

    /** Runs kafka-transactions.sh; returns what it prints, and its exit code. */
    private static String tool(String[] words) throws Exception {
        List<String> all = new ArrayList<>(List.of("--bootstrap-server", bootstrap));
        all.addAll(Arrays.asList(words));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        int[] code = {0};
        Exit.setExitProcedure((status, message) -> {
            code[0] = status;
            throw new IllegalStateException("exit");
        });
        System.setOut(new PrintStream(printed, true));
        try {
            TransactionsCommand.main(all.toArray(new String[0]));
        } catch (IllegalStateException exit) {
            if (!"exit".equals(exit.getMessage())) {
                throw exit;
            }
        } finally {
            System.setOut(before);
            Exit.resetExitProcedure();
        }
        return printed.toString().strip().replace("\n", "|") + "|exit " + code[0];
    }

    /** open NAME TRANSACTIONAL_ID setting=value... */
    private static KafkaProducer<String, String> open(String[] words) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", words[2]);
        settings.put("max.block.ms", 50000);
        for (String setting : Arrays.copyOfRange(words, 3, words.length)) {
            settings.put(setting.split("=")[0], setting.split("=")[1]);
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    private static KafkaConsumer<String, String> consumer(Map<String, String> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("bootstrap.servers", bootstrap);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** offsets NAME TOPIC OFFSET GROUP [GENERATION MEMBER]; a member of ours is named as such. */
    private static ConsumerGroupMetadata group(String[] words) {
        if (members.containsKey(words[4])) {
            return members.get(words[4]).groupMetadata();
        }
        if (words.length > 5) {
            return new ConsumerGroupMetadata(words[4], Integer.parseInt(words[5]), words[6], Optional.empty());
        }
        return new ConsumerGroupMetadata(words[4]);
    }

    /** join NAME GROUP TOPIC */
    private static String join(String[] words) {
        KafkaConsumer<String, String> member = consumer(
            Map.of("group.id", words[2], "isolation.level", "read_committed"));
        members.put(words[1], member);
        member.subscribe(List.of(words[3]));
        while (member.assignment().isEmpty()) {
            member.poll(Duration.ofMillis(100));
        }
        return "joined";
    }

    private static List<TopicPartition> partitions(KafkaConsumer<String, String> consumer, String topic) {
        List<TopicPartition> found = new ArrayList<>();
        consumer.partitionsFor(topic).forEach(info -> found.add(new TopicPartition(topic, info.partition())));
        return found;
    }

    private static Set<String> read(String level, String topic) {
        Set<String> found = new TreeSet<>();
        try (KafkaConsumer<String, String> consumer = consumer(Map.of("isolation.level", level))) {
            List<TopicPartition> partitions = partitions(consumer, topic);
            consumer.assign(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    if (!found.add(record.partition() + ":" + record.offset() + ":" + record.value())) {
                        found.add("TWICE");
                    }
                }
            }
        }
        return found;
    }

    private static String list(String[] words) throws Exception {
        ListTransactionsOptions options = new ListTransactionsOptions();
        for (String word : Arrays.copyOfRange(words, 2, words.length)) {
            if (word.startsWith("older=")) {
                options.filterOnDuration(Long.parseLong(word.substring(6)));
            } else {
                options.filterStates(List.of(TransactionState.parse(word)));
            }
        }
        Map<String, String> found = new TreeMap<>();
        for (TransactionListing listing : admin.listTransactions(options).all().get()) {
            if (listing.transactionalId().startsWith(words[1])) {
                found.put(listing.transactionalId(), listing.state().toString());
            }
        }
        return found.toString();
    }

    private static List<ProducerState> states(String topic, String partition) throws Exception {
        TopicPartition asked = new TopicPartition(topic, Integer.parseInt(partition));
        List<ProducerState> found = new ArrayList<>(
            admin.describeProducers(List.of(asked)).partitionResult(asked).get().activeProducers());
        found.sort((one, other) -> Long.compare(one.producerId(), other.producerId()));
        return found;
    }

    /** Aborts the open transactions of a partition past their coordinator, as kafka-transactions.sh abort does. */
    private static String cut(String topic, String partition, Integer coordinatorEpoch) throws Exception {
        int count = 0;
        for (ProducerState state : states(topic, partition)) {
            if (state.currentTransactionStartOffset().isPresent()) {
                int epoch = coordinatorEpoch != null ? coordinatorEpoch : state.coordinatorEpoch().orElse(0);
                admin.abortTransaction(new AbortTransactionSpec(
                    new TopicPartition(topic, Integer.parseInt(partition)), state.producerId(),
                    (short) state.producerEpoch(), epoch)).all().get();
                count++;
            }
        }
        return "cut " + count;
    }

    private static Set<String> sorted(Collection<TopicPartition> partitions) {
        Set<String> found = new TreeSet<>();
        partitions.forEach(each -> found.add(each.toString()));
        return found;
    }
}
