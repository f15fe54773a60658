import java.util.Scanner;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.exception.RemotingException;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/**
 * A name server, and a producer that sends one message at a time. For each line with a count it sends so many, and
 * prints how many nanoseconds each took, in one line. A count begins when a message is on the slave, too.
 *
 * Arguments: the name server's port, bytes of a message.
 */
public class OneAtATime {
    private static final int PATIENCE_SECONDS = 60;

    public static void main(String[] arguments) throws Exception {
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        int port = Integer.parseInt(arguments[0]);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(port);
        NamesrvController names = new NamesrvController(new NamesrvConfig(), server, new NettyClientConfig());
        names.initialize();
        names.start();
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr("127.0.0.1:" + port);
        producer.setDefaultTopicQueueNums(1);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        Message message = new Message("bench", new byte[Integer.parseInt(arguments[1])]);
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextInt()) {
            System.out.println("took " + send(producer, message, lines.nextInt()));
        }
        System.exit(0);
    }

    private static String send(DefaultMQProducer producer, Message message, int count) throws Exception {
        awaitSlave(producer, message);
        StringBuilder took = new StringBuilder();
        for (int number = 0; number < count; number++) {
            long began = System.nanoTime();
            SendStatus status = producer.send(message).getSendStatus();
            took.append(System.nanoTime() - began).append(' ');
            if (status != SendStatus.SEND_OK) {
                return status.toString();
            }
        }
        return took.toString();
    }

    private static void awaitSlave(DefaultMQProducer producer, Message message) throws Exception {
        long deadline = System.nanoTime() + PATIENCE_SECONDS * 1_000_000_000L;
        String last = "";
        while (System.nanoTime() < deadline) {
            try {
                last = producer.send(message).getSendStatus().toString();
                if (last.equals("SEND_OK")) {
                    return;
                }
            } catch (MQClientException | MQBrokerException | RemotingException error) {
                last = error.toString();
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("the slave is not there: " + last);
    }
}
