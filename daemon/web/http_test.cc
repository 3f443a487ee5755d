#include "daemon/web/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

constexpr size_t kLimit = 1024;
constexpr char kGood[] = "GET /metrics?x=1 HTTP/1.1\r\nHost: localhost:9464\r\nAccept: */*\r\n\r\n";

int StatusOf(absl::string_view text) {
  HttpRequest request = ParseHttpRequest(text, kLimit);
  if (request.state == HttpRequest::kIncomplete) return 0;
  return request.state == HttpRequest::kComplete ? 200 : request.refusal.status;
}

TEST(Http, ReadsPathAndMethod) {
  HttpRequest request = ParseHttpRequest(kGood, kLimit);
  EXPECT_EQ(request.state, HttpRequest::kComplete);
  EXPECT_EQ(request.path, "/metrics");
  EXPECT_FALSE(request.head);
  EXPECT_TRUE(ParseHttpRequest("HEAD / HTTP/1.0\r\nhost:127.0.0.1\r\n\r\n", kLimit).head);
}

TEST(Http, EveryPrefixIsIncomplete) {
  std::string text = kGood;
  for (size_t length = 0; length < text.size(); ++length) EXPECT_EQ(StatusOf(text.substr(0, length)), 0) << length;
}

TEST(Http, RefusesWhatItDoesNotSpeak) {
  EXPECT_EQ(StatusOf("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 405);
  EXPECT_EQ(StatusOf("GET / HTTP/2.0\r\nHost: localhost\r\n\r\n"), 505);
  EXPECT_EQ(StatusOf("GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: localhost\r\nbad line\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost : localhost\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("\r\n\r\n"), 400);
}

TEST(Http, OnlyLoopbackHosts) {
  auto with_host = [](absl::string_view host) {
    return StatusOf(absl::StrCat("GET / HTTP/1.1\r\nHost: ", host, "\r\n\r\n"));
  };
  for (const char* good : {"localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9464", "[::1]", "[::1]:9464"})
    EXPECT_EQ(with_host(good), 200) << good;
  for (const char* bad : {"evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil", "", "[::2]"})
    EXPECT_EQ(with_host(bad), 421) << bad;
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: evil\r\nHost: localhost\r\n\r\n"), 400);
}

TEST(Http, LongRequestsAreRefusedAtTheLimit) {
  std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\nX: ";
  std::string fits = request + std::string(kLimit - request.size() - 4, 'x') + "\r\n\r\n";
  EXPECT_EQ(StatusOf(fits), 200);
  std::string too_long = request + std::string(kLimit - request.size() - 3, 'x') + "\r\n\r\n";
  EXPECT_EQ(StatusOf(too_long), 431);
  EXPECT_EQ(StatusOf(std::string(kLimit, 'x')), 431);
}

TEST(Http, ResponsesSayTheirLength) {
  HttpResponse response{200, "text/x", "body"};
  std::string text = HttpResponseText(response, false);
  EXPECT_THAT(text, ::testing::StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nContent-Length: 4\r\n"));
  EXPECT_THAT(text, ::testing::EndsWith("Connection: close\r\n\r\nbody"));
  EXPECT_EQ(HttpResponseText(response, true) + "body", text);
  EXPECT_THAT(HttpResponseText({405, "text/x", ""}, false), HasSubstr("\r\nAllow: GET, HEAD\r\n"));
}

}  // namespace
}  // namespace ckptd
