import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;

/** Prints a page that is asked for with the variable KEY, trusting what Java is told to trust by its options. */
public class FetchKey {
    public static void main(String[] args) throws Exception {
        var key = System.getenv("KEY");
        var builder = HttpRequest.newBuilder(URI.create(args[0]));
        var request = builder.header("Authorization", "Bearer " + key).build();
        var client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        var page = client.send(request, BodyHandlers.ofString()).body();
        System.out.println(page.replace(key, "PLACEHOLDER"));
    }
}
