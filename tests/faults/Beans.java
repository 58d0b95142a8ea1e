package shardq.faults;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.rmi.registry.LocateRegistry;
import java.util.ArrayList;
import java.util.List;
import javax.management.Attribute;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.rmi.RMIConnector;
import javax.management.remote.rmi.RMIServer;

/**
 * Reads, sets and calls what the beans of running nodes have: a line of standard input each, a line of output each.
 *
 * <pre>
 * port, get,  name or pattern, attribute           its value in each bean
 * port, set,  name, attribute, value
 * port, call, name, operation without arguments
 * </pre>
 *
 * Fields are parted by tabs; an answer that begins with "!" says what went wrong.
 */
public final class Beans {
    private Beans() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String answer;
            try {
                answer = answer(line.split("\t"));
            } catch (Exception error) {
                answer = "!" + String.valueOf(error).replaceAll("\\s+", " ");
            }
            System.out.println(answer);
        }
    }

    private static String answer(String[] fields) throws Exception {
        RMIServer server =
                (RMIServer) LocateRegistry.getRegistry("127.0.0.1", Integer.parseInt(fields[0])).lookup("jmxrmi");
        try (RMIConnector connector = new RMIConnector(server, null)) {
            connector.connect();
            MBeanServerConnection beans = connector.getMBeanServerConnection();
            ObjectName name = new ObjectName(fields[2]);
            switch (fields[1]) {
                case "get":
                    List<String> values = new ArrayList<>();
                    for (ObjectName one : beans.queryNames(name, null)) {
                        values.add(String.valueOf(beans.getAttribute(one, fields[3])));
                    }
                    return String.join("\t", values);
                case "set":
                    beans.setAttribute(name, new Attribute(fields[3], typed(beans, name, fields[3], fields[4])));
                    return "";
                case "call":
                    beans.invoke(name, fields[3], new Object[0], new String[0]);
                    return "";
                default:
                    throw new IllegalArgumentException(fields[1]);
            }
        }
    }

    private static Object typed(MBeanServerConnection beans, ObjectName name, String attribute, String value)
            throws Exception {
        for (MBeanAttributeInfo one : beans.getMBeanInfo(name).getAttributes()) {
            if (one.getName().equals(attribute)) {
                switch (one.getType()) {
                    case "int":
                        return Integer.valueOf(value);
                    case "boolean":
                        return Boolean.valueOf(value);
                    default:
                        return Long.valueOf(value);
                }
            }
        }
        throw new IllegalArgumentException(attribute);
    }
}
