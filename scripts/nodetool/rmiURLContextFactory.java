package shardq.rmi;

import java.lang.reflect.Proxy;
import java.net.URI;
import java.rmi.registry.LocateRegistry;
import java.util.Hashtable;
import javax.naming.Context;
import javax.naming.Name;
import javax.naming.spi.ObjectFactory;

/**
 * Looks up rmi:// urls as the module jdk.naming.rmi does, which the Java from PyPI lacks and nodetool needs.
 *
 * The names of package and class are the ones that JNDI searches for the scheme "rmi".
 */
public final class rmiURLContextFactory implements ObjectFactory {
    @Override
    public Object getObjectInstance(Object object, Name name, Context context, Hashtable<?, ?> environment) {
        return Proxy.newProxyInstance(
            getClass().getClassLoader(),
            new Class<?>[] {Context.class},
            (proxy, method, arguments) -> {
                switch (method.getName()) {
                    case "lookup":
                        URI uri = URI.create(arguments[0].toString());
                        return LocateRegistry.getRegistry(uri.getHost(), uri.getPort()).lookup(uri.getPath().substring(1));
                    case "close":
                        return null;
                    default:
                        throw new UnsupportedOperationException(method.getName());
                }
            });
    }
}
