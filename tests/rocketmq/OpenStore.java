import com.alibaba.fastjson2.JSON;
import java.io.PrintStream;
import java.io.FileOutputStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store root as a broker would and prints, a JSON object a line, every message that RocketMQ finds in its log
 * and every entry of its consume queues. Then appends messages, if told to, and closes it properly.
 *
 * Arguments: root, segment bytes, consume queue file bytes, output file, and for each message: topic, queue id, body.
 */
public class OpenStore {
    private static final int BLANK = 0xCBD43194;
    private static PrintStream out;

    public static void main(String[] arguments) throws Exception {
        out = new PrintStream(new FileOutputStream(arguments[3]), false, "UTF-8");
        int segmentBytes = Integer.parseInt(arguments[1]);
        DefaultMessageStore store = open(arguments[0], segmentBytes, Integer.parseInt(arguments[2]));
        printMessages(store, segmentBytes);
        printQueues(store);
        for (int at = 4; at < arguments.length; at += 3) {
            append(store, arguments[at], Integer.parseInt(arguments[at + 1]), arguments[at + 2]);
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        store.shutdown();
        out.close();
        System.exit(0);
    }

    private static DefaultMessageStore open(String root, int segmentBytes, int queueFileBytes) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMappedFileSizeCommitLog(segmentBytes);
        config.setMappedFileSizeConsumeQueue(queueFileBytes);
        config.setMaxMessageSize(segmentBytes / 4);
        config.setMessageIndexEnable(false);
        config.setTimerWheelEnable(false);
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(99);
        BrokerConfig broker = new BrokerConfig();
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager(broker), (topic, queue, offset, tags, time, filter, properties) -> { }, broker, topics);
        if (!store.load()) {
            System.err.println("RocketMQ refuses to load the store");
            System.exit(2);
        }
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        return store;
    }

    private static void printMessages(DefaultMessageStore store, int segmentBytes) {
        long where = store.getMinPhyOffset();
        long end = store.getMaxPhyOffset();
        while (where < end) {
            SelectMappedBufferResult found = store.getCommitLog().getData(where);
            ByteBuffer buffer = found.getByteBuffer();
            int size = buffer.getInt(0);
            int magic = buffer.getInt(4);
            found.release();
            if (magic == BLANK) {
                where += segmentBytes - where % segmentBytes;
                continue;
            }
            MessageExt message = store.lookMessageByOffset(where, size);
            if (message == null) {
                throw new IllegalStateException("no message at " + where);
            }
            print("message", fields(message));
            where += size;
        }
        print("end", Map.of("where", end));
    }

    private static Map<String, Object> fields(MessageExt message) {
        Map<String, Object> fields = new LinkedHashMap<>();
        InetSocketAddress born = (InetSocketAddress) message.getBornHost();
        InetSocketAddress stored = (InetSocketAddress) message.getStoreHost();
        byte[] body = message.getBody();
        fields.put("physicOffset", message.getCommitLogOffset());
        fields.put("storeSize", message.getStoreSize());
        fields.put("topic", message.getTopic());
        fields.put("queueId", message.getQueueId());
        fields.put("queueOffset", message.getQueueOffset());
        fields.put("sysFlag", message.getSysFlag());
        fields.put("flag", message.getFlag());
        fields.put("bornTimestamp", message.getBornTimestamp());
        fields.put("bornHost", born.getAddress().getHostAddress());
        fields.put("bornPort", born.getPort());
        fields.put("storeTimestamp", message.getStoreTimestamp());
        fields.put("storeHost", stored.getAddress().getHostAddress());
        fields.put("storePort", stored.getPort());
        fields.put("reconsumeTimes", message.getReconsumeTimes());
        fields.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        fields.put("bodyCRC", message.getBodyCRC());
        fields.put("body", body == null || body.length == 0 ? null : Base64.getEncoder().encodeToString(body));
        fields.put("properties", new TreeMap<>(message.getProperties()));
        fields.put("msgId", message.getMsgId());
        return fields;
    }

    private static void printQueues(DefaultMessageStore store) {
        for (ConcurrentMap<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                for (long at = queue.getMinOffsetInQueue(); at < queue.getMaxOffsetInQueue(); at++) {
                    CqUnit unit = queue.get(at);
                    Map<String, Object> fields = new LinkedHashMap<>();
                    fields.put("topic", queue.getTopic());
                    fields.put("queueId", queue.getQueueId());
                    fields.put("index", at);
                    fields.put("offset", unit.getPos());
                    fields.put("size", unit.getSize());
                    fields.put("tagsCode", unit.getTagsCode());
                    print("entry", fields);
                }
            }
        }
    }

    private static void append(DefaultMessageStore store, String topic, int queueId, String body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        message.setTags("from-rocketmq");
        message.setKeys("key");
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 5));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        PutMessageResult result = store.putMessage(message);
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("status", result.getPutMessageStatus().name());
        fields.put("queueOffset", result.getAppendMessageResult().getLogicsOffset());
        fields.put("physicOffset", result.getAppendMessageResult().getWroteOffset());
        print("appended", fields);
    }

    private static void print(String kind, Map<String, Object> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.putAll(fields);
        out.println(JSON.toJSONString(line, com.alibaba.fastjson2.JSONWriter.Feature.WriteNulls));
    }
}
