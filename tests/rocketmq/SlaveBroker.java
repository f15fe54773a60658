import java.util.List;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A name server, a whole slave broker without a master of its own, a push consumer and a pull consumer. It prints what
 * each consumer gets, and how far the broker says that they are.
 *
 * Arguments: root, segment bytes, consume queue file bytes, the name server's port, the broker's port, topic.
 */
public class SlaveBroker {
    public static void main(String[] arguments) throws Exception {
        String names = "127.0.0.1:" + arguments[3];
        NamesrvConfig namesrvConfig = new NamesrvConfig();
        namesrvConfig.setSupportActingMaster(true);
        NettyServerConfig namesrvServer = new NettyServerConfig();
        namesrvServer.setListenPort(Integer.parseInt(arguments[3]));
        NamesrvController namesrv = new NamesrvController(namesrvConfig, namesrvServer);
        namesrv.initialize();
        namesrv.start();
        BrokerController broker = broker(arguments, names);
        String topic = arguments[5];
        DefaultMQPushConsumer push = new DefaultMQPushConsumer("push");
        push.setNamesrvAddr(names);
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.subscribe(topic, "*");
        push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            print("push", messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        DefaultLitePullConsumer pull = new DefaultLitePullConsumer("pull");
        pull.setNamesrvAddr(names);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, "*");
        pull.start();
        while (System.in.available() == 0) {
            print("pull", pull.poll(100));
            for (String group : List.of("push", "pull")) {
                System.out.println("at " + group + " " + broker.getConsumerOffsetManager().queryOffset(group, topic, 0));
            }
        }
        System.exit(0);
    }

    private static BrokerController broker(String[] arguments, String names) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setNamesrvAddr(names);
        config.setBrokerName("lane-0");
        config.setBrokerId(1);
        config.setBrokerIP1("127.0.0.1");
        config.setListenPort(Integer.parseInt(arguments[4]));
        config.setSlaveReadEnable(true);
        config.setEnableSlaveActingMaster(true);
        MessageStoreConfig store = new MessageStoreConfig();
        store.setStorePathRootDir(arguments[0]);
        store.setStorePathCommitLog(arguments[0] + "/commitlog");
        store.setMappedFileSizeCommitLog(Integer.parseInt(arguments[1]));
        store.setMappedFileSizeConsumeQueue(Integer.parseInt(arguments[2]));
        store.setTimerWheelEnable(false);
        store.setBrokerRole(BrokerRole.SLAVE);
        store.setHaListenPort(0);
        store.setDiskMaxUsedSpaceRatio(99);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(config.getListenPort());
        BrokerController broker = new BrokerController(config, server, new NettyClientConfig(), store);
        if (!broker.initialize()) {
            System.exit(2);
        }
        broker.start();
        return broker;
    }

    private static synchronized void print(String group, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            System.out.println(group + " " + message.getQueueOffset() + " " + new String(message.getBody()));
        }
    }
}
