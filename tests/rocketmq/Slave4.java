import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * A store of RocketMQ 4 in the role of a slave. It follows a master, and says how far its log goes, until its standard
 * input ends.
 *
 * Arguments: root, segment bytes, consume queue file bytes, master's address.
 */
public class Slave4 {
    public static void main(String[] arguments) throws Exception {
        String root = arguments[0];
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(arguments[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(arguments[2]));
        config.setMessageIndexEnable(false);
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(99);
        config.setBrokerRole(BrokerRole.SLAVE);
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerId(1);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("slave", true), (topic, queue, offset, tags, time, filter, properties) -> { }, broker);
        if (!store.load()) {
            System.exit(2);
        }
        store.start();
        store.updateHaMasterAddress(arguments[3]);
        while (System.in.available() == 0) {
            System.out.println(store.getMaxPhyOffset() + " " + store.dispatchBehindBytes());
            Thread.sleep(50);
        }
        store.shutdown();
        System.exit(0);
    }
}
