import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's side of benchmarks/rocketmq: its official client, told by lines on stdin what to do, answering each with a line of
 * JSON. client.py is the twin for Escrow and takes the same commands.
 *
 * <pre>java -cp … Client NAMESRV GROUP TOPIC      then lines: COMMAND KEY=VALUE …</pre>
 */
public final class Client {
    private static final long PATIENCE_NS = 400_000_000_000L;
    private static final int CHECK_THREADS = 8;

    private final TransactionMQProducer producer;
    private final String namesrv;
    private final String topic;
    private final byte[] body = new byte[1024];
    private final AtomicLong keys = new AtomicLong();
    /** What a check is answered with. */
    private volatile LocalTransactionState policy = LocalTransactionState.COMMIT_MESSAGE;
    /** Key of each half that was asked about, and when first. */
    private final Map<String, Long> askedAtNs = new ConcurrentHashMap<>();
    private final AtomicLong checks = new AtomicLong();
    /** Called with each check; null: nobody waits. */
    private final AtomicReference<CountDownLatch> nextCheck = new AtomicReference<>();
    private DefaultMQPushConsumer consumer;
    private final Map<String, Integer> deliveries = new ConcurrentHashMap<>();
    /** Deliveries by queue and offset: the same message again, not a copy of it. */
    private final Map<String, Integer> positions = new ConcurrentHashMap<>();
    private final Map<String, Long> commitAtNs = new ConcurrentHashMap<>();
    private final Map<String, Long> seenAtNs = new ConcurrentHashMap<>();

    private Client(String namesrv, String group, String topic) throws Exception {
        this.namesrv = namesrv;
        this.topic = topic;
        Arrays.fill(body, (byte) 'x');
        producer = new TransactionMQProducer(group);
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName("producer-" + ProcessHandle.current().pid());
        producer.setSendMsgTimeout(10_000);
        producer.setExecutorService(Executors.newFixedThreadPool(CHECK_THREADS));
        producer.setTransactionListener(new Listener());
        producer.start();
        until(() -> createTopic());
        // A producer that has sent nothing yet would be known to the broker, and asked, only after its first beat in 30 s.
        producer.getDefaultMQProducerImpl().getMqClientFactory().updateTopicRouteInfoFromNameServer(topic);
        producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock();
    }

    /** False while the broker has not told the name server of itself. */
    private boolean createTopic() {
        try {
            producer.createTopic("TBW102", topic, 4, Map.of());
            return true;
        } catch (MQClientException error) {
            return false;
        }
    }

    /** The local transaction's state is what the caller hands in; a check is answered as `policy` says. */
    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object state) {
            if (consumer != null && state == LocalTransactionState.COMMIT_MESSAGE) {
                commitAtNs.put(message.getKeys(), System.nanoTime());
            }
            return (LocalTransactionState) state;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            askedAtNs.putIfAbsent(message.getKeys(), System.nanoTime());
            checks.incrementAndGet();
            CountDownLatch waiting = nextCheck.getAndSet(null);
            if (waiting != null) {
                waiting.countDown();
            }
            return policy;
        }
    }

    public static void main(String[] args) {
        try {
            serve(args);
            System.exit(0); // its threads are no daemons
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(String[] args) throws Exception {
        Client client = new Client(args[0], args[1], args[2]);
        client.say(Map.of("ready", true));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.trim().split(" ");
            Map<String, String> given = new HashMap<>();
            for (int at = 1; at < words.length; at++) {
                String[] pair = words[at].split("=", 2);
                given.put(pair[0], pair[1]);
            }
            client.say(client.obey(words[0], given));
        }
    }

    private Map<String, Object> obey(String command, Map<String, String> given) throws Exception {
        switch (command) {
            case "tx": return tx(integer(given, "callers"), real(given, "seconds"));
            case "count_tx": return countTx(integer(given, "callers"), integer(given, "count"), LocalTransactionState.COMMIT_MESSAGE);
            case "halves": return countTx(integer(given, "callers"), integer(given, "count"), LocalTransactionState.UNKNOW);
            case "paced": return paced(integer(given, "rate"), real(given, "seconds"));
            case "policy": policy = state(given.get("answer")); return Map.of();
            case "asked": return Map.of("checks", checks.get(), "halves", askedAtNs.size());
            case "storm": return storm(integer(given, "expect"));
            case "first_ack": return firstAck();
            case "first_check": return firstCheck();
            case "consume": startConsumer(); return Map.of();
            case "commits": return commits(integer(given, "callers"), integer(given, "count"));
            case "copies": return copies();
            case "thrice": return copiesOf("commit", "commit", "commit");
            case "after_rollback": return copiesOf("rollback", "commit");
            default: throw new IllegalArgumentException(command);
        }
    }

    // --- transactions ---------------------------------------------------------------------------------------------------
    private Message next() {
        return new Message(topic, "", "k" + keys.incrementAndGet(), body);
    }

    /** Callers in a loop for so long; also how long it took until all of them were visible, since its COMMIT is one-way. */
    private Map<String, Object> tx(int callers, double seconds) throws Exception {
        long begun = maxOffset();
        long startNs = System.nanoTime();
        long endNs = startNs + (long) (seconds * 1e9);
        List<long[]> took = new ArrayList<>();
        AtomicLong errors = new AtomicLong();
        run(callers, number -> {
            long[] found = new long[1024];
            int count = 0;
            while (System.nanoTime() < endNs) {
                long fromNs = System.nanoTime();
                if (send(LocalTransactionState.COMMIT_MESSAGE) == null) {
                    errors.incrementAndGet();
                    continue;
                }
                found = count == found.length ? Arrays.copyOf(found, 2 * count) : found;
                found[count++] = System.nanoTime() - fromNs;
            }
            synchronized (took) {
                took.add(Arrays.copyOf(found, count));
            }
        });
        long doneNs = System.nanoTime();
        long[] all = took.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        waitVisible(begun + all.length);
        Map<String, Object> said = new HashMap<>(quantiles(all));
        said.putAll(Map.of("count", all.length, "errors", errors.get(), "seconds", (doneNs - startNs) / 1e9,
            "visible_seconds", (System.nanoTime() - startNs) / 1e9));
        return said;
    }

    private Map<String, Object> countTx(int callers, int count, LocalTransactionState state) throws Exception {
        AtomicLong left = new AtomicLong(count);
        AtomicLong errors = new AtomicLong();
        long begun = maxOffset();
        long startNs = System.nanoTime();
        run(callers, number -> {
            while (left.getAndDecrement() > 0) {
                while (send(state) == null) {
                    errors.incrementAndGet();
                }
            }
        });
        double took = (System.nanoTime() - startNs) / 1e9;
        if (state == LocalTransactionState.COMMIT_MESSAGE) {
            waitVisible(begun + count);
        }
        return Map.of("count", count, "seconds", took, "errors", errors.get());
    }

    /** Null when it was refused. */
    private TransactionSendResult send(LocalTransactionState state) {
        try {
            TransactionSendResult sent = producer.sendMessageInTransaction(next(), state);
            return sent.getSendStatus() == SendStatus.SEND_OK ? sent : null;
        } catch (MQClientException error) {
            return null;
        }
    }

    // --- commit -> visible ----------------------------------------------------------------------------------------------
    private void startConsumer() throws Exception {
        if (consumer != null) {
            return;
        }
        DefaultMQPushConsumer made = new DefaultMQPushConsumer("readers-" + ProcessHandle.current().pid());
        made.setNamesrvAddr(namesrv);
        made.setInstanceName("consumer-" + ProcessHandle.current().pid());
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        made.subscribe(topic, "*");
        made.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            for (MessageExt message : messages) {
                seenAtNs.putIfAbsent(message.getKeys(), nowNs);
                deliveries.merge(message.getKeys(), 1, Integer::sum);
                positions.merge(message.getQueueId() + "/" + message.getQueueOffset(), 1, Integer::sum);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        made.start();
        consumer = made;
        while (deliveries.isEmpty()) { // until its queues are assigned and it reads
            send(LocalTransactionState.COMMIT_MESSAGE);
            Thread.sleep(200);
        }
        Thread.sleep(1000);
    }

    private Map<String, Object> paced(int rate, double seconds) throws Exception {
        startConsumer();
        commitAtNs.clear();
        seenAtNs.clear();
        long startNs = System.nanoTime();
        int count = (int) (rate * seconds);
        for (int number = 0; number < count; number++) {
            LockSupport.parkNanos(startNs + number * 1_000_000_000L / rate - System.nanoTime());
            send(LocalTransactionState.COMMIT_MESSAGE);
        }
        until(() -> seenAtNs.size() >= commitAtNs.size());
        long[] waits = commitAtNs.entrySet().stream().mapToLong(e -> seenAtNs.get(e.getKey()) - e.getValue()).sorted().toArray();
        return quantiles(waits);
    }

    // --- check-back -----------------------------------------------------------------------------------------------------
    /** From the first check on: until half of, 99 % of and all the halves were asked about, and until all are visible. */
    private Map<String, Object> storm(int expect) throws Exception {
        long begun = maxOffset();
        until(() -> !askedAtNs.isEmpty());
        until(() -> askedAtNs.size() >= expect);
        waitVisible(begun + expect);
        long settledNs = System.nanoTime();
        long[] asked = askedAtNs.values().stream().mapToLong(Long::longValue).sorted().toArray();
        return Map.of("asked_50_s", (asked[expect / 2] - asked[0]) / 1e9,
            "asked_99_s", (asked[(int) (expect * 0.99)] - asked[0]) / 1e9,
            "asked_s", (asked[asked.length - 1] - asked[0]) / 1e9,
            "settled_s", (settledNs - asked[0]) / 1e9, "checks", checks.get());
    }

    /** Halves until one is acknowledged: when that was. */
    private Map<String, Object> firstAck() throws Exception {
        long giveUpNs = System.nanoTime() + PATIENCE_NS;
        while (System.nanoTime() < giveUpNs) {
            if (send(LocalTransactionState.UNKNOW) != null) {
                return Map.of("at", System.currentTimeMillis() / 1e3);
            }
            Thread.sleep(10);
        }
        throw new IllegalStateException("no half was acknowledged");
    }

    private Map<String, Object> firstCheck() throws Exception {
        CountDownLatch waiting = new CountDownLatch(1);
        nextCheck.set(waiting);
        waiting.await();
        return Map.of("at", System.currentTimeMillis() / 1e3);
    }

    // --- faults ---------------------------------------------------------------------------------------------------------
    /** Commits, each seen by the consumer before this returns. */
    private Map<String, Object> commits(int callers, int count) throws Exception {
        startConsumer();
        long first = keys.get();
        Map<String, Object> said = countTx(callers, count, LocalTransactionState.COMMIT_MESSAGE);
        until(() -> deliveries.keySet().stream().filter(key -> Long.parseLong(key.substring(1)) > first).count() >= count);
        return said;
    }

    /** The whole topic, as a new consumer group finds it: copies; and which messages our own consumer was given more than once. */
    private Map<String, Object> copies() throws Exception {
        Map<String, Integer> found = everything();
        long messages = found.values().stream().mapToLong(Integer::longValue).sum();
        long again = positions.values().stream().mapToLong(times -> times - 1).sum();
        return Map.of("messages", messages, "keys", found.size(), "twice", messages - found.size(), "delivered_again", again);
    }

    /** A half whose ends are sent one by one, as a client that repeats itself would: the transactional send says only one. */
    private Map<String, Object> copiesOf(String... outcomes) throws Exception {
        Message message = next();
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TRANSACTION_PREPARED, "true");
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_PRODUCER_GROUP, producer.getProducerGroup());
        SendResult sent = producer.send(message);
        for (String outcome : outcomes) {
            producer.getDefaultMQProducerImpl().endTransaction(message, sent, state(outcome), null);
            Thread.sleep(500);
        }
        Thread.sleep(2000); // one-way: nothing says that it was carried out
        return Map.of("copies", everything().getOrDefault(message.getKeys(), 0));
    }

    private Map<String, Integer> everything() throws Exception {
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer("everything");
        reader.setNamesrvAddr(namesrv);
        reader.setInstanceName("everything-" + System.nanoTime());
        reader.start();
        Map<String, Integer> found = new HashMap<>();
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
            long at = reader.minOffset(queue);
            long end = reader.maxOffset(queue);
            while (at < end) {
                PullResult pulled = reader.pull(queue, "*", at, 512);
                if (pulled.getPullStatus() == PullStatus.FOUND) {
                    pulled.getMsgFoundList().forEach(message -> found.merge(message.getKeys(), 1, Integer::sum));
                }
                at = pulled.getNextBeginOffset();
            }
        }
        reader.shutdown();
        return found;
    }

    // --- tools ----------------------------------------------------------------------------------------------------------
    private long maxOffset() throws Exception {
        for (long giveUpNs = System.nanoTime() + PATIENCE_NS; ; Thread.sleep(100)) {
            try {
                return maxOffsetNow();
            } catch (MQClientException unknown) { // a name server that rested may have lost its broker for a while
                if (System.nanoTime() > giveUpNs) {
                    throw unknown;
                }
            }
        }
    }

    private long maxOffsetNow() throws Exception {
        long sum = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            sum += producer.maxOffset(queue);
        }
        return sum;
    }

    private void waitVisible(long offset) throws Exception {
        until(() -> maxOffset() >= offset);
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void until(Condition condition) throws Exception {
        AtomicBoolean held = new AtomicBoolean();
        for (long giveUpNs = System.nanoTime() + PATIENCE_NS; !held.get(); Thread.sleep(2)) {
            held.set(condition.holds());
            if (System.nanoTime() > giveUpNs) {
                throw new IllegalStateException("waited in vain");
            }
        }
    }

    private interface Work {
        void run(int number) throws Exception;
    }

    private static void run(int callers, Work work) throws Exception {
        List<Thread> threads = new ArrayList<>();
        AtomicReference<Exception> failed = new AtomicReference<>();
        for (int number = 0; number < callers; number++) {
            int own = number;
            threads.add(new Thread(() -> {
                try {
                    work.run(own);
                } catch (Exception error) {
                    failed.set(error);
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    private static Map<String, Object> quantiles(long[] sortedNs) {
        if (sortedNs.length == 0) {
            return Map.of();
        }
        return Map.of("p50_ms", sortedNs[sortedNs.length / 2] / 1e6, "p99_ms", sortedNs[(int) (sortedNs.length * 0.99)] / 1e6);
    }

    private static LocalTransactionState state(String outcome) {
        return switch (outcome) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }

    private static int integer(Map<String, String> given, String name) {
        return Integer.parseInt(given.get(name));
    }

    private static double real(Map<String, String> given, String name) {
        return Double.parseDouble(given.get(name));
    }

    private void say(Map<String, Object> said) {
        StringBuilder line = new StringBuilder("{");
        said.forEach((name, value) -> line.append(line.length() > 1 ? ", " : "").append('"').append(name).append("\": ").append(value));
        System.out.println(line.append('}'));
    }
}
