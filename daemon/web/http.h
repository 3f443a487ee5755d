// The part of HTTP/1.1 that a status page needs: GET and HEAD without a body, one request a connection. Pure functions
// on text; server.h moves the bytes.
#ifndef CKPTD_DAEMON_WEB_HTTP_H_
#define CKPTD_DAEMON_WEB_HTTP_H_

#include <string>

#include "absl/strings/string_view.h"

namespace ckptd {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

struct HttpRequest {
  enum State {
    kIncomplete,  // more bytes must come
    kComplete,
    kRefused,  // answer `refusal` and close
  };
  State state = kIncomplete;
  std::string path;   // without the query: "/metrics"
  bool head = false;  // the answer is sent without its body
  HttpResponse refusal;
};

// `received`: all bytes so far. More than `limit` bytes without an end of the head are refused.
//
// The Host must be a loopback name: else a web page anywhere could rebind its own name to 127.0.0.1 and read the
// answers in the operator's browser.
[[nodiscard]] HttpRequest ParseHttpRequest(absl::string_view received, size_t limit);

// Head and body as they go out; the connection is closed after them.
[[nodiscard]] std::string HttpResponseText(const HttpResponse& response, bool head);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_WEB_HTTP_H_
