package org.example;

public class Words {
    static int count(String text) {
        return text.isBlank() ? 0 : text.strip().split("\\s+").length;
    }

    public static void main(String[] arguments) {
        System.out.println(count(String.join(" ", arguments)));
    }
}
