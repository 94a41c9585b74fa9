package counting

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestWords(t *testing.T) {
	if got := Words("one two"); got != 2 {
		t.Fatalf("got %d", got)
	}
}

func TestServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, request *http.Request) {
		fmt.Fprint(answer, Words(request.URL.Query().Get("text")))
	}))
	defer server.Close()
	answer, err := http.Get(server.URL + "?text=one+two+three")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); string(body) != "3" {
		t.Fatalf("got %s", body)
	}
}
