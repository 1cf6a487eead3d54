import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * RocketMQ's own Java client, played by a test: commands on stdin, one a line, words separated by tabs; answers and events on
 * stdout. tests/support/players.py says which; python_player.py beside this directory is the same for the Python client.
 */
public final class Player {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Duration AWAIT = Duration.ofSeconds(Long.parseLong(System.getenv().getOrDefault("PLAYER_AWAIT_S", "2")));
    private final ClientConfiguration configuration;
    private final Map<String, Integer> asked = new ConcurrentHashMap<>();
    private final List<AutoCloseable> open = Collections.synchronizedList(new ArrayList<>());
    private final List<Transaction> silent = new ArrayList<>();
    private Producer producer;
    private SimpleConsumer consumer;
    private List<MessageView> received = new ArrayList<>();

    private Player(String endpoints, String namespace, String accessKey, String secretKey, boolean tls) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(endpoints).setNamespace(namespace).enableSsl(tls).setRequestTimeout(Duration.ofSeconds(3));
        if (!accessKey.isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(accessKey, secretKey));
        }
        configuration = builder.build();
    }

    public static void main(String[] args) throws Exception {
        Player player = new Player(args[0], args[1], args[2], args[3], Boolean.parseBoolean(args[4]));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        say("!", "ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            try {
                say("=", player.play(words));
            } catch (Throwable error) {
                Throwable thrown = error instanceof ExecutionException ? error.getCause() : error;
                StringBuilder text = new StringBuilder();
                for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
                    text.append(cause == thrown ? "" : ": ").append(cause.getMessage());
                }
                String told = text.toString().replaceAll("[\t\r\n]+", " ");
                say("=", "error\t" + thrown.getClass().getSimpleName() + "\t" + told);
            }
        }
        player.close();
        System.exit(0);
    }

    private static synchronized void say(String kind, String text) {
        System.out.println(kind + "\t" + text);
        System.out.flush();
    }

    private String play(String[] words) throws Exception {
        switch (words[0]) {
            case "producer":
                return start(words[1].split(","));
            case "half":
                return half(words[1], words[2], words[3], words[4]);
            case "end":
                return end(Integer.parseInt(words[1]), words[2]);
            case "send":
                return "ok\t" + producer.send(message(words[1], words[2], words[3], words[4]).build()).getMessageId();
            case "fifo":
                return "ok\t" + producer.send(message(words[1], words[2], "", "").setMessageGroup("g").build()).getMessageId();
            case "delay":
                long later = System.currentTimeMillis() + 3_600_000;
                return "ok\t" + producer.send(message(words[1], words[2], "", "").setDeliveryTimestamp(later).build()).getMessageId();
            case "simple":
                return simple(words[1], words[2], words[3]);
            case "receive":
                return receive(Integer.parseInt(words[1]), Integer.parseInt(words[2]));
            case "ack":
                consumer.ack(received.get(Integer.parseInt(words[1])));
                return "ok";
            case "invisible":
                Duration duration = Duration.ofMillis((long) (1000 * Double.parseDouble(words[2])));
                consumer.changeInvisibleDuration(received.get(Integer.parseInt(words[1])), duration);
                return "ok";
            case "push":
                return push(words[1], words[2], words[3]);
            case "close":
                close();
                return "ok";
            default:
                return "error\tPlayer\tno such command: " + words[0];
        }
    }

    private MessageBuilder message(String topic, String body, String tag, String key) {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
        if (!tag.isEmpty()) {
            builder.setTag(tag);
        }
        return key.isEmpty() ? builder : builder.setKeys(key);
    }

    private String start(String[] topics) throws Exception {
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics)
            .setTransactionChecker(this::check).build();
        open.add(producer);
        return "ok";
    }

    /** What the half's property "answer" says: words for one time after the other, the last one for ever. */
    private TransactionResolution check(MessageView view) {
        int times = asked.merge(view.getMessageId().toString(), 1, Integer::sum);
        String[] answers = view.getProperties().getOrDefault("answer", "unknown").split(",");
        String answer = answers[Math.min(times, answers.length) - 1];
        say("!", "check\t" + body(view) + "\t" + answer + "\t" + view.getMessageId());
        return answer.equals("commit") ? TransactionResolution.COMMIT
            : answer.equals("rollback") ? TransactionResolution.ROLLBACK : TransactionResolution.UNKNOWN;
    }

    private String half(String topic, String body, String answer, String outcome) throws Exception {
        Transaction transaction = producer.beginTransaction();
        Message message = message(topic, body, "", "").addProperty("answer", answer).build();
        String id = producer.send(message, transaction).getMessageId().toString();
        silent.add(transaction);
        if (!outcome.equals("silent")) {
            end(silent.size() - 1, outcome);
        }
        return "ok\t" + id + "\t\t" + (silent.size() - 1);
    }

    private String end(int number, String outcome) throws Exception {
        if (outcome.equals("commit")) {
            silent.get(number).commit();
        } else {
            silent.get(number).rollback();
        }
        return "ok";
    }

    private String simple(String group, String topic, String tags) throws Exception {
        consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(AWAIT).setSubscriptionExpressions(filter(topic, tags)).build();
        open.add(consumer);
        return "ok";
    }

    private static Map<String, FilterExpression> filter(String topic, String tags) {
        return Collections.singletonMap(topic, new FilterExpression(tags, FilterExpressionType.TAG));
    }

    private String receive(int most, int invisible) throws Exception {
        received = consumer.receive(most, Duration.ofSeconds(invisible));
        StringBuilder told = new StringBuilder("ok");
        for (MessageView view : received) {
            told.append('\t').append(body(view)).append('|').append(view.getMessageId()).append('|').append(view.getDeliveryAttempt())
                .append('|').append(view.getTag().orElse("")).append('|').append(String.join(",", view.getKeys()));
        }
        return told.toString();
    }

    /** A body that begins with failN: its first N deliveries fail. One that begins with hang is never done with. */
    private String push(String group, String topic, String tags) throws Exception {
        open.add(PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(filter(topic, tags)).setMessageListener(view -> {
                String body = body(view);
                boolean fails = body.startsWith("fail") && view.getDeliveryAttempt() <= Character.digit(body.charAt(4), 10);
                say("!", "push\t" + body + "\t" + view.getMessageId() + "\t" + view.getDeliveryAttempt());
                while (body.startsWith("hang")) {
                    LockSupport.park();
                }
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build());
        return "ok";
    }

    private static String body(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private void close() throws Exception {
        for (AutoCloseable each : open) {
            each.close();
        }
        open.clear();
    }
}
